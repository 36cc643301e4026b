//! Metrics of this csi-cloud as one of several with one store.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The gauges of a replica. A csi-cloud that shares no store always leads.
#[derive(Default)]
pub(super) struct ReplicaGauges {
    leads: Gauge,
    epoch: Gauge,
    commit: Gauge,
    trouble: Gauge,
    read_backs: Counter,
}

/// Their values at a scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNow {
    /// True if it leads.
    pub leads: bool,
    /// The epoch of the last leader; 0 if there was none.
    pub epoch: u64,
    /// The last commit that its state has.
    pub commit: u64,
    /// True if etcd cannot be used.
    pub trouble: bool,
    /// Commits whose answer was lost.
    pub read_backs: u64,
}

impl ReplicaGauges {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "replica_leads",
            "1 if this csi-cloud leads, or is the only one",
            self.leads.clone(),
        );
        registry.register("replica_epoch", "The epoch of the last leader", self.epoch.clone());
        registry.register(
            "replica_commit",
            "The last commit in etcd that this csi-cloud has",
            self.commit.clone(),
        );
        registry.register(
            "replica_trouble",
            "1 while this csi-cloud cannot use etcd",
            self.trouble.clone(),
        );
        registry.register(
            "store_read_backs",
            "Reads of whether a commit in etcd was made, as its answer was lost",
            self.read_backs.clone(),
        );
    }

    pub(super) fn set(&self, now: ReplicaNow) {
        self.leads.set(i64::from(now.leads));
        self.epoch.set(now.epoch.cast_signed());
        self.commit.set(now.commit.cast_signed());
        self.trouble.set(i64::from(now.trouble));
        self.read_backs.inner().store(now.read_backs, Ordering::Relaxed);
    }
}
