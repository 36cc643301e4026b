//! What tells edges that csi-cloud has restarted, so that they need not wait for its silence.

use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use ring::hmac;

use crate::link::tls;

/// Tells edges at once that csi-cloud has restarted, and that their links ended.
///
/// A packet of an unknown link is answered with a stateless reset (RFC 9000, 10.3). The edge
/// accepts it only if its key is that of the csi-cloud that it linked to. So the key is derived
/// from what outlives a restart: a secret that the credentials were given, or the private key.
pub(super) fn after_restart(credentials: &tls::Credentials) -> EndpointConfig {
    let key = credentials.derived(b"edge-csi quic stateless reset");
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
    let mut config = EndpointConfig::new(Arc::new(key));
    // All edges send in the same seconds. A reset is smaller than the packet that it answers, so it
    // amplifies nothing.
    config.min_reset_interval(Duration::ZERO);
    config.cid_generator(|| Box::new(RandomIds));
    config
}

/// Connection ids of 64 random bits.
///
/// quinn's own have 24. After a restart, some ids of a large fleet's lost links would be used
/// again. The edges that still use them would get no reset.
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&rand::random::<u64>().to_be_bytes())
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
