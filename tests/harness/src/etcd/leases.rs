//! Leases, and the keys that end with them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

use super::keys::refusal;

struct Lease {
    time: Duration,
    until: Instant,
    keys: BTreeSet<Vec<u8>>,
}

/// All leases.
#[derive(Default)]
pub(super) struct Leases {
    last: i64,
    by_id: BTreeMap<i64, Lease>,
}

/// An unknown lease.
pub(super) fn not_found() -> Status {
    refusal(Code::NotFound, "requested lease not found")
}

impl Leases {
    /// Makes a lease; etcd chooses its id if that is 0.
    pub(super) fn grant(&mut self, id: i64, seconds: i64) -> Result<i64, Status> {
        if self.by_id.contains_key(&id) {
            return Err(refusal(Code::FailedPrecondition, "lease already exists"));
        }
        self.last += 1;
        let id = if id == 0 { self.last } else { id };
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or_default().max(1));
        let lease = Lease { time, until: Instant::now() + time, keys: BTreeSet::new() };
        self.by_id.insert(id, lease);
        Ok(id)
    }

    /// Begins a lease's time anew, and says how long it is in seconds; 0 if it is gone.
    pub(super) fn keep_alive(&mut self, id: i64) -> i64 {
        self.by_id.get_mut(&id).map_or(0, |lease| {
            lease.until = Instant::now() + lease.time;
            seconds(lease.time)
        })
    }

    /// Ends a lease, and says which keys end with it.
    pub(super) fn end(&mut self, id: i64) -> Option<BTreeSet<Vec<u8>>> {
        self.by_id.remove(&id).map(|lease| lease.keys)
    }

    /// Fails if there is no such lease; 0 is none.
    pub(super) fn check(&self, id: i64) -> Result<(), Status> {
        if id == 0 || self.by_id.contains_key(&id) { Ok(()) } else { Err(not_found()) }
    }

    /// From now on the key ends with this lease, and with no other.
    pub(super) fn attach(&mut self, key: &[u8], id: i64) {
        for lease in self.by_id.values_mut() {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.insert(key.to_vec());
        }
    }

    /// All leases.
    pub(super) fn ids(&self) -> Vec<i64> {
        self.by_id.keys().copied().collect()
    }

    /// When the next one ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.by_id.values().map(|lease| lease.until).min()
    }

    /// Those that are over.
    pub(super) fn over(&self) -> Vec<i64> {
        let now = Instant::now();
        let over = self.by_id.iter().filter(|(_, lease)| lease.until <= now);
        over.map(|(id, _)| *id).collect()
    }

    /// A new leader of etcd begins the time of each lease anew.
    pub(super) fn begin_anew(&mut self) {
        for lease in self.by_id.values_mut() {
            lease.until = Instant::now() + lease.time;
        }
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX)
}
