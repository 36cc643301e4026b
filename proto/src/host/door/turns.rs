//! Limits concurrent handshakes, in order of arrival.
//!
//! A handshake that takes long is given up while another waits for its turn, the oldest first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// A handshake may take this long while others wait. Far, lossy and busy ones take less.
const PATIENCE: Duration = Duration::from_secs(5);

/// A bounded number of handshakes at a time. Clones share them.
#[derive(Clone)]
pub(super) struct Turns {
    slots: Arc<Semaphore>,
    running: Arc<Mutex<Handshakes>>,
}

#[derive(Default)]
struct Handshakes {
    next: u64,
    /// In the order in which they began.
    handshakes: BTreeMap<u64, Handshake>,
}

struct Handshake {
    since: Instant,
    given_up: CancellationToken,
}

/// A turn; over when dropped.
pub(super) struct Turn {
    turns: Turns,
    number: Option<u64>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// So many at a time.
    pub(super) fn new(most: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(most)), running: Arc::default() }
    }

    /// Waits for a turn. The handshake begins with [`Turn::begin`].
    pub(super) async fn take(&self) -> Turn {
        let slot = match self.slots.clone().try_acquire_owned() {
            Ok(slot) => Some(slot),
            Err(_) => self.wait().await,
        };
        Turn { turns: self.clone(), number: None, _slot: slot }
    }

    /// Waits for a slot. Always one, because the semaphore is never closed.
    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        let mut slot = std::pin::pin!(self.slots.clone().acquire_owned());
        let mut earliest = Instant::now();
        loop {
            tokio::select! {
                biased;
                slot = &mut slot => return slot.ok(),
                () = sleep_until(self.overdue().max(earliest)) => {
                    self.give_up_oldest();
                    // One who waits needs one slot.
                    earliest = Instant::now() + PATIENCE;
                }
            }
        }
    }

    /// The time at which the oldest handshake may be given up.
    fn overdue(&self) -> Instant {
        let running = self.running();
        let oldest = running.handshakes.values().next();
        oldest.map_or_else(Instant::now, |handshake| handshake.since) + PATIENCE
    }

    fn give_up_oldest(&self) {
        let mut running = self.running();
        let Some(oldest) = running.handshakes.first_entry() else { return };
        if oldest.get().since.elapsed() >= PATIENCE {
            oldest.remove().given_up.cancel();
        }
    }

    fn running(&self) -> MutexGuard<'_, Handshakes> {
        self.running.lock()
    }
}

impl Turn {
    /// Begins the handshake, which `given_up` ends.
    pub(super) fn begin(&mut self, given_up: &CancellationToken) {
        let mut running = self.turns.running();
        let number = running.next;
        running.next += 1;
        let handshake = Handshake { since: Instant::now(), given_up: given_up.clone() };
        running.handshakes.insert(number, handshake);
        self.number = Some(number);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.turns.running().handshakes.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    async fn begun(turns: &Turns) -> (Turn, CancellationToken) {
        let given_up = CancellationToken::new();
        let mut turn = turns.take().await;
        turn.begin(&given_up);
        (turn, given_up)
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_handshake_is_given_up_while_another_waits() {
        let turns = Turns::new(2);
        let (first, first_up) = begun(&turns).await;
        sleep(Duration::from_secs(3)).await;
        let (_second, second_up) = begun(&turns).await;
        sleep(Duration::from_secs(60)).await;
        assert!(!first_up.is_cancelled() && !second_up.is_cancelled(), "nobody waited");
        let waiting = turns.take();
        let ending = async {
            first_up.cancelled().await;
            drop(first);
        };
        let waited = timeout(Duration::from_millis(1), async { tokio::join!(waiting, ending) });
        assert!(waited.await.is_ok(), "the oldest gives way at once");
        assert!(!second_up.is_cancelled(), "one who waits needs one slot");
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_goes_on_is_left_alone_for_five_seconds() {
        let turns = Turns::new(1);
        let (_first, given_up) = begun(&turns).await;
        assert!(timeout(PATIENCE - Duration::from_millis(10), turns.take()).await.is_err());
        assert!(!given_up.is_cancelled());
        assert!(timeout(Duration::from_secs(1), turns.take()).await.is_err(), "it holds its slot");
        assert!(given_up.is_cancelled());
    }
}
