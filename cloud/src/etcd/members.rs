//! The members of etcd, one channel to each. All requests take the same one, until it gives no
//! answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::transport::Channel;

/// The members, and whose turn it is.
#[derive(Debug)]
pub(super) struct Members {
    channels: Vec<Channel>,
    /// The channel whose turn it is, modulo their number.
    turn: AtomicUsize,
}

impl Members {
    /// These members; at least one.
    pub(super) fn new(channels: Vec<Channel>) -> Self {
        Self { channels, turn: AtomicUsize::new(0) }
    }

    /// The channel whose turn it is, and the number of the turn.
    pub(super) fn channel(&self) -> (usize, Channel) {
        let turn = self.turn.load(Ordering::Relaxed);
        (turn, self.channels[turn % self.channels.len()].clone())
    }

    /// Gives the next member its turn, unless another request did.
    pub(super) fn leave(&self, turn: usize) {
        let next = turn.wrapping_add(1);
        // It fails if another one was faster.
        let _ = self.turn.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}
