//! Looks for signs of life of the cloud, where the transport's own are too rare to rely on: over
//! QUIC. Silence is counted in questions, not in time, and a look that is late counts nothing: then
//! this node was busy, or slept.
//!
//! A csi-cloud that was started again answers the first question with a reset, so there are two
//! looks in each interval.

use std::time::Duration;

use proto::link::keep_alive::QUESTIONS;
use tokio::time::{Instant, sleep_until};

/// The looks in the interval of signs of life.
const IN_EACH: u32 = 2;

/// The looks of one link.
pub(super) struct Looks {
    every: Duration,
    due: Instant,
    /// The looks since anything came.
    silent: u32,
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Something came, or it is not time yet to ask.
    Seen,
    /// Nothing came for an interval: the cloud is to be asked.
    Wanted,
    /// It was asked often enough.
    Missing,
}

/// A look that is due.
pub(super) struct DueLook<'a> {
    looks: &'a mut Looks,
    late: Duration,
}

/// Waits for the next look; without looks it never ends.
pub(super) async fn next(looks: &mut Option<Looks>) -> DueLook<'_> {
    let Some(looks) = looks else { return std::future::pending().await };
    sleep_until(looks.due).await;
    let late = looks.due.elapsed();
    looks.due = Instant::now() + looks.every;
    DueLook { looks, late }
}

impl Looks {
    /// The looks of a link with signs of life at this interval.
    pub(super) fn begin(interval: Duration) -> Self {
        let every = interval / IN_EACH;
        Self { every, due: Instant::now() + every, silent: 0 }
    }
}

impl DueLook<'_> {
    /// Takes whether nothing came since the last look.
    pub(super) fn take(self, is_silent: bool) -> Sign {
        let Looks { every, silent, .. } = self.looks;
        if !is_silent {
            *silent = 0;
        } else if self.late * 2 < *every {
            *silent += 1;
            match *silent / IN_EACH {
                asked if asked > QUESTIONS => return Sign::Missing,
                _ if silent.is_multiple_of(IN_EACH) => return Sign::Wanted,
                _ => {}
            }
        }
        Sign::Seen
    }
}

#[cfg(test)]
mod tests {
    use super::Sign::{Missing, Seen, Wanted};
    use super::*;

    const HALF: Duration = Duration::from_secs(5);

    /// What looks find, each this late.
    async fn found(looks: &mut Option<Looks>, silent: &[bool], late: Duration) -> Vec<Sign> {
        let mut found = Vec::new();
        for is_silent in silent {
            tokio::time::advance(HALF + late).await;
            found.push(next(looks).await.take(*is_silent));
        }
        found
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_is_dead_after_three_questions_and_a_full_interval_after_each() {
        let mut looks = Some(Looks::begin(HALF * 2));
        let begun = found(&mut looks, &[true, true, false, true], Duration::ZERO).await;
        assert_eq!(begun, [Seen, Wanted, Seen, Seen]);
        let then = found(&mut looks, &[true; 7], Duration::ZERO).await;
        assert_eq!(then, [Wanted, Seen, Wanted, Seen, Wanted, Seen, Missing]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_late_counts_nothing() {
        let mut looks = Some(Looks::begin(HALF * 2));
        assert!(found(&mut looks, &[true; 9], HALF / 2).await.iter().all(|sign| *sign == Seen));
        assert_eq!(found(&mut looks, &[true; 2], HALF / 3).await, [Seen, Wanted]);
    }
}
