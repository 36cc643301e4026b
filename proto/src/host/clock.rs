//! The wall clock in milliseconds.
//!
//! It is read once; tokio counts from there. So time never jumps while a program runs, and a test
//! can pause it.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The first reading of the wall clock, and tokio's time of that reading.
static BEGUN: LazyLock<(SystemTime, Instant)> =
    LazyLock::new(|| (SystemTime::now(), Instant::now()));

/// The current time, in ms since 1970.
pub fn now() -> u64 {
    at(Instant::now())
}

/// The time after this duration, in ms since 1970.
pub fn after(time: Duration) -> u64 {
    now().saturating_add(millis(time))
}

/// A duration in ms.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A moment, in ms since 1970.
pub fn at(moment: Instant) -> u64 {
    let (wall, begun) = *BEGUN;
    let wall = wall + moment.saturating_duration_since(begun);
    let wall = wall - begun.saturating_duration_since(moment);
    millis(wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}
