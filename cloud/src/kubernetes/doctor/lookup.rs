//! The result of looking up an object of Kubernetes.

use proto::admin::doctor::Finding;
use proto::host::chain;

use crate::kubernetes::api::ApiError;

/// What looking for an object gave.
pub(super) enum Lookup<T> {
    /// It is there.
    Found(T),
    /// It is not.
    Missing,
    /// The API server does not show it, for this reason.
    Hidden(String),
}

impl<T> From<Result<T, ApiError>> for Lookup<T> {
    fn from(answered: Result<T, ApiError>) -> Self {
        match answered {
            Ok(found) => Self::Found(found),
            Err(ApiError::Missing) => Self::Missing,
            Err(error) => Self::Hidden(chain(&error)),
        }
    }
}

/// The finding about an object that the API server does not show.
pub(super) fn hidden(check: &str, about: &str, why: &str) -> Finding {
    Finding::unknown(
        check,
        about,
        format!("it cannot be read: {why}"),
        "give csi-cloud the rights of the chart with kubeedge: true, or look yourself",
    )
}
