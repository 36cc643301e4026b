//! A csi-cloud: a follower, a leader with its jobs, or one that was deposed.
//!
//! A leader learns that it was deposed from the store or from an edge. Until then it goes on, at
//! any later time: so a leader that was paused needs no state of its own.

use crate::edge::{Call, Op};
use crate::etcd::{Change, EdgeId, Epoch, Record, Records, Txn};

/// A csi-cloud.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Replica {
    /// It waits for the leader key. What it has seen of the store matters with
    /// [`crate::bounds::Fault::StaleMemory`] only.
    Follower(Option<Records>),
    /// It has the leader key, or had it.
    Leader(Leading),
    /// It knows that it leads no more, and is about to be started again.
    Deposed(Witness),
}

/// Who told a leader that it was deposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Witness {
    /// The store.
    Store,
    /// An edge that refused its call.
    Edge,
}

/// What a leader has in memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leading {
    /// Its epoch.
    pub epoch: Epoch,
    /// The number of the last commit that it knows.
    pub number: u8,
    /// The records.
    pub memory: Records,
    /// The edges that it told its epoch, as bits.
    pub told: u8,
    /// The one commit that is under way. It is sent until it is known to be done.
    pub writing: Option<Change>,
    /// True once it was sent again: an earlier attempt may arrive later.
    pub again: bool,
    /// A job for each name at most.
    pub jobs: Vec<Option<Job>>,
    /// A job for the lease.
    pub lease_job: Option<LeaseJob>,
}

/// A call for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// What its caller wants.
    pub kind: Kind,
    /// True while its caller waits.
    pub awaited: bool,
    /// How far it is.
    pub step: Step,
}

/// What a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A volume.
    Create,
    /// None.
    Delete,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// It was not looked at.
    Begin,
    /// This is being made durable, or waits for another commit.
    Write(Record),
    /// The call to the node is decided.
    Send(EdgeId),
    /// The call was sent.
    Sent(EdgeId),
    /// The answer is decided: OK, or a refusal.
    Answer(bool),
}

/// A message of a node about the lease. It is being made durable, or waits for another commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseJob {
    /// The node.
    pub edge: EdgeId,
    /// True if the node asks for it, false if it has released it.
    pub asks: bool,
}

impl Replica {
    /// Its memory as a leader.
    pub fn leading(&self) -> Option<&Leading> {
        match self {
            Self::Leader(leading) => Some(leading),
            Self::Follower(_) | Self::Deposed(_) => None,
        }
    }

    /// The same, to change it.
    pub fn leading_mut(&mut self) -> Option<&mut Leading> {
        match self {
            Self::Leader(leading) => Some(leading),
            Self::Follower(_) | Self::Deposed(_) => None,
        }
    }
}

impl Leading {
    /// A new leader.
    pub fn new(epoch: Epoch, number: u8, memory: Records) -> Self {
        let jobs = vec![None; memory.names.len()];
        Self { epoch, number, memory, told: 0, writing: None, again: false, jobs, lease_job: None }
    }

    /// The commit under way, as it is sent.
    pub fn txn(&self) -> Option<Txn> {
        let change = self.writing?;
        Some(Txn { epoch: self.epoch, previous: self.number, change })
    }

    /// True if it told this edge its epoch.
    pub fn has_told(&self, edge: EdgeId) -> bool {
        self.told & (1 << edge) != 0
    }

    /// The job that waits for the answer to this call.
    pub fn waits_for(&self, call: Call) -> bool {
        let name = match call.op {
            Op::Create(name) | Op::Delete(name) => name,
            Op::Grant => return false,
        };
        let sent = |job: Job| job.step == Step::Sent(call.edge) && job.kind.op(name) == call.op;
        self.epoch == call.epoch && self.jobs[name].is_some_and(sent)
    }

    /// Begins the next commit if none is under way.
    pub fn write_next(&mut self) {
        if self.writing.is_some() {
            return;
        }
        let written = |(name, job): (usize, &Option<Job>)| match job.as_ref()?.step {
            Step::Write(record) => Some(Change::Name(name, record)),
            _ => None,
        };
        let of_name = self.jobs.iter().enumerate().find_map(written);
        let of_lease = || self.lease_job.map(|job| Change::Lease(job.asks.then_some(job.edge)));
        self.writing = of_name.or_else(of_lease);
    }
}

impl Kind {
    /// The call to a node.
    pub fn op(self, name: usize) -> Op {
        match self {
            Self::Create => Op::Create(name),
            Self::Delete => Op::Delete(name),
        }
    }
}
