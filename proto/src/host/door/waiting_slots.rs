//! Bounded slots of those who wait. Without a free one, the oldest is given up for the newcomer.
//!
//! A silent peer holds its slot longest. So the oldest waiter is evicted first.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// A bounded number of slots. Clones share them.
#[derive(Clone)]
pub(super) struct WaitingSlots(Arc<Mutex<Taken>>);

struct Taken {
    most: usize,
    next: u64,
    /// In the order in which they were taken.
    taken: BTreeMap<u64, CancellationToken>,
}

/// One slot; free again when dropped.
pub(super) struct WaitingSlot {
    slots: WaitingSlots,
    number: u64,
}

impl WaitingSlots {
    /// So many slots, all free.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Taken { most, next: 0, taken: BTreeMap::new() })))
    }

    /// Takes a slot for one whose waiting `given_up` ends. Without a free slot, the oldest is
    /// given up.
    pub(super) fn take(&self, given_up: &CancellationToken) -> WaitingSlot {
        let mut state = self.state();
        while state.taken.len() >= state.most && state.give_up_oldest() {}
        let number = state.next;
        state.next += 1;
        state.taken.insert(number, given_up.clone());
        WaitingSlot { slots: self.clone(), number }
    }

    /// Gives up the oldest; false if nobody waits.
    pub(super) fn give_up_oldest(&self) -> bool {
        self.state().give_up_oldest()
    }

    fn state(&self) -> MutexGuard<'_, Taken> {
        self.0.lock()
    }
}

impl Taken {
    fn give_up_oldest(&mut self) -> bool {
        let oldest = self.taken.pop_first();
        oldest.is_some_and(|(_, given_up)| {
            given_up.cancel();
            true
        })
    }
}

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        self.slots.state().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way_and_a_place_that_is_left_is_free() {
        let slots = WaitingSlots::new(2);
        let tokens: Vec<_> = (0..4).map(|_| CancellationToken::new()).collect();
        let given_up = || tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>();
        let first = slots.take(&tokens[0]);
        let second = slots.take(&tokens[1]);
        let third = slots.take(&tokens[2]);
        assert_eq!(given_up(), [true, false, false, false]);
        drop(second);
        let fourth = slots.take(&tokens[3]);
        assert_eq!(given_up(), [true, false, false, false], "there was a free place");
        assert!(slots.give_up_oldest());
        assert_eq!(given_up(), [true, false, true, false]);
        drop((first, third, fourth));
        assert!(slots.state().taken.is_empty());
    }
}
