//! The metrics for Prometheus.
//!
//! Labels are bounded: methods, codes and transports are fixed sets, drivers are those with a
//! front. Nodes and volumes are never labels, because there may be thousands; `csi-cloud nodes` and
//! `csi-cloud volumes` list them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use proto::csi::status::code_name;
use proto::names::DriverName;
use tonic::Code;

pub use self::labels::Hop;
use self::labels::{
    Answered, AskedApi, DriverLabel, InFlight, Named, Of, OfState, Over, Passed, PeerLabel,
    QuotaLabel, SetApart, Taken,
};
use self::replica::ReplicaGauges;
pub use self::replica::ReplicaNow;

mod labels;
mod replica;

/// In seconds: from the cost of one call here to the patience of a sidecar.
const CALL: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0];
/// In seconds: from a commit in memory to a commit on a failing disk.
const COMMIT: [f64; 12] =
    [0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];
/// The number of changes in one commit.
const CHANGES: [f64; 8] = [1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

/// All metrics. Gauges are set at each scrape.
pub struct Metrics {
    registry: Registry,
    calls: Family<Answered, Counter>,
    seconds: Family<Passed, Histogram, fn() -> Histogram>,
    in_flight: Family<InFlight, Gauge>,
    limit: Family<DriverLabel, Gauge>,
    links: Family<Over, Gauge>,
    link_ups: Counter,
    link_looks_untrusted: Counter,
    nodes: Gauge,
    nodes_removed: Gauge,
    direct_not_taken: Gauge,
    direct_not_taken_nodes: Gauge,
    driver_nodes: Family<DriverLabel, Gauge>,
    driver_nodes_linked: Family<DriverLabel, Gauge>,
    driver_nodes_set_apart: Family<SetApart, Gauge>,
    driver_nodes_health: Family<OfState, Gauge>,
    quota_refusals: Family<QuotaLabel, Counter>,
    log_suppressed: Family<PeerLabel, Counter>,
    records_bytes: Gauge,
    records_bytes_limit: Gauge,
    certificate_seconds: Family<Of, Gauge>,
    links_ending: Gauge,
    store_older: Gauge,
    clock_doubted: Gauge,
    certificates_shared: Gauge,
    homes: Family<DriverLabel, Gauge>,
    homes_unconfirmed: Family<DriverLabel, Gauge>,
    intents: Family<DriverLabel, Gauge>,
    slow: Family<DriverLabel, Counter>,
    remembered_seconds: Family<DriverLabel, Gauge>,
    queue: Gauge,
    commits: Counter,
    commit_failures: Counter,
    commit_seconds: Histogram,
    commit_changes: Histogram,
    api_requests: Family<AskedApi, Counter>,
    api_seconds: Histogram,
    replica: ReplicaGauges,
    roles: Family<Taken, Counter>,
}

/// The values of the gauges at a scrape.
pub struct Now {
    /// Known nodes, and how many of them an operator removed.
    pub nodes: (usize, usize),
    /// Links by transport.
    pub links: Vec<(&'static str, u64)>,
    /// Links established so far.
    pub link_ups: u64,
    /// Looks at links that found silent ones and ended none.
    pub link_looks_untrusted: u64,
    /// Direct volumes that no runtime took, and the nodes that report some.
    pub not_taken: (u64, usize),
    /// The refusals, by quota.
    pub quota_refusals: Vec<(&'static str, u64)>,
    /// The lines about peers that were left out of the log, by the sort of peer.
    pub log_suppressed: Vec<(&'static str, u64)>,
    /// The bytes of all nodes' records, and the most that there may be.
    pub records_bytes: (i64, u64),
    /// Seconds until the end of csi-cloud's certificate and of its CA's; negative after it.
    pub certificates: Vec<(&'static str, i64)>,
    /// Links whose edge's certificate ends within a week.
    pub links_ending: usize,
    /// True while creates and leases that were sent are missing in the store.
    pub store_older: bool,
    /// True while the wall clock is not believed, since it has jumped.
    pub clock_doubted: bool,
    /// Nodes whose certificate, or an older one, somebody else has.
    pub certificates_shared: usize,
    /// Changes that wait for a commit.
    pub queue: usize,
    /// This csi-cloud as one of several.
    pub replica: ReplicaNow,
    /// The drivers that have a front.
    pub drivers: Vec<DriverNow>,
}

/// The gauges of one driver.
pub struct DriverNow {
    /// The driver's name.
    pub driver: DriverName,
    /// Nodes with the driver, and how many of them have a link.
    pub nodes: (usize, usize),
    /// Nodes that are set apart for it, by reason.
    pub set_apart: Vec<(&'static str, usize)>,
    /// Linked nodes by the health of the driver there.
    pub health: Vec<(&'static str, usize)>,
    /// Volumes, snapshots and groups with a known home node.
    pub homes: usize,
    /// Those of them that only their own node says. A PersistentVolume may confirm some.
    pub homes_unconfirmed: usize,
    /// Creates with an unknown outcome.
    pub intents: usize,
    /// Calls in flight by stage.
    pub in_flight: Vec<(&'static str, u64)>,
    /// The limit of calls in flight.
    pub limit: usize,
}

impl Metrics {
    /// Counts an answered call.
    pub(crate) fn answered(&self, rpc: &'static str, driver: &DriverName, code: Code) {
        let driver = Named(driver.clone());
        let code = code_name(code);
        self.calls.get_or_create(&Answered { rpc, driver, code }).inc();
    }

    /// Observes the time that a call took for a hop.
    pub(crate) fn passed(&self, hop: Hop, rpc: &'static str, driver: &DriverName, time: Duration) {
        let driver = Named(driver.clone());
        self.seconds.get_or_create(&Passed { hop, rpc, driver }).observe(time.as_secs_f64());
    }

    /// Counts a list that was answered without waiting for a node.
    pub(crate) fn slow(&self, driver: &DriverName) {
        self.slow.get_or_create(&DriverLabel { driver: Named(driver.clone()) }).inc();
    }

    /// Sets the age of the oldest answer that was used instead of a question to its node.
    pub(crate) fn remembered(&self, driver: &DriverName, age: Duration) {
        let labels = DriverLabel { driver: Named(driver.clone()) };
        self.remembered_seconds
            .get_or_create(&labels)
            .set(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
    }

    /// Counts and times a request to the Kubernetes API server.
    pub(crate) fn api_request(&self, request: &'static str, outcome: &'static str, time: Duration) {
        self.api_requests.get_or_create(&AskedApi { request, outcome }).inc();
        self.api_seconds.observe(time.as_secs_f64());
    }

    /// Counts a role that this csi-cloud took among several.
    pub fn role(&self, role: &'static str) {
        self.roles.get_or_create(&Taken { role }).inc();
    }

    /// The metrics that a store's commits report to.
    pub fn commits(&self) -> Commits {
        Commits {
            commits: self.commits.clone(),
            failures: self.commit_failures.clone(),
            seconds: self.commit_seconds.clone(),
            changes: self.commit_changes.clone(),
        }
    }

    /// All metrics in the OpenMetrics text format.
    pub fn text(&self, now: &Now) -> String {
        self.set(now);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn set(&self, now: &Now) {
        self.nodes.set(whole(now.nodes.0));
        self.nodes_removed.set(whole(now.nodes.1));
        self.replica.set(now.replica);
        self.queue.set(whole(now.queue));
        self.direct_not_taken.set(i64::try_from(now.not_taken.0).unwrap_or(i64::MAX));
        self.direct_not_taken_nodes.set(whole(now.not_taken.1));
        self.records_bytes.set(now.records_bytes.0);
        self.records_bytes_limit.set(now.records_bytes.1.cast_signed());
        self.links_ending.set(whole(now.links_ending));
        self.store_older.set(now.store_older.into());
        self.clock_doubted.set(now.clock_doubted.into());
        self.certificates_shared.set(whole(now.certificates_shared));
        for (of, seconds) in &now.certificates {
            self.certificate_seconds.get_or_create(&Of { of }).set(*seconds);
        }
        self.link_ups.inner().store(now.link_ups, Ordering::Relaxed);
        let untrusted = self.link_looks_untrusted.inner();
        untrusted.store(now.link_looks_untrusted, Ordering::Relaxed);
        for (quota, refusals) in &now.quota_refusals {
            let counter = self.quota_refusals.get_or_create(&QuotaLabel { quota });
            counter.inner().store(*refusals, Ordering::Relaxed);
        }
        for (peer, lines) in &now.log_suppressed {
            let counter = self.log_suppressed.get_or_create(&PeerLabel { peer });
            counter.inner().store(*lines, Ordering::Relaxed);
        }
        for (transport, links) in &now.links {
            self.links.get_or_create(&Over { transport }).set(links.cast_signed());
        }
        for driver in &now.drivers {
            let named = || DriverLabel { driver: Named(driver.driver.clone()) };
            for (gauge, count) in [
                (&self.driver_nodes, driver.nodes.0),
                (&self.driver_nodes_linked, driver.nodes.1),
                (&self.homes, driver.homes),
                (&self.homes_unconfirmed, driver.homes_unconfirmed),
                (&self.intents, driver.intents),
                (&self.limit, driver.limit),
            ] {
                gauge.get_or_create(&named()).set(whole(count));
            }
            // Zero until a list did not wait, so that its panel has data.
            drop(self.slow.get_or_create(&named()));
            drop(self.remembered_seconds.get_or_create(&named()));
            for (reason, nodes) in &driver.set_apart {
                let labels = SetApart { driver: named().driver, reason };
                self.driver_nodes_set_apart.get_or_create(&labels).set(whole(*nodes));
            }
            for (state, nodes) in &driver.health {
                let labels = OfState { driver: named().driver, state };
                self.driver_nodes_health.get_or_create(&labels).set(whole(*nodes));
            }
            for (stage, calls) in &driver.in_flight {
                let labels = InFlight { driver: named().driver, stage };
                self.in_flight.get_or_create(&labels).set(calls.cast_signed());
            }
        }
    }

    fn register(&mut self) {
        self.register_calls();
        self.register_links();
        self.register_nodes();
        self.register_limits();
        self.register_store();
        self.register_kubernetes();
        self.replica.register(&mut self.registry);
    }

    fn register_calls(&mut self) {
        let registry = &mut self.registry;
        // The encoder appends `_total` to a counter's name.
        registry.register("calls", "Calls that were answered at a front", self.calls.clone());
        registry.register(
            "call_seconds",
            "How long calls took, by hop: front is all of it",
            self.seconds.clone(),
        );
        registry.register(
            "calls_in_flight",
            "Calls not answered yet, by how far they got",
            self.in_flight.clone(),
        );
        registry.register(
            "calls_in_flight_limit",
            "How many calls may be in flight",
            self.limit.clone(),
        );
    }

    fn register_limits(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "certificate_seconds",
            "Seconds until the end of csi-cloud's certificate, and of its CA's",
            self.certificate_seconds.clone(),
        );
        registry.register(
            "links_ending",
            "Links whose edge's certificate ends within a week",
            self.links_ending.clone(),
        );
        registry.register(
            "store_older",
            "1 while a node shows that the store is an older copy, or while it was imported and \
             not moved, until an operator accepts it",
            self.store_older.clone(),
        );
        registry.register(
            "clock_doubted",
            "1 for ten minutes after csi-cloud's clock has jumped by more than an hour",
            self.clock_doubted.clone(),
        );
        registry.register(
            "certificates_shared",
            "Nodes whose certificate, or an older one, somebody else has",
            self.certificates_shared.clone(),
        );
        let records = self.records_bytes.clone();
        registry.register("records_bytes", "Bytes of all nodes' records", records);
        registry.register(
            "records_bytes_limit",
            "How many bytes of them there may be",
            self.records_bytes_limit.clone(),
        );
    }

    fn register_links(&mut self) {
        let registry = &mut self.registry;
        registry.register("links", "Nodes that have a link, by transport", self.links.clone());
        registry.register("link_ups", "Links that were made", self.link_ups.clone());
        registry.register(
            "link_looks_untrusted",
            "Looks that found many silent links at once, or lost packets, and ended none of them",
            self.link_looks_untrusted.clone(),
        );
    }

    fn register_nodes(&mut self) {
        let registry = &mut self.registry;
        registry.register("nodes", "Nodes that ever linked", self.nodes.clone());
        registry.register(
            "nodes_removed",
            "Nodes that an operator removed",
            self.nodes_removed.clone(),
        );
        let not_taken = self.direct_not_taken.clone();
        registry.register("direct_not_taken", "Direct volumes that no runtime took", not_taken);
        let not_taken = self.direct_not_taken_nodes.clone();
        registry.register("direct_not_taken_nodes", "Nodes that have such volumes", not_taken);
        registry.register("driver_nodes", "Nodes that have the driver", self.driver_nodes.clone());
        let linked = self.driver_nodes_linked.clone();
        registry.register("driver_nodes_linked", "Nodes that have the driver and a link", linked);
        registry.register(
            "driver_nodes_set_apart",
            "Nodes that get no new volumes of the driver, by reason",
            self.driver_nodes_set_apart.clone(),
        );
        registry.register(
            "driver_nodes_health",
            "Linked nodes that have the driver, by how it is there",
            self.driver_nodes_health.clone(),
        );
        registry.register(
            "quota_refusals",
            "What was refused of nodes that are over a quota",
            self.quota_refusals.clone(),
        );
        registry.register(
            "log_lines_suppressed",
            "Lines about peers that were left out of the log",
            self.log_suppressed.clone(),
        );
        registry.register(
            "homes",
            "Volumes, snapshots and groups whose node is known",
            self.homes.clone(),
        );
        registry.register(
            "homes_unconfirmed",
            "Those of them that only their own node says, without a create or an operator",
            self.homes_unconfirmed.clone(),
        );
        registry.register(
            "intents_open",
            "Creates whose outcome nobody knows",
            self.intents.clone(),
        );
        registry.register(
            "list_slow_nodes",
            "Nodes that lists did not wait for",
            self.slow.clone(),
        );
        registry.register(
            "remembered_seconds",
            "The age of the oldest answer of a node in the last list or capacity of many nodes",
            self.remembered_seconds.clone(),
        );
    }

    fn register_store(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "store_queue",
            "Changes that wait to be made durable",
            self.queue.clone(),
        );
        registry.register(
            "roles",
            "Roles that this csi-cloud took among several",
            self.roles.clone(),
        );
        registry.register("store_commits", "Commits of the store", self.commits.clone());
        registry.register(
            "store_commit_failures",
            "Commits that failed",
            self.commit_failures.clone(),
        );
        registry.register(
            "store_commit_seconds",
            "How long commits took",
            self.commit_seconds.clone(),
        );
        registry.register(
            "store_commit_changes",
            "Changes that shared a commit",
            self.commit_changes.clone(),
        );
    }

    fn register_kubernetes(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "kubernetes_requests",
            "Requests to Kubernetes, by what came of them",
            self.api_requests.clone(),
        );
        registry.register(
            "kubernetes_request_seconds",
            "How long requests to Kubernetes took",
            self.api_seconds.clone(),
        );
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("edge_csi"),
            calls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(CALL)),
            in_flight: Family::default(),
            limit: Family::default(),
            links: Family::default(),
            link_ups: Counter::default(),
            link_looks_untrusted: Counter::default(),
            nodes: Gauge::default(),
            nodes_removed: Gauge::default(),
            direct_not_taken: Gauge::default(),
            direct_not_taken_nodes: Gauge::default(),
            driver_nodes: Family::default(),
            driver_nodes_linked: Family::default(),
            driver_nodes_set_apart: Family::default(),
            driver_nodes_health: Family::default(),
            quota_refusals: Family::default(),
            log_suppressed: Family::default(),
            records_bytes: Gauge::default(),
            records_bytes_limit: Gauge::default(),
            certificate_seconds: Family::default(),
            links_ending: Gauge::default(),
            store_older: Gauge::default(),
            clock_doubted: Gauge::default(),
            certificates_shared: Gauge::default(),
            homes: Family::default(),
            homes_unconfirmed: Family::default(),
            intents: Family::default(),
            slow: Family::default(),
            remembered_seconds: Family::default(),
            queue: Gauge::default(),
            commits: Counter::default(),
            commit_failures: Counter::default(),
            commit_seconds: Histogram::new(COMMIT),
            commit_changes: Histogram::new(CHANGES),
            api_requests: Family::default(),
            api_seconds: Histogram::new(CALL),
            replica: ReplicaGauges::default(),
            roles: Family::default(),
        };
        metrics.register();
        metrics
    }
}

/// Counts and times commits. Clones share their counters.
#[derive(Clone)]
pub struct Commits {
    commits: Counter,
    failures: Counter,
    seconds: Histogram,
    changes: Histogram,
}

impl Commits {
    /// Records a commit with this number of changes.
    pub fn count(&self, changes: usize, took: Duration, is_durable: bool) {
        self.commits.inc();
        self.failures.inc_by(u64::from(!is_durable));
        self.seconds.observe(took.as_secs_f64());
        // More than 2^52 changes do not fit into memory.
        self.changes.observe(changes as f64);
    }
}

#[cfg(test)]
impl Commits {
    /// The numbers of all commits and of failed ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.commits.get(), self.failures.get())
    }
}

/// The value of a gauge.
fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
