//! How many control messages an edge may send that csi-cloud did not ask for.

use std::time::Duration;

use tokio::time::Instant;

/// The most messages at once.
const BURST: u32 = 200;
/// The time after which one more is allowed: 20 a second.
const EVERY: Duration = Duration::from_millis(50);

/// The reason to close a link beyond its budget.
pub(super) const EXCEEDED: &str =
    "the edge sent more control messages than it may: 20 a second, 200 at once";

/// The budget of one link.
#[derive(Default)]
pub(super) struct Budget {
    /// When all that was sent is paid for; none before the first message.
    paid: Option<Instant>,
}

impl Budget {
    /// Takes one message.
    ///
    /// # Errors
    /// The reason to close the link.
    pub(super) fn take(&mut self) -> Result<(), &'static str> {
        let now = Instant::now();
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + EVERY;
        if paid > now + EVERY * BURST {
            return Err(EXCEEDED);
        }
        self.paid = Some(paid);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_allowed_and_then_a_rate() {
        let mut budget = Budget::default();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((0..1000).filter(|_| budget.take().is_ok()).count(), 200);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..1000).filter(|_| budget.take().is_ok()).count(), 20);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((0..1000).filter(|_| budget.take().is_ok()).count(), 200);
    }
}
