//! Retries with growing waits, so a permanent mistake costs the API server and the log little.

use std::collections::HashMap;
use std::time::Duration;

use proto::host::backoff::Backoff;
use tokio::time::Instant;

/// The first wait.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(300);

/// The failures, by subject.
#[derive(Default)]
pub(super) struct Retries(HashMap<String, Failed>);

struct Failed {
    until: Instant,
    delays: Backoff,
}

impl Retries {
    /// True if the subject may be tried now.
    pub(super) fn may(&self, what: &str, now: Instant) -> bool {
        self.0.get(what).is_none_or(|failed| failed.until <= now)
    }

    /// The subject failed; returns whether that is new.
    pub(super) fn failed(&mut self, what: &str, now: Instant) -> bool {
        let before = self.0.get(what).map(|failed| failed.delays);
        let mut delays = before.unwrap_or(Backoff::new(SHORTEST, LONGEST));
        // Subjects that failed together are not retried together.
        let until = now + delays.delay().mul_f64(rand::random_range(0.75..1.25));
        self.0.insert(what.to_owned(), Failed { until, delays });
        before.is_none()
    }

    /// The subject succeeded, or is not wanted any more.
    pub(super) fn done(&mut self, what: &str) {
        self.0.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_is_longer_than_the_one_before_until_it_went_well() {
        let mut retries = Retries::default();
        let mut now = Instant::now();
        assert!(retries.may("x", now) && retries.failed("x", now));
        for wait in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0_f64] {
            assert!(!retries.may("x", now + Duration::from_secs_f64(wait * 0.7)));
            now += Duration::from_secs_f64(wait * 1.3);
            assert!(retries.may("x", now) && retries.may("y", now));
            assert!(!retries.failed("x", now), "told once");
        }
        retries.done("x");
        assert!(retries.may("x", now) && retries.failed("x", now));
    }
}
