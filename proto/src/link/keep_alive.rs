//! How the liveness of a link is watched, the same on both sides.

use std::time::Duration;

/// When signs of life are sent, and when they are missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// A sign of life is sent this often.
    pub every: Duration,
    /// Without one for this long, the other side counts as dead.
    pub dead_after: Duration,
}

impl KeepAlive {
    /// The other side counts as dead after this long; signs of life are sent three times as often.
    pub fn dead_after(time: Duration) -> Self {
        Self { every: time / 3, dead_after: time }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self::dead_after(Duration::from_secs(15))
    }
}
