//! Limits notices: the same trouble is told once an hour while it lasts.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::kubernetes::events::{About, Notice};

/// The time after which lasting trouble is told again.
pub(super) const AGAIN: Duration = Duration::from_secs(3600);
/// Published notices that are remembered. Further ones wait until there is room.
pub(super) const MEMORY: usize = 10_000;
/// The shortest time between two prunings of the remembered notices.
const PRUNE: Duration = Duration::from_secs(60);

/// The published notices, and when each may be published again.
#[derive(Default)]
pub(super) struct NoticeLimiter {
    until: HashMap<(About, &'static str), Instant>,
    pruned: Option<Instant>,
}

impl NoticeLimiter {
    /// Whether a notice is to be published now.
    pub(super) fn is_news(&mut self, notice: &Notice, now: Instant) -> bool {
        let key = (notice.about.clone(), notice.reason);
        if let Some(until) = self.until.get(&key) {
            return *until <= now;
        }
        let is_pruned = self.pruned.is_some_and(|at| now.saturating_duration_since(at) < PRUNE);
        if self.until.len() >= MEMORY && !is_pruned {
            self.until.retain(|_, until| *until > now);
            self.pruned = Some(now);
        }
        self.until.len() < MEMORY
    }

    /// Suppresses the notice for this period, published or not.
    pub(super) fn keep(&mut self, notice: &Notice, now: Instant, time: Duration) {
        self.until.insert((notice.about.clone(), notice.reason), now + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::claims::Reason;
    use crate::kubernetes::events::waiting;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_told_once_an_hour() {
        let mut limiter = NoticeLimiter::default();
        let now = Instant::now();
        let away = |name: &str| {
            waiting(name, "u", &Reason::Away("n1".parse().unwrap(), Duration::from_secs(300)))
        };
        assert!(
            limiter.is_news(&away("s/a"), now) && limiter.is_news(&away("s/a"), now),
            "it was not told yet"
        );
        limiter.keep(&away("s/a"), now, AGAIN);
        assert!(!limiter.is_news(&away("s/a"), now) && limiter.is_news(&away("s/b"), now));
        let removed = waiting("s/a", "u", &Reason::Removed("n1".parse().unwrap()));
        assert!(limiter.is_news(&removed, now), "another reason is other news");
        assert!(limiter.is_news(&away("s/a"), now + AGAIN));
        let mut publish = |number: usize, now| {
            let notice = away(&format!("s/{number}"));
            let news = limiter.is_news(&notice, now);
            if news {
                limiter.keep(&notice, now, AGAIN);
            }
            news
        };
        assert_eq!((0..MEMORY * 2).filter(|number| publish(*number, now)).count(), MEMORY - 1);
        assert!(publish(MEMORY * 2, now + AGAIN), "there is room again");
        assert_eq!(limiter.until.len(), 1);
    }
}
