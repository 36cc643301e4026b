//! Limits the rate of control messages from a peer.

use std::time::Duration;

use tokio::time::Instant;

/// The allowed rate of messages.
#[derive(Clone, Copy, Debug)]
pub struct MessageRate {
    /// The messages of each second.
    pub per_second: u32,
    /// The most messages at once.
    pub at_once: u32,
}

impl Default for MessageRate {
    fn default() -> Self {
        Self { per_second: 20, at_once: 200 }
    }
}

/// The remaining messages of one peer.
#[derive(Default)]
pub struct Budget {
    /// The time at which the budget is full again; none before the first message.
    paid: Option<Instant>,
}

impl Budget {
    /// Takes one message; false if the peer is over its rate.
    pub fn take(&mut self, rate: MessageRate) -> bool {
        let every = Duration::from_secs(1) / rate.per_second.max(1);
        let now = Instant::now();
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + every;
        if paid > now + every * rate.at_once {
            return false;
        }
        self.paid = Some(paid);
        true
    }

    /// True if the peer may send a whole burst again.
    pub fn is_full(&self) -> bool {
        self.paid.is_none_or(|paid| paid <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_allowed_and_then_a_rate() {
        let mut budget = Budget::default();
        let mut taken = || (0..1000).filter(|_| budget.take(MessageRate::default())).count();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(taken(), 200);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(taken(), 20);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(taken(), 200);
        assert!(!budget.is_full());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(budget.is_full());
    }

    #[tokio::test(start_paused = true)]
    async fn another_rate_counts() {
        let mut budget = Budget::default();
        let rate = MessageRate { per_second: 1000, at_once: 3 };
        assert_eq!((0..10).filter(|_| budget.take(rate)).count(), 3);
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!((0..10).filter(|_| budget.take(rate)).count(), 2);
    }
}
