//! A program that does not go to sleep between quick calls.
//!
//! Waking a thread that sleeps takes longer than all else that a quick call needs, and a call wakes each of our programs
//! twice (docs/performance.md). So a program that has one call at a time, of which the last was quick, looks for what comes next
//! for a while before it sleeps, and lets everybody else have the CPU in between. Calls that take their time, at a driver
//! that works or over a far network, cost nothing of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a program stays awake after a call has begun or ended.
const LINGER: Duration = Duration::from_micros(400);
/// What takes longer than this does not gain by it.
const QUICK: Duration = Duration::from_millis(1);

/// Whether a program stays awake. Only that: nothing depends on it but time.
pub struct Awake {
    made: Instant,
    /// In µs since it was made.
    until: AtomicU64,
    running: AtomicUsize,
    /// Whether calls run, or ran last, at the same time: then there is mostly something to do, and others want the CPU.
    crowded: AtomicBool,
    /// Whether the call that ended last was quick, and alone.
    quick: AtomicBool,
    stirred: Notify,
}

/// A call that runs; it ends with this.
pub struct Call {
    awake: Arc<Awake>,
    begun: Instant,
}

impl Default for Awake {
    fn default() -> Self {
        let (until, running, crowded, quick, stirred) = Default::default();
        Self { made: Instant::now(), until, running, crowded, quick, stirred }
    }
}

impl Awake {
    /// A call begins.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Call {
        let alone = self.running.fetch_add(1, Ordering::Relaxed) == 0;
        self.crowded.store(!alone, Ordering::Relaxed);
        if alone && self.quick.load(Ordering::Relaxed) {
            self.stir();
        }
        Call { awake: self.clone(), begun: Instant::now() }
    }

    /// Keeps the thread that runs this awake when it should be. For a runtime of one thread; it never ends.
    pub async fn keep(self: Arc<Self>) {
        loop {
            self.stirred.notified().await;
            while self.lingers() {
                std::thread::yield_now();
                // The runtime looks at its sockets, and does not wait for them.
                tokio::task::yield_now().await;
            }
        }
    }

    fn stir(&self) {
        self.until.store(self.now() + in_us(LINGER), Ordering::Relaxed);
        self.stirred.notify_one();
    }

    fn lingers(&self) -> bool {
        !self.crowded.load(Ordering::Relaxed) && self.now() < self.until.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        in_us(self.made.elapsed())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let quick = self.begun.elapsed() <= QUICK && !self.awake.crowded.load(Ordering::Relaxed);
        self.awake.running.fetch_sub(1, Ordering::Relaxed);
        self.awake.quick.store(quick, Ordering::Relaxed);
        if quick {
            self.awake.stir();
        }
    }
}

fn in_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn it_is_awake_for_a_while_after_a_quick_call_and_while_the_next_one_runs() {
        let awake = Arc::new(Awake::default());
        let first = awake.begin();
        assert!(!awake.lingers(), "nobody knows yet whether calls are quick");
        advance(QUICK).await;
        drop(first);
        assert!(awake.lingers());
        advance(LINGER).await;
        assert!(!awake.lingers());
        let next = awake.begin();
        assert!(awake.lingers());
        advance(LINGER).await;
        assert!(!awake.lingers());
        drop(next);
        assert!(awake.lingers());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_take_their_time_or_are_many_are_not_stayed_awake_for() {
        let awake = Arc::new(Awake::default());
        drop(awake.begin());
        let slow = awake.begin();
        advance(QUICK + Duration::from_micros(1)).await;
        drop(slow);
        assert!(!awake.lingers());
        let after = awake.begin();
        assert!(!awake.lingers(), "the one before was slow");
        drop(after);
        drop([awake.begin(), awake.begin()]);
        assert!(!awake.lingers(), "there were two at a time");
        drop(awake.begin());
        assert!(awake.lingers());
        let two = [awake.begin(), awake.begin()];
        assert!(!awake.lingers(), "there is something to do anyway");
        drop(two);
        assert!(!awake.lingers());
    }

    /// By the true clock: one that is paused stands still as long as anybody is awake.
    #[tokio::test]
    async fn the_thread_is_kept_only_so_long() {
        let awake = Arc::new(Awake::default());
        let keeping = awake.clone().keep();
        drop(awake.begin());
        assert!(awake.lingers());
        let kept = tokio::time::timeout(LINGER * 2, keeping).await;
        assert!(kept.is_err() && !awake.lingers());
    }
}
