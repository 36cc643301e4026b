//! The look at a QUIC endpoint: a handshake without a stream.

use std::sync::Arc;
use std::time::Duration;

use quinn::Connection;
use tokio::time::{sleep, timeout};

use super::{CHECKED, failed, race};
use crate::link::endpoint::Endpoint;
use crate::link::error::LinkError;
use crate::link::keep_alive::KeepAlive;
use crate::link::network::NodeNetwork;
use crate::link::steps::{Steps, step};

/// The interval between looks for a confirmed handshake.
const LOOK: Duration = Duration::from_millis(5);
/// The time for the end of the connection to be sent.
const GOODBYE: Duration = Duration::from_millis(500);

/// Looks how far a dial comes.
///
/// # Errors
/// The endpoint cannot be reached, the handshake fails, or the cloud does not take our certificate.
/// [`LinkError::Unanswered`] if a step takes longer than `patience`.
pub(in crate::link) async fn check(
    (endpoint, network): (&Endpoint, &NodeNetwork),
    tls: Arc<rustls::ClientConfig>,
    patience: Duration,
    steps: &mut Steps,
) -> Result<(), LinkError> {
    let shaking = async {
        let raced = race((endpoint, network), tls, KeepAlive::default(), patience).await?;
        raced.ok_or(LinkError::Unanswered(patience))
    };
    let (outgoing, connection) = step(patience, &mut steps.encrypted, shaking).await?;
    let mut waited = None;
    let confirmed = step(patience, &mut waited, confirmed(&connection)).await;
    if confirmed.is_ok() {
        steps.round_trip = Some(connection.rtt());
    }
    connection.close(CHECKED, b"csi-edge doctor has looked whether it can link");
    let _ = timeout(GOODBYE, outgoing.0.wait_idle()).await;
    confirmed
}

/// Waits until the cloud has taken our certificate. The client has finished its handshake before
/// the server has seen that (RFC 9001, 4.1.2).
async fn confirmed(connection: &Connection) -> Result<(), LinkError> {
    while connection.stats().frame_rx.handshake_done == 0 {
        if let Some(ended) = connection.close_reason() {
            return Err(failed(&ended));
        }
        sleep(LOOK).await;
    }
    Ok(())
}
