//! The steps of a trial dial to an endpoint, and the time that each took.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout};

use super::error::LinkError;

/// The steps of a dial. One that was not reached has no time.
#[derive(Debug, Default)]
pub struct Steps {
    /// The time to connect over TCP, or to get the tunnel of a proxy; over QUIC there is no such
    /// step.
    pub connected: Option<Duration>,
    /// The time for the handshake.
    pub encrypted: Option<Duration>,
    /// The round trip of a question; the cloud has taken our certificate.
    pub round_trip: Option<Duration>,
    /// Whether 16 KiB passed each way; none over QUIC, which finds the size of packets itself, and
    /// if this csi-cloud sends no large answer.
    pub large: Option<Result<(), LinkError>>,
    /// The certificate that the cloud showed, trusted or not.
    pub shown: Option<CertificateDer<'static>>,
    /// The time at the cloud, if it said so.
    pub time: Option<SystemTime>,
    /// The reason why the next step failed.
    pub failed: Option<LinkError>,
}

/// Runs a step within this time limit, and notes its duration.
///
/// # Errors
/// [`LinkError::Unanswered`] if it takes longer, or the step's own.
pub(super) async fn step<T>(
    patience: Duration,
    took: &mut Option<Duration>,
    taken: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let begun = Instant::now();
    let outcome = timeout(patience, taken).await.unwrap_or(Err(LinkError::Unanswered(patience)))?;
    *took = Some(begun.elapsed());
    Ok(outcome)
}
