//! How many messages a peer may send that were not asked for.

use std::time::Duration;

use tokio::time::Instant;

/// The most messages at once.
const BURST: u32 = 200;
/// The time after which one more is allowed: 20 a second.
const EVERY: Duration = Duration::from_millis(50);

/// The messages that one peer may send: 20 a second, and 200 at once.
#[derive(Default)]
pub struct Budget {
    /// When all that was sent is paid for; none before the first message.
    paid: Option<Instant>,
}

impl Budget {
    /// Takes one message; false if that is more than the peer may send.
    pub fn take(&mut self) -> bool {
        let now = Instant::now();
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + EVERY;
        if paid > now + EVERY * BURST {
            return false;
        }
        self.paid = Some(paid);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_allowed_and_then_a_rate() {
        let mut budget = Budget::default();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 200);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 20);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 200);
    }
}
