//! Failures of work with a direct volume.

use std::sync::Arc;

use proto::error::Error;

pub(crate) const HANDED_OVER: &str = "handed over directly";
pub(crate) const TAKEN_BACK: &str = "taken back";

/// Turns an error into the failure of a volume that is not `wanted` yet; some of it may be done.
pub(crate) fn not_yet<E>(volume: &str, wanted: &'static str) -> impl Fn(E) -> Arc<Error>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let volume = volume.to_owned();
    move |source| {
        Error::DirectNotYet { volume: volume.clone(), wanted, source: source.into() }.into()
    }
}
