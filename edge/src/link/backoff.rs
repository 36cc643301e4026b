//! Delays between dials, with full jitter: edges that lost the cloud together do not come back
//! together.
//!
//! The longest delay doubles with each failure, up to the cloud's cap. Simulated edges use this
//! too.

use std::time::Duration;

use proto::host::backoff;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep_until};

/// The longest first delay.
const FIRST: Duration = Duration::from_millis(500);
/// The longest delay after a csi-cloud that follows has sent us to the leader.
const FOLLOWER: Duration = Duration::from_secs(2);
/// The longest delay, if the cloud sets no other.
const LAST: Duration = Duration::from_secs(30);
/// A link that lasted this long was stable: the next one is dialed without much delay.
pub const STABLE: Duration = Duration::from_secs(30);

/// The longest delay that the cloud allows, from 500 ms to 30 s; 30 s until it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(Duration);

impl Default for Cap {
    fn default() -> Self {
        Self(LAST)
    }
}

impl Cap {
    /// Takes the cloud's cap, within reason.
    pub fn take(&mut self, cap: Option<Duration>) {
        if let Some(cap) = cap {
            self.0 = cap.clamp(FIRST, LAST);
        }
    }
}

/// The delays of one endpoint.
pub struct Backoff {
    /// The longest next delays, before the cloud's cap.
    delays: backoff::Backoff,
    not_before: Instant,
    dice: StdRng,
}

impl Backoff {
    /// No failure yet: the first dial is at once. Delays are drawn with `dice`, which differ from
    /// edge to edge.
    pub fn new(dice: StdRng) -> Self {
        Self { delays: backoff::Backoff::new(FIRST, LAST), not_before: Instant::now(), dice }
    }

    /// Forgets the failures: the next dial is at once.
    pub fn forget(&mut self) {
        self.delays.reset();
        self.not_before = Instant::now();
    }

    /// Notes that no link came up, and returns the delay.
    pub fn failed(&mut self, cap: Cap) -> Duration {
        let longest = self.delays.delay().min(cap.0);
        self.leave_alone(longest)
    }

    /// Notes that a link ended, stable (see [`STABLE`]) or not, and returns the delay.
    pub fn ended(&mut self, stable: bool, cap: Cap) -> Duration {
        if stable { self.reset() } else { self.failed(cap) }
    }

    /// Forgets the failures, but keeps a short delay.
    pub fn reset(&mut self) -> Duration {
        self.delays.reset();
        self.leave_alone(FIRST)
    }

    /// Notes that the endpoint is there, and another one leads, and returns the delay. It is no
    /// failure, so later delays do not grow by it.
    pub fn turned_away(&mut self) -> Duration {
        self.leave_alone(FOLLOWER)
    }

    /// Waits until it is time to dial.
    pub async fn over(&self) {
        sleep_until(self.not_before).await;
    }

    fn leave_alone(&mut self, longest: Duration) -> Duration {
        let delay = longest.mul_f64(self.dice.random_range(0.0..1.0));
        self.not_before = Instant::now() + delay;
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_to_the_cap_and_start_again_after_a_stable_link() {
        let mut backoff = Backoff::new(rand::make_rng());
        let bounds = [500, 1000, 2000, 4000, 5000, 5000, 5000, 5000].map(Duration::from_millis);
        let mut longest = [Duration::ZERO; 8];
        // Enough draws to nearly reach each bound, and to pass none.
        for _ in 0..1000 {
            for (seen, bound) in longest.iter_mut().zip(bounds) {
                let delay = backoff.failed(Cap(Duration::from_secs(5)));
                assert!(delay <= bound, "{delay:?} of {bound:?}");
                assert_eq!(backoff.not_before, Instant::now() + delay);
                *seen = (*seen).max(delay);
            }
            assert!(backoff.reset() <= FIRST);
        }
        assert!(
            longest.iter().zip(bounds).all(|(seen, bound)| *seen > bound.mul_f64(0.9)),
            "{longest:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_follows_is_not_left_alone_for_longer_each_time() {
        let mut backoff = Backoff::new(rand::make_rng());
        for _ in 0..1000 {
            assert!(backoff.turned_away() <= FOLLOWER);
        }
        assert!(backoff.failed(Cap::default()) <= FIRST, "it has not failed before");
    }

    #[test]
    fn the_clouds_wish_is_taken_within_reason() {
        let mut cap = Cap::default();
        for (longest, taken) in
            [(None, 30_000), (Some(0), 500), (Some(2_000), 2_000), (Some(3_600_000), 30_000)]
        {
            cap.take(longest.map(Duration::from_millis));
            assert_eq!(cap.0, Duration::from_millis(taken));
        }
    }
}
