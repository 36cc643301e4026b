//! The signs of life of a link: how often each end sends one, and when a silent peer is dead.
//!
//! csi-cloud chooses the interval when it accepts a link, and tells the edge in its welcome: the
//! more links it has, the longer. Silence is counted in questions that were sent and not answered,
//! so that an end whose own work is late does not take its peer for dead.

use std::time::Duration;

/// The longest interval that a large fleet gets. A NAT may forget a connection after 30 s.
pub const LONGEST: Duration = Duration::from_secs(20);
/// So many questions are sent, each a full interval before the next one, before a peer is dead.
pub const QUESTIONS: u32 = 3;

/// The interval of signs of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The interval between two.
    pub every: Duration,
}

impl KeepAlive {
    /// A peer that says nothing for this time is asked a last time, and is dead a third of it
    /// later.
    pub fn dead_after(time: Duration) -> Self {
        Self { every: time / QUESTIONS }
    }

    /// The interval of a link of csi-cloud that has so many already.
    #[must_use]
    pub fn among(self, links: usize) -> Self {
        let least = match links {
            ..4_000 => Duration::ZERO,
            4_000..20_000 => LONGEST / 2,
            _ => LONGEST,
        };
        Self { every: self.every.max(least) }
    }

    /// The interval of an edge whose csi-cloud told this one.
    #[must_use]
    pub fn told(self, every: Duration) -> Self {
        Self { every: self.every.max(every) }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { every: Duration::from_secs(5) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_fleet_has_fewer_signs_of_life_and_an_operator_may_want_fewer_still() {
        let every = |keep_alive: KeepAlive, links| keep_alive.among(links).every.as_secs();
        let default = KeepAlive::default();
        assert_eq!(
            [0, 3_999, 4_000, 19_999, 20_000, 100_000].map(|n| every(default, n)),
            [5, 5, 10, 10, 20, 20]
        );
        let rare = KeepAlive::dead_after(Duration::from_secs(90));
        assert_eq!([0, 100_000].map(|n| every(rare, n)), [30, 30]);
        assert_eq!(default.told(LONGEST).every, LONGEST);
        assert_eq!(rare.told(LONGEST), rare);
    }
}
