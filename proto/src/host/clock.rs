//! The wall clock in milliseconds.
//!
//! It is read once; tokio counts from there. So time never jumps while a program runs, and a test
//! can pause it. Certificates are judged by the wall clock as it is now, which may jump: after that
//! it is [not believed](is_doubted) for a while.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::system::sysinfo;
use tokio::time::Instant;
use tracing::error;

/// The wall clock has jumped if it is off by more than this from the time since the boot.
const JUMP: Duration = Duration::from_secs(3600);
/// The time after a jump in which the wall clock is not believed. It may be set right in it.
const DOUBT: Duration = Duration::from_secs(600);

static WALL: WallClock = WallClock(Mutex::new(None));

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

/// True for ten minutes after the wall clock has jumped by more than an hour, or after [`doubt`].
/// Then nothing ends or is issued by it. A jump is seen from the second reading on.
pub fn is_doubted() -> bool {
    WALL.is_doubted(SystemTime::now(), since_boot())
}

/// Has the wall clock not believed for ten minutes, because it is before `known`, which has been,
/// by more than an hour.
pub fn doubt(known: SystemTime) {
    let now = SystemTime::now();
    if known.duration_since(now).is_ok_and(|behind| behind > JUMP) {
        WALL.doubt(now, since_boot());
    }
}

/// The time since the boot, with that in which the machine slept, in whole seconds. rustix reads
/// clocks in a way that ends a program under valgrind.
fn since_boot() -> Duration {
    Duration::from_secs(sysinfo().uptime.try_into().unwrap_or_default())
}

/// The readings of the wall clock.
struct WallClock(Mutex<Option<WallReading>>);

/// The last reading.
struct WallReading {
    wall: SystemTime,
    /// Since the boot.
    at: Duration,
    doubted_until: Duration,
}

impl WallClock {
    fn is_doubted(&self, wall: SystemTime, at: Duration) -> bool {
        let mut last = self.0.lock();
        let doubted_until = match &*last {
            Some(last) => {
                let expected = last.wall + at.saturating_sub(last.at);
                let off = wall.duration_since(expected).unwrap_or_else(|behind| behind.duration());
                if off > JUMP { told(at) } else { last.doubted_until }
            }
            None => Duration::ZERO,
        };
        *last = Some(WallReading { wall, at, doubted_until });
        at < doubted_until
    }

    fn doubt(&self, wall: SystemTime, at: Duration) {
        *self.0.lock() = Some(WallReading { wall, at, doubted_until: told(at) });
    }
}

/// Tells of the jump, and returns the end of the doubt.
fn told(at: Duration) -> Duration {
    error!(
        "this machine's clock is off by more than an hour from what it was. For ten minutes no \
         link ends by it, and no certificate is issued; set it right, if it is wrong now"
    );
    at + DOUBT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_not_believed_for_ten_minutes_after_a_jump() {
        let wall = WallClock(Mutex::new(None));
        let (begun, minute) = (SystemTime::now(), Duration::from_secs(60));
        let day = Duration::from_secs(86_400);
        let doubted = |shown: Duration, at: Duration| wall.is_doubted(begun + shown, at);
        assert!(!doubted(minute, minute), "the first reading");
        // A sleep of the machine is none, and neither is a clock that is set by minutes.
        assert!(!doubted(day, day) && !doubted(day + 50 * minute, day + minute));
        let jumped = day + 2 * minute;
        assert!(doubted(200 * day, jumped));
        assert!(doubted(200 * day + 9 * minute, jumped + 9 * minute));
        // Back again.
        assert!(doubted(jumped + 9 * minute, jumped + 9 * minute));
        assert!(doubted(jumped + 18 * minute, jumped + 18 * minute));
        assert!(!doubted(jumped + 19 * minute, jumped + 19 * minute));
    }
}
