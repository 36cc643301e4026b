//! Delays between attempts that fail: each is twice as long as the one before, up to a limit.
//!
//! It reads no clock and throws no dice: the caller waits, and passes a random number where many
//! programs would otherwise try again at the same moment.

use std::time::Duration;

/// The delays of one thing that is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Begins with the delay `first`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Returns the delay before the next attempt.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.longest);
        delay
    }

    /// Returns the delay before the next attempt, longer by the share `dice`, from 0 to 1.
    pub fn jittered(&mut self, dice: f64) -> Duration {
        self.delay().mul_f64(1.0 + dice.clamp(0.0, 1.0))
    }

    /// Forgets the failures: the next delay is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delays_double_up_to_the_longest_and_begin_again(
            first in 1..10_000_u64,
            longest in 1..10_000_000_u64,
            dice in 0.0..1.0_f64,
            failures in 1..40_u32,
        ) {
            let mut backoff = Backoff::new(
                Duration::from_millis(first),
                Duration::from_millis(longest),
            );
            for failure in 0..failures {
                let doubled = first.saturating_mul(1 << failure);
                let expected = if failure == 0 { first } else { doubled.min(longest) };
                let mut jittered = backoff;
                let delay = backoff.delay();
                prop_assert_eq!(delay, Duration::from_millis(expected));
                let more = jittered.jittered(dice);
                prop_assert!(more >= delay && more <= delay * 2);
                prop_assert_eq!(jittered.delay(), { let mut next = backoff; next.delay() });
            }
            backoff.reset();
            prop_assert_eq!(backoff.delay(), Duration::from_millis(first));
        }
    }
}
