//! How much of the world a model has, and which rule it breaks.
//!
//! A model without a fault must keep all promises. One with a fault must break one, or the model
//! proves nothing about the rule that the fault leaves out.

/// What is in a model. The number of its states grows fast with each.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// csi-clouds with one store.
    pub replicas: usize,
    /// Nodes.
    pub edges: u8,
    /// Names that callers create and delete, again and again.
    pub names: usize,
    /// How often the leader key is got.
    pub elections: u8,
    /// True if nodes ask for the lease of a direct volume.
    pub leases: bool,
    /// The rule that is left out.
    pub fault: Fault,
}

/// A rule that a model leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: this is how csi-cloud and csi-edge are meant to be.
    None,
    /// An edge carries out each call, whoever led when it was sent.
    NoFence,
    /// A leader calls an edge that does not know its epoch.
    EpochNotTold,
    /// An edge that starts again has forgotten the epochs it was told.
    FenceForgotten,
    /// A commit does not compare the leader key.
    NoCompare,
    /// A commit whose answer was lost counts as done.
    NoReadBack,
    /// A commit that was not done when it was read back gives way to another one.
    AnotherCommit,
    /// A commit that a full store refused counts as not done.
    FullIsNotDone,
    /// A follower that gets the key leads with what it had seen of the store before.
    StaleMemory,
    /// A leader answers its caller though its commit was refused.
    DeposedAnswers,
}

impl Fault {
    /// True if an edge refuses the calls of a leader that it knows to be deposed.
    pub fn fences(self) -> bool {
        !matches!(self, Self::NoFence | Self::EpochNotTold | Self::FenceForgotten)
    }
}
