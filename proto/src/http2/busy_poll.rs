//! Busy polling between quick calls: the program does not sleep, so no thread must be woken.
//!
//! Waking a sleeping thread takes longer than the rest of a quick call, and a call wakes each of
//! our programs twice (`tests/bench/README.md`). A program with one call at a time, whose last call
//! was quick, polls for a while before it sleeps. It yields the CPU in between. Slow calls cost
//! nothing of this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The time of busy polling after a call has begun or ended.
const POLL: Duration = Duration::from_micros(400);
/// A call that takes longer gains nothing by polling.
const QUICK: Duration = Duration::from_millis(1);

/// Decides whether a program polls. It changes the time that calls take, and nothing else.
pub struct BusyPoll {
    made: Instant,
    /// The end of polling, in µs since `made`.
    until: AtomicU64,
    running: AtomicUsize,
    /// True if calls run, or ran last, at the same time. Then there is mostly work to do, and other
    /// programs need the CPU.
    crowded: AtomicBool,
    /// True if the last call was quick, and alone.
    quick: AtomicBool,
    started: Notify,
}

/// A call in flight; it ends when this is dropped.
pub struct InFlight {
    busy_poll: Arc<BusyPoll>,
    begun: Instant,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            until: AtomicU64::default(),
            running: AtomicUsize::default(),
            crowded: AtomicBool::default(),
            quick: AtomicBool::default(),
            started: Notify::default(),
        }
    }
}

impl BusyPoll {
    /// A call begins.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> InFlight {
        let alone = self.running.fetch_add(1, Ordering::Relaxed) == 0;
        self.crowded.store(!alone, Ordering::Relaxed);
        if alone && self.quick.load(Ordering::Relaxed) {
            self.start();
        }
        InFlight { busy_poll: self.clone(), begun: Instant::now() }
    }

    /// Keeps the thread that runs this from sleeping while it should poll. For a runtime of one
    /// thread; it never ends.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.started.notified().await;
            while self.is_polling() {
                std::thread::yield_now();
                // The runtime polls its sockets, and does not wait for them.
                tokio::task::yield_now().await;
            }
        }
    }

    fn start(&self) {
        self.until.store(self.now() + in_us(POLL), Ordering::Relaxed);
        self.started.notify_one();
    }

    fn is_polling(&self) -> bool {
        !self.crowded.load(Ordering::Relaxed) && self.now() < self.until.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        in_us(self.made.elapsed())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let quick =
            self.begun.elapsed() <= QUICK && !self.busy_poll.crowded.load(Ordering::Relaxed);
        self.busy_poll.running.fetch_sub(1, Ordering::Relaxed);
        self.busy_poll.quick.store(quick, Ordering::Relaxed);
        if quick {
            self.busy_poll.start();
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
    async fn it_polls_for_a_while_after_a_quick_call_and_while_the_next_one_runs() {
        let busy_poll = Arc::new(BusyPoll::default());
        let first = busy_poll.begin();
        assert!(!busy_poll.is_polling(), "it is unknown yet whether calls are quick");
        advance(QUICK).await;
        drop(first);
        assert!(busy_poll.is_polling());
        advance(POLL).await;
        assert!(!busy_poll.is_polling());
        let next = busy_poll.begin();
        assert!(busy_poll.is_polling());
        advance(POLL).await;
        assert!(!busy_poll.is_polling());
        drop(next);
        assert!(busy_poll.is_polling());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_or_concurrent_calls_start_no_polling() {
        let busy_poll = Arc::new(BusyPoll::default());
        drop(busy_poll.begin());
        let slow = busy_poll.begin();
        advance(QUICK + Duration::from_micros(1)).await;
        drop(slow);
        assert!(!busy_poll.is_polling());
        let after = busy_poll.begin();
        assert!(!busy_poll.is_polling(), "the one before was slow");
        drop(after);
        drop([busy_poll.begin(), busy_poll.begin()]);
        assert!(!busy_poll.is_polling(), "there were two at a time");
        drop(busy_poll.begin());
        assert!(busy_poll.is_polling());
        let two = [busy_poll.begin(), busy_poll.begin()];
        assert!(!busy_poll.is_polling(), "there is work to do anyway");
        drop(two);
        assert!(!busy_poll.is_polling());
    }

    /// By the real clock: a paused one stands still while a task is ready.
    #[tokio::test]
    async fn polling_ends() {
        let busy_poll = Arc::new(BusyPoll::default());
        let running = busy_poll.clone().run();
        drop(busy_poll.begin());
        assert!(busy_poll.is_polling());
        let ended = tokio::time::timeout(POLL * 2, running).await;
        assert!(ended.is_err() && !busy_poll.is_polling());
    }
}
