//! The store of all replicas: linearizable, with a leader key that may go at any time.
//!
//! A transaction is in the store as a whole or not at all. It may arrive late and twice. Its answer
//! may be lost.

/// The epoch of a leader: a later leader has a greater one.
pub type Epoch = u8;

/// A node.
pub type EdgeId = u8;

/// The number of the last commit. Only differences to it matter, so it is always this one.
pub const NUMBER: u8 = 2;

/// What the store has of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Record {
    /// Nothing: it may be created anywhere.
    None,
    /// Its create may have been sent to this node.
    Intent(EdgeId),
    /// Its volume is at this node.
    Home(EdgeId),
}

/// What the store has, and what a replica has of it in memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Records {
    /// By name.
    pub names: Vec<Record>,
    /// The node that has the lease.
    pub lease: Option<EdgeId>,
}

impl Records {
    /// Those of a new store.
    pub fn new(names: usize) -> Self {
        Self { names: vec![Record::None; names], lease: None }
    }

    /// Makes a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Name(name, record) => self.names[name] = record,
            Change::Lease(edge) => self.lease = edge,
        }
    }
}

/// A change of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Of a name.
    Name(usize, Record),
    /// Of the lease.
    Lease(Option<EdgeId>),
}

/// A commit on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Txn {
    /// Whose it is: compared with the leader key.
    pub epoch: Epoch,
    /// The number of the commit before: compared with that of the store.
    pub previous: u8,
    /// What it changes.
    pub change: Change,
}

/// What the leader key and the number of the last commit say of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was done.
    Done,
    /// It was not done, and may be still.
    NotDone,
    /// Its leader was deposed.
    Deposed,
}

/// The store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etcd {
    /// How often the leader key was got, so the last epoch.
    pub elections: u8,
    /// The epoch of the leader key; none while nobody has it.
    pub leader: Option<Epoch>,
    /// The number of the last commit.
    pub number: u8,
    /// All records.
    pub records: Records,
    /// The epoch of the last commit.
    pub last: Epoch,
    /// True once a commit was not of the leader in office, or of an earlier one than the commit
    /// before.
    pub interleaved: bool,
}

impl Etcd {
    /// A new store.
    pub fn new(names: usize) -> Self {
        Self {
            elections: 0,
            leader: None,
            number: NUMBER,
            records: Records::new(names),
            last: 0,
            interleaved: false,
        }
    }

    /// True if the compares of a commit hold.
    pub fn compares(&self, txn: Txn, leader_key: bool) -> bool {
        txn.previous == self.number && (!leader_key || self.leader == Some(txn.epoch))
    }

    /// Makes a commit. It is the last one from now on.
    pub fn commit(&mut self, txn: Txn) {
        self.interleaved |= self.leader != Some(txn.epoch) || txn.epoch < self.last;
        self.records.apply(txn.change);
        self.number += 1;
        self.last = txn.epoch;
    }

    /// What a read of the leader key and of the number tells the leader whose commit this is.
    pub fn judge(&self, txn: Txn) -> Verdict {
        if self.leader != Some(txn.epoch) {
            Verdict::Deposed
        } else if self.number == txn.previous {
            Verdict::NotDone
        } else {
            Verdict::Done
        }
    }
}
