//! The state of everything at a moment, in one form of those that mean the same.

use std::collections::BTreeSet;

use crate::bounds::{Bounds, Fault};
use crate::edge::{Call, Edge};
use crate::etcd::{Etcd, NUMBER, Txn};
use crate::replica::{Leading, Replica};

/// What the caller of a name knows and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// There is no volume: it was never created, or its delete was answered.
    Gone,
    /// It wants one.
    Creating,
    /// Its create was answered.
    Made,
    /// It wants it deleted.
    Deleting,
}

/// The state of everything at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The store.
    pub etcd: Etcd,
    /// Commits on their way. They stay after they arrived, and may arrive again.
    pub txns: BTreeSet<Txn>,
    /// The csi-clouds. Their order means nothing.
    pub replicas: Vec<Replica>,
    /// Calls on their way.
    pub calls: BTreeSet<Call>,
    /// The nodes.
    pub edges: Vec<Edge>,
    /// By name.
    pub callers: Vec<Stage>,
}

impl State {
    /// Where everything begins.
    pub fn new(bounds: &Bounds) -> Self {
        Self {
            etcd: Etcd::new(bounds.names),
            txns: BTreeSet::new(),
            replicas: vec![Replica::Follower(None); bounds.replicas],
            calls: BTreeSet::new(),
            edges: vec![Edge::new(bounds.names); usize::from(bounds.edges)],
            callers: vec![Stage::Gone; bounds.names],
        }
    }

    /// The leaders, and those that do not know that they are none.
    pub fn leaders(&self) -> impl Iterator<Item = &Leading> {
        self.replicas.iter().filter_map(Replica::leading)
    }

    /// The node of a call.
    pub fn edge(&self, call: &Call) -> &Edge {
        &self.edges[usize::from(call.edge)]
    }

    /// Puts a call on its way. It replaces an earlier one of the same leader about the same thing.
    ///
    /// That one was carried out before, or never is. Calls of a link keep their order, and those of
    /// a lost link are not read.
    pub fn send(&mut self, call: Call) {
        let is_earlier = |other: &Call| {
            (other.epoch, other.edge) == (call.epoch, call.edge) && other.op.is_about(call.op)
        };
        self.calls.retain(|other| !is_earlier(other));
        self.calls.insert(call);
    }

    /// True if the node would carry the call out.
    pub fn passes(&self, call: &Call) -> bool {
        call.epoch >= self.edge(call).fence
    }

    /// Drops what can have no effect, and counts commits from the last one back. What is left is
    /// the same for all states that go on alike.
    pub fn normalize(&mut self, bounds: &Bounds) {
        self.forget_txns(bounds);
        self.forget_calls(bounds);
        let last = self.etcd.number;
        let from_last = |number: u8| (number + NUMBER).saturating_sub(last);
        for leading in self.replicas.iter_mut().filter_map(Replica::leading_mut) {
            leading.number = from_last(leading.number);
        }
        let counted = |txn: &Txn| Txn { previous: from_last(txn.previous), ..*txn };
        self.txns = self.txns.iter().map(counted).collect();
        self.etcd.number = NUMBER;
        self.replicas.sort();
    }

    fn forget_txns(&mut self, bounds: &Bounds) {
        let awaited: Vec<Txn> = self.leaders().filter_map(Leading::txn).collect();
        let compares_key = bounds.fault != Fault::NoCompare;
        let etcd = &self.etcd;
        self.txns.retain(|txn| etcd.compares(*txn, compares_key) || awaited.contains(txn));
    }

    fn forget_calls(&mut self, bounds: &Bounds) {
        if !bounds.fault.fences() {
            return;
        }
        let is_awaited = |call: &Call| self.leaders().any(|leading| leading.waits_for(*call));
        let kept = |call: &&Call| self.passes(call) || is_awaited(call);
        self.calls = self.calls.iter().filter(kept).copied().collect();
    }
}
