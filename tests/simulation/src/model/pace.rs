//! When a worker looks at its object again: at once, after a change, or after a time that doubles.

use std::time::Duration;

use tokio::sync::watch;

use super::api::Api;
use super::world::World;

/// `--retry-interval-start`.
const FIRST: Duration = Duration::from_secs(1);
/// The delay of external-provisioner and -resizer for an object that cannot succeed now.
const SLOW: Duration = Duration::from_secs(300);

/// The result of a worker's step.
pub(super) enum Next {
    /// There will be nothing to do any more.
    Done,
    /// Nothing to do until the next change.
    Idle,
    /// It worked; there may be more to do.
    Now,
    /// It failed.
    Retry,
    /// It cannot succeed; to be tried again much later.
    Slow,
}

/// Takes steps until the object is done. `version` returns the version of that object.
pub(super) async fn keep<F: Future<Output = Next>>(
    world: &World,
    step: impl Fn() -> F,
    version: impl Fn(&Api) -> u64,
) {
    let mut pace = Pace::new(&world.api, world.most);
    loop {
        pace.look();
        let next = step().await;
        if matches!(next, Next::Done) {
            return;
        }
        pace.rest(&next, || version(&world.api)).await;
    }
}

/// The rate limit of one object.
struct Pace {
    changes: watch::Receiver<u64>,
    delay: Duration,
    most: Duration,
}

impl Pace {
    fn new(api: &Api, most: Duration) -> Self {
        Self { changes: api.watch(), delay: FIRST, most }
    }

    /// Must be called before the object is read.
    fn look(&mut self) {
        self.changes.mark_unchanged();
    }

    /// Waits for the next step. A new `version` of the object itself ends the wait at once.
    async fn rest(&mut self, next: &Next, version: impl Fn() -> u64) {
        let wait = match next {
            Next::Done | Next::Now => {
                self.delay = FIRST;
                return;
            }
            Next::Idle => {
                self.delay = FIRST;
                let _ = self.changes.changed().await;
                return;
            }
            Next::Retry => {
                let delay = self.delay;
                self.delay = (delay * 2).min(self.most);
                delay
            }
            Next::Slow => SLOW,
        };
        let before = version();
        let changed = async {
            while self.changes.changed().await.is_ok() {
                if version() != before {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = changed => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::model::api::Claim;

    fn api() -> Api {
        let api = Api::default();
        api.change(|objects| objects.claims.push(Claim::default()));
        api
    }

    async fn rested(pace: &mut Pace, api: &Api, next: &Next) -> u64 {
        let began = Instant::now();
        pace.look();
        pace.rest(next, || api.claim(0).version).await;
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_at_doubling_times_up_to_a_limit() {
        let api = api();
        let mut pace = Pace::new(&api, Duration::from_secs(5));
        let mut times = Vec::new();
        for _ in 0..5 {
            times.push(rested(&mut pace, &api, &Next::Retry).await);
        }
        assert_eq!(times, [1, 2, 4, 5, 5]);
        assert_eq!(rested(&mut pace, &api, &Next::Slow).await, 300);
        rested(&mut pace, &api, &Next::Now).await;
        assert_eq!(rested(&mut pace, &api, &Next::Retry).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_object_is_its_turn_at_once() {
        let api = api();
        let mut pace = Pace::new(&api, Duration::from_secs(300));
        let changed = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            api.change(|_| ());
            tokio::time::sleep(Duration::from_secs(20)).await;
            api.change_claim(0, |claim| claim.deleted = true);
        };
        let (rested, ()) = tokio::join!(rested(&mut pace, &api, &Next::Slow), changed);
        assert_eq!(rested, 40);
    }
}
