//! Looks how far a dial to the cloud comes, step by step, and asks for no link.
//!
//! It goes the way of a link: the same proxy, the same TLS, the same certificate. Over WebSocket it
//! asks for a path at which there is no link, and over QUIC it opens no stream. So it takes no
//! link, and no place of one, away from the node.

use std::time::Duration;

use super::endpoint::Endpoint;
use super::error::LinkError;
use super::network::NodeNetwork;
use super::steps::{Steps, step};
use super::tls::{Credentials, Seen};
use super::transport;
use super::transport::Checked;

/// Looks at an endpoint as the owner of these credentials. Each step may take this long.
pub async fn check(
    endpoint: &Endpoint,
    credentials: &Credentials,
    network: &NodeNetwork,
    patience: Duration,
) -> Steps {
    let mut steps = Steps::default();
    let seen = Seen::default();
    let checked = Checked { endpoint, credentials, seen: &seen, network };
    let looked = transport::check(checked, patience, &mut steps).await;
    steps.shown = seen.certificate();
    steps.failed = looked.err();
    steps
}

/// Looks at an endpoint without credentials: it only connects, and over QUIC not even that.
pub async fn check_reach(endpoint: &Endpoint, network: &NodeNetwork, patience: Duration) -> Steps {
    let mut steps = Steps::default();
    if endpoint.transport.is_tcp() {
        let at = endpoint.address();
        let reach = async {
            (network.connect)(at.clone()).await.map_err(|error| LinkError::Unreachable(at, error))
        };
        steps.failed = step(patience, &mut steps.connected, reach).await.err();
    }
    steps
}
