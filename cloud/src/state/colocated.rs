//! Volumes that were colocated with their source, outside the requested topology.
//!
//! They wait here until Kubernetes is told. In memory only, and bounded: the oldest is dropped.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};
use proto::names::NodeName;

use crate::state::record::Claim;

/// The volumes that may wait. Without Kubernetes nobody takes them out.
const WAITING: usize = 256;

/// A volume that was colocated with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Colocated {
    /// The volume's name in its request.
    pub name: Box<str>,
    /// The claim in Kubernetes.
    pub claim: Box<Claim>,
    /// The node that has it.
    pub node: NodeName,
    /// The kind and id of its source.
    pub made_from: String,
    /// The requested topology.
    pub requested: String,
}

/// The volumes whose Event is not published yet.
#[derive(Default)]
pub struct ColocatedQueue {
    waiting: Mutex<VecDeque<Colocated>>,
}

impl ColocatedQueue {
    /// Adds a volume, in place of the oldest if too many wait.
    pub fn push(&self, colocated: Colocated) {
        let mut waiting = self.waiting();
        if waiting.len() == WAITING {
            waiting.pop_front();
        }
        waiting.push_back(colocated);
    }

    /// Takes all out, the oldest first.
    pub fn take(&self) -> VecDeque<Colocated> {
        std::mem::take(&mut *self.waiting())
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Colocated>> {
        self.waiting.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_and_the_oldest_is_dropped() {
        let queue = ColocatedQueue::default();
        for number in 0..=WAITING {
            queue.push(Colocated {
                name: format!("pvc-{number}").into(),
                claim: Box::default(),
                node: "n1".parse().unwrap(),
                made_from: "snapshot s".into(),
                requested: "{node=n2}".into(),
            });
        }
        let taken = queue.take();
        assert_eq!((taken.len(), &*taken[0].name), (WAITING, "pvc-1"));
        assert!(queue.take().is_empty());
    }
}
