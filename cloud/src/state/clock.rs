//! The wall clock in milliseconds, counted by tokio, so that a test can pause it.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The moment of the wall clock at the first look at it; what passes since is counted by tokio, so that time does
/// not jump while csi-cloud runs, and stands still where a test lets it.
static BEGUN: LazyLock<(SystemTime, Instant)> =
    LazyLock::new(|| (SystemTime::now(), Instant::now()));

/// This moment, in ms since 1970.
pub fn now() -> u64 {
    after(Duration::ZERO)
}

/// The moment that comes in this time, in ms since 1970.
pub fn after(time: Duration) -> u64 {
    let (wall, begun) = *BEGUN;
    let now = Instant::now();
    let moment = wall + now.saturating_duration_since(begun) - begun.saturating_duration_since(now);
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from((since + time).as_millis()).unwrap_or(u64::MAX)
}
