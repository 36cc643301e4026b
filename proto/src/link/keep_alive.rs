//! The keep-alive settings of a link, the same on both sides.

use std::time::Duration;

/// The interval of keep-alive messages, and the time after which a peer counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The interval between keep-alive messages.
    pub every: Duration,
    /// Without a message for this long, the peer counts as dead.
    pub dead_after: Duration,
}

impl KeepAlive {
    /// The peer counts as dead after this time. Keep-alive messages are three times as frequent.
    pub fn dead_after(time: Duration) -> Self {
        Self { every: time / 3, dead_after: time }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self::dead_after(Duration::from_secs(15))
    }
}
