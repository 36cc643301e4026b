//! The wall clock in milliseconds.
//!
//! It is read once; tokio counts from there. So time never jumps while csi-cloud runs, and a test
//! can pause it.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The first reading of the wall clock, and tokio's time of that reading.
static BEGUN: LazyLock<(SystemTime, Instant)> =
    LazyLock::new(|| (SystemTime::now(), Instant::now()));

/// The current time, in ms since 1970.
pub fn now() -> u64 {
    after(Duration::ZERO)
}

/// The time after this duration, in ms since 1970.
pub fn after(time: Duration) -> u64 {
    let (wall, begun) = *BEGUN;
    let now = Instant::now();
    let moment = wall + now.saturating_duration_since(begun) - begun.saturating_duration_since(now);
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from((since + time).as_millis()).unwrap_or(u64::MAX)
}
