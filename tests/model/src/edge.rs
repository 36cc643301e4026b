//! A node: its volumes, its fence, and what it does with the lease.
//!
//! The fence is the greatest epoch that the node was told. It is durable.

use crate::etcd::{EdgeId, Epoch};

/// What a call asks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// To make the volume of this name.
    Create(usize),
    /// To delete it.
    Delete(usize),
    /// Nothing: it tells the node that it has the lease.
    Grant,
}

impl Op {
    /// True if both are about the same name, or about the lease.
    pub fn is_about(self, other: Self) -> bool {
        match (self, other) {
            (Self::Grant, Self::Grant) => true,
            (Self::Create(one) | Self::Delete(one), Self::Create(two) | Self::Delete(two)) => {
                one == two
            }
            _ => false,
        }
    }
}

/// A message of a leader on its way to a node, for as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// Whose it is.
    pub epoch: Epoch,
    /// Where it goes.
    pub edge: EdgeId,
    /// What it asks.
    pub op: Op,
}

/// What a node does with the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Nothing.
    Free,
    /// It has asked for it.
    Wanted,
    /// It uses the volume.
    Held,
    /// It uses the volume no more, and nobody has confirmed that it was told.
    Released,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The greatest epoch that it was told.
    pub fence: Epoch,
    /// The epoch of the leader that its newest link leads to. Only without a fence is it another.
    pub link: Epoch,
    /// The greatest epoch of a call that it carried out.
    pub ran: Epoch,
    /// True once it carried out a call after one of a later leader.
    pub ran_stale: bool,
    /// The names whose volumes it has.
    pub volumes: Vec<bool>,
    /// What it does with the lease.
    pub lease: Use,
}

impl Edge {
    /// A new node.
    pub fn new(names: usize) -> Self {
        Self {
            fence: 0,
            link: 0,
            ran: 0,
            ran_stale: false,
            volumes: vec![false; names],
            lease: Use::Free,
        }
    }

    /// Carries a call out.
    pub fn run(&mut self, call: Call) {
        self.ran_stale |= call.epoch < self.ran;
        self.ran = self.ran.max(call.epoch);
        match call.op {
            Op::Create(name) => self.volumes[name] = true,
            Op::Delete(name) => self.volumes[name] = false,
            Op::Grant if self.lease == Use::Wanted => self.lease = Use::Held,
            Op::Grant => {}
        }
    }
}
