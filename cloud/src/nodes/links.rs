//! The links that edges hold to this cloud: one per node, and the newest wins.
//!
//! A call finds its node's link here, and waits here for the next one. What all edges are told is
//! here too, so that each link's task sends it again when it changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use ahash::HashMap;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use proto::control::hello::{PROTOCOL, True, Welcome};
use proto::control::lease::{Reply, Request};
use proto::host::clock;
use proto::host::peer_log::{LogPeer, peer_info};
use proto::host::tasks::Tasks;
use proto::link::KeepAlive;
use proto::names::{DriverName, NodeName};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::metadata::shared::Metadata;
use crate::nodes::broadcast::{Broadcast, Broadcaster, backoff_cap};
use crate::nodes::budgets::Budgets;
use crate::nodes::connections::Connections;
use crate::nodes::driver_health::DriverHealth;
use crate::nodes::greetings::Greetings;
use crate::nodes::handle::{Handle, Peer};
use crate::nodes::leading::Leading;
use crate::nodes::link_history::LinkHistory;
use crate::nodes::published_topology::{ByNode, PublishedDrivers, PublishedTopology};
use crate::nodes::scopes::Scopes;
use crate::pki::enrolment::Enrolment;
use crate::pki::issuer::CaTag;
use crate::state::affinity::{Age, VolumeAnswer};
use crate::state::authority::{Authority, Unserved};
use crate::state::known::State;
use crate::state::older_store;
use crate::state::policy::{Policy, Scope};
use crate::state::quotas::OverQuota;
use crate::state::set_apart::ReasonKind;
use crate::state::store::writer::Store;

/// The time limit for an answer of Kubernetes.
const PATIENCE: Duration = Duration::from_secs(5);
/// The interval of checks of linked edges' certificates and message budgets.
const LOOK: Duration = Duration::from_secs(30);
/// The reason given when the links of a removed node end.
pub(crate) const REMOVED: &str = "an operator removed this node";
/// The reason given when the link of a node with a revoked certificate ends.
pub(crate) const REVOKED: &str = "an operator revoked the certificate of this node";
const EXPIRED: &str = "the edge's certificate has ended; make a new one, and check both clocks";

/// Answers an edge's lease request. The room `lease` is above this one, so the function is passed
/// in.
pub type AnswerLease =
    for<'a> fn(&'a Links, &'a NodeName, &'a Arc<Handle>, Request) -> BoxFuture<'a, Option<Reply>>;

/// Asks Kubernetes for the volume with this id.
pub type AskKubernetes =
    Arc<dyn Fn(DriverName, String, Age) -> BoxFuture<'static, VolumeAnswer> + Send + Sync>;

/// Asks Kubernetes whether the scheduler selected a node for the claim of this namespace and name.
/// Without an answer the claim does not exist, or cannot be read.
pub type AskOfClaim = Arc<dyn Fn(String, String) -> BoxFuture<'static, Option<bool>> + Send + Sync>;

/// All links, by node.
pub struct Links {
    pub(super) answer_lease: AnswerLease,
    by_node: Mutex<HashMap<NodeName, Arc<Handle>>>,
    /// What earlier links have shown.
    pub(crate) history: LinkHistory,
    /// What each node said last of the CAs that it has.
    cas: Mutex<HashMap<NodeName, Option<CaTag>>>,
    leading: Leading,
    /// Calls that wait for their node's next link.
    waiting: Mutex<HashMap<NodeName, Vec<oneshot::Sender<Arc<Handle>>>>>,
    store: Store,
    tasks: Tasks,
    /// Stopped when edges are to leave.
    draining: Tasks,
    /// Changed whenever a node has a new link.
    linking: watch::Sender<()>,
    broadcaster: Arc<Broadcaster>,
    /// Links that are not welcomed yet.
    pub(super) greetings: Greetings,
    budgets: Budgets,
    /// The HTTP/2 connections of the links.
    connections: Arc<Connections>,
    /// The links that nodes may make.
    link_budgets: Budgets,
    authority: Authority,
    enrolment: Arc<Enrolment>,
    /// Not set without Kubernetes.
    published_topology: PublishedTopology,
    ask_kubernetes: OnceLock<AskKubernetes>,
    ask_of_claim: OnceLock<AskOfClaim>,
    metadata: Arc<Metadata>,
    /// The number of links made so far.
    made: AtomicU64,
}

/// The end of a wait for Kubernetes, under the caller's deadline.
fn soon(deadline: Option<Instant>) -> Instant {
    let patience = Instant::now() + PATIENCE;
    deadline.map_or(patience, |callers| callers.min(patience))
}

impl Links {
    /// An empty set of links, whose tasks are part of `tasks`.
    pub fn new(store: Store, tasks: Tasks, answer_lease: AnswerLease) -> Self {
        let cap = backoff_cap(0);
        let broadcaster = Broadcaster::new(store.clone(), tasks.clone(), Scopes::default(), cap);
        Self {
            answer_lease,
            by_node: Mutex::default(),
            history: LinkHistory::default(),
            cas: Mutex::default(),
            leading: Leading::new(store.leadership().clone(), store.cluster().cloned()),
            waiting: Mutex::default(),
            enrolment: Arc::new(Enrolment::new(store.clone(), None)),
            store,
            tasks,
            draining: Tasks::default(),
            linking: watch::Sender::default(),
            broadcaster: Arc::new(broadcaster),
            greetings: Greetings::default(),
            budgets: Budgets::default(),
            connections: Arc::default(),
            link_budgets: Budgets::default(),
            authority: Authority::default(),
            published_topology: PublishedTopology::default(),
            ask_kubernetes: OnceLock::new(),
            ask_of_claim: OnceLock::new(),
            metadata: Arc::default(),
            made: AtomicU64::new(0),
        }
    }

    /// The same with the operator's word about these drivers, the only ones that have a front.
    #[must_use]
    pub fn scoped(self, policies: &BTreeMap<DriverName, Policy>) -> Self {
        let authority = Authority::new(policies.clone());
        authority.apply(&self.store);
        let scopes = Scopes::new(policies);
        let cap = backoff_cap(0);
        let broadcaster = Broadcaster::new(self.store.clone(), self.tasks.clone(), scopes, cap);
        Self { broadcaster: Arc::new(broadcaster), authority, ..self }
    }

    /// The same, and certificates are issued by this.
    #[must_use]
    pub fn enrolling(self, enrolment: Arc<Enrolment>) -> Self {
        Self { enrolment, ..self }
    }

    /// The issuer of certificates to nodes.
    pub fn enrolment(&self) -> &Arc<Enrolment> {
        &self.enrolment
    }

    /// Lets volumes be looked up in Kubernetes. Only the first call counts.
    pub fn look_up_by(&self, ask: AskKubernetes) {
        // The second one is dropped: there is one Kubernetes.
        let _ = self.ask_kubernetes.set(ask);
    }

    /// Lets claims be read in Kubernetes. Only the first call counts.
    pub fn read_claims_by(&self, ask: AskOfClaim) {
        // The second one is dropped: there is one Kubernetes.
        let _ = self.ask_of_claim.set(ask);
    }

    /// Whether the scheduler selected a node for a claim. Without an answer it is not known within
    /// 5 s, or by the caller's deadline.
    pub(crate) async fn has_selected_node(
        &self,
        namespace: &str,
        name: &str,
        deadline: Option<Instant>,
    ) -> Option<bool> {
        let ask = self.ask_of_claim.get()?;
        let asking = ask(namespace.to_owned(), name.to_owned());
        timeout_at(soon(deadline), asking).await.ok()?
    }

    /// Asks Kubernetes about a volume. Without Kubernetes no volume is known. The answer is waited
    /// for 5 s at most, but one that has to be read anew until the caller's deadline: a large
    /// cluster takes long, and an older reading is of no use.
    pub(crate) async fn ask_of_volume(
        &self,
        driver: &DriverName,
        id: &str,
        age: Age,
        deadline: Option<Instant>,
    ) -> VolumeAnswer {
        let Some(ask) = self.ask_kubernetes.get() else { return VolumeAnswer::Unknown };
        let end = match age {
            Age::Now => deadline.unwrap_or_else(|| soon(None)),
            Age::Minute | Age::MinuteIfKnown => soon(deadline),
        };
        let asking = timeout_at(end, ask(driver.clone(), id.to_owned(), age));
        asking.await.unwrap_or(VolumeAnswer::Silent)
    }

    /// The Kubernetes metadata for edges.
    pub(crate) fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    /// The operator's settings of which node may have which driver.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Begins to lead: calls are carried out and edges are welcomed from now on. The operator's
    /// settings are applied to the records of the leader before.
    pub fn take_over(&self) {
        self.authority.apply(&self.store);
        self.leading.begin();
    }

    /// Sets nodes apart as their labels change, for as long as csi-cloud runs. Links that wait for
    /// a label record what their edges said by themselves.
    pub async fn follow_labels(&self) {
        let Some(labels) = self.authority.labels() else { return };
        let mut changes = labels.changes();
        changes.mark_changed();
        while changes.changed().await.is_ok() {
            self.authority.apply(&self.store);
        }
    }

    /// The drivers that linked nodes name and that have no front, by node.
    pub fn unserved(&self) -> Vec<(NodeName, Vec<DriverName>)> {
        let by_node = self.by_node();
        let names = |link: &Handle| link.unserved().into_iter().map(|driver| driver.name).collect();
        let some = by_node.iter().map(|(node, link)| (node.clone(), names(link)));
        some.filter(|(_, drivers): &(_, Vec<_>)| !drivers.is_empty()).collect()
    }

    /// A driver's scope, as edges are told.
    pub(crate) fn scope(&self, driver: &DriverName) -> Option<Scope> {
        self.broadcaster.scopes().of(driver, &self.store)
    }

    /// The durable state.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The tasks of all links, and of queries to their nodes.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Whether this csi-cloud leads, and since when.
    pub(crate) fn leading(&self) -> &Leading {
        &self.leading
    }

    /// Changes whenever a node has a new link.
    pub(crate) fn linking(&self) -> watch::Receiver<()> {
        self.linking.subscribe()
    }

    /// The link of a node, if it has one.
    pub fn now(&self, node: &NodeName) -> Option<Arc<Handle>> {
        self.by_node().get(node).cloned()
    }

    /// The time since a node lost its link, at most since csi-cloud leads; none if it has one.
    pub fn away(&self, node: &NodeName) -> Option<Duration> {
        if self.by_node().contains_key(node) {
            return None;
        }
        Some(self.history.lost_for(node).unwrap_or_else(|| self.leading.age()))
    }

    /// The health of a driver at a node, as its edge reports it; none without a link or a report.
    pub fn driver_health(&self, node: &NodeName, driver: &DriverName) -> Option<DriverHealth> {
        self.now(node)?.health.of(driver)
    }

    /// True if a node has a link, and its driver is up by the node's word.
    pub fn is_up(&self, node: &NodeName, driver: &DriverName) -> bool {
        self.by_node().get(node).is_some_and(|link| link.health.is_up(driver))
    }

    /// The time since a driver at a node was lost, by its link or by the node's word; none if it is
    /// there.
    pub fn driver_away(&self, node: &NodeName, driver: &DriverName) -> Option<Duration> {
        let down = || self.driver_health(node, driver)?.down();
        self.away(node).or_else(down)
    }

    /// The nodes that have a link.
    pub fn linked(&self) -> Vec<NodeName> {
        self.by_node().keys().cloned().collect()
    }

    /// True if at least half of the nodes that the store knows have a link.
    pub(crate) fn has_half(&self) -> bool {
        let nodes = self.store.read(State::staying);
        self.by_node().len() * 2 >= nodes
    }

    /// The number of links.
    pub(super) fn count(&self) -> usize {
        self.by_node().len()
    }

    /// The number of links made since this csi-cloud started.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// The number of links by transport.
    pub fn by_transport(&self) -> HashMap<&'static str, u64> {
        let mut counts = HashMap::default();
        for link in self.by_node().values() {
            *counts.entry(link.peer.transport).or_default() += 1;
        }
        counts
    }

    /// The number of links whose edge's certificate ends by then.
    pub fn ending(&self, by: SystemTime) -> usize {
        self.by_node().values().filter(|link| link.is_expired(by)).count()
    }

    /// Ends the link of a node, if it has one, and those that it is making. Make durable before
    /// that the node may not link.
    pub fn end(&self, node: &NodeName, why: &'static str) {
        self.greetings.end(node);
        if let Some(link) = self.now(node) {
            link.end(why);
        }
    }

    /// Ends all that a removed node has here: its links, and the calls that wait for its next one.
    /// Make durable before that it is removed.
    pub fn end_removed(&self, node: &NodeName) {
        self.end(node, REMOVED);
        // A call that waits hears of the end when its sender is dropped.
        self.waiting().remove(node);
    }

    /// Ends the links whose edge's certificate has ended, for as long as csi-cloud runs. It also
    /// takes back nodes that keep to their quota of messages again.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if !clock::is_doubted() {
                self.end_expired(SystemTime::now());
            }
            self.link_budgets.forget_full();
            for node in self.budgets.forget_full() {
                self.store.clear_apart(&node, None, ReasonKind::TooManyMessages);
            }
        }
    }

    /// Ends HTTP/2 connections that no call has used for as long as `limit`, while csi-cloud runs.
    pub async fn end_idle_connections(&self, limit: Duration) {
        self.connections.end_idle(limit).await;
    }

    /// The HTTP/2 connections of the links.
    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Takes one control message of the node's budget.
    ///
    /// # Errors
    /// That is more than it may send; it is set apart.
    pub(super) fn take_message(&self, node: &NodeName) -> Result<(), OverQuota> {
        let taken = self.budgets.take(node, self.store.quotas());
        taken.inspect_err(|over| self.store.refuse_over_quota(node, None, over))
    }

    /// Takes a link of the node. Its established one stays, whatever this answers.
    ///
    /// # Errors
    /// The node links too often: the reason, with both runs of csi-edge.
    pub(super) fn take_link(&self, node: &NodeName, peer: &Peer) -> Result<(), String> {
        if self.link_budgets.take_link(node) {
            return Ok(());
        }
        let established = match self.now(node) {
            Some(link) => format!("its link of {} stays", link.peer.of_run()),
            None => "it has no link now".into(),
        };
        Err(format!(
            "the node links too often: 20 at once and one a second is the limit. This is {}, and \
             {established}. Two csi-edges with one certificate do so, or one that is started again \
             and again",
            peer.of_run()
        ))
    }

    fn end_expired(&self, now: SystemTime) {
        let links = self.by_node();
        for (node, link) in links.iter().filter(|(_, link)| link.is_expired(now)) {
            warn!(%node, "the certificate of the edge has ended, and so does its link");
            self.history.ended(node, link.expires().unwrap_or(now));
            link.end(EXPIRED);
        }
    }

    /// Waits until the node has another link than `lost`. None once links are drained or stopped,
    /// because no link is accepted then, and once the node is removed, or is another machine: that
    /// one would carry out again what this one may have done.
    pub async fn next(&self, node: &NodeName, lost: &Arc<Handle>) -> Option<Arc<Handle>> {
        let next = self.next_of_any(node, lost).await?;
        (!next.peer.is_elsewhere(lost.peer.machine)).then_some(next)
    }

    /// The same, whatever its machine.
    async fn next_of_any(&self, node: &NodeName, lost: &Arc<Handle>) -> Option<Arc<Handle>> {
        let linked = {
            let by_node = self.by_node();
            if let Some(other) = by_node.get(node).filter(|link| !Arc::ptr_eq(link, lost)) {
                return Some(other.clone());
            }
            let (linked, next) = oneshot::channel();
            // Registered under the lock of the map, so that no link is missed.
            let mut waiting = self.waiting();
            let of_node = waiting.entry(node.clone()).or_default();
            of_node.retain(|waiting| !waiting.is_closed());
            of_node.push(linked);
            next
        };
        // A removal is durable before it ends what waits, so none is missed.
        if self.store.read(|state| state.is_removed(node)) {
            return None;
        }
        tokio::select! {
            biased;
            () = self.tasks.stopped() => None,
            () = self.drained() => None,
            link = linked => link.ok(),
        }
    }

    /// Makes this the node's link.
    pub(crate) fn enter(&self, node: &NodeName, handle: &Arc<Handle>) {
        if let Some(older) = self.put(node, handle) {
            peer_info!(LogPeer::Node(node), %node, "a newer link replaces the older one");
            older.end("replaced by a newer link");
        }
        let linked = self.by_node().len();
        self.broadcaster.cap(backoff_cap(linked));
        peer_info!(LogPeer::Node(node), %node, "linked");
    }

    /// Makes this the node's link; returns the link that it replaces.
    fn put(&self, node: &NodeName, handle: &Arc<Handle>) -> Option<Arc<Handle>> {
        let older = self.by_node().insert(node.clone(), handle.clone());
        if let Some(older) = &older {
            older.retire();
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        self.history.linked(node, &handle.peer);
        self.cas().insert(node.clone(), handle.peer.ca);
        for waiting in self.waiting().remove(node).unwrap_or_default() {
            // The caller may have left.
            let _ = waiting.send(handle.clone());
        }
        self.linking.send_replace(());
        older
    }

    /// Removes a link if it is still its node's, so that no call starts on it.
    pub(crate) fn remove(&self, node: &NodeName, handle: &Arc<Handle>) {
        let mut by_node = self.by_node();
        if by_node.get(node).is_some_and(|current| Arc::ptr_eq(current, handle)) {
            by_node.remove(node);
            handle.retire();
            self.history.lost(node);
        }
    }

    /// Changes with each broadcast.
    pub(super) fn broadcasts(&self) -> watch::Receiver<Broadcast> {
        self.broadcaster.broadcasts()
    }

    /// The CAs that a node last reported. None if it reported none since this csi-cloud began.
    pub(crate) fn ca_of(&self, node: &NodeName) -> Option<CaTag> {
        self.cas().get(node).copied().flatten()
    }

    /// Sets the drivers whose topology csi-cloud alone publishes, and tells the edges for which
    /// that changed.
    pub(crate) fn publishes_topology(&self, now: ByNode) {
        let links = match self.published_topology.set(now) {
            None => self.by_node().values().cloned().collect::<Vec<_>>(),
            Some(nodes) => nodes.iter().filter_map(|node| self.now(node)).collect(),
        };
        for link in links {
            link.news.notify_one();
        }
    }

    /// The drivers of a node whose topology csi-cloud alone publishes; none if that is not known.
    pub(crate) fn topology_published_at(&self, node: &NodeName) -> Option<PublishedDrivers> {
        self.published_topology.at(node)
    }

    /// Tells all edges again if another CA issues.
    pub(crate) fn issued_by(&self, ca: CaTag) {
        self.broadcaster.ca(ca);
    }

    /// Tells all edges again if a node's report has changed a driver's scope.
    pub(crate) fn refresh_scopes(&self) {
        self.broadcaster.refresh();
    }

    /// The welcome for an edge, which is sent again when it changes. For a driver without a front
    /// it has the scope that the node's own driver implies.
    pub(super) fn welcome(
        &self,
        node: &NodeName,
        unserved: &[Unserved],
        ca: Option<CaTag>,
        keep_alive: KeepAlive,
    ) -> Welcome {
        let mut scopes = self.broadcaster.scopes().at(node, &self.store);
        scopes.extend(
            unserved.iter().filter_map(|driver| Some((driver.name.clone(), driver.scope?))),
        );
        let published = self.topology_published_at(node);
        let periods = published.iter().flatten();
        let periods = periods.filter_map(|(driver, every)| Some((driver.clone(), (*every)?)));
        Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            backoff_cap_ms: u32::try_from(self.broadcaster.backoff_cap().as_millis()).ok(),
            scopes,
            node_info_every_s: periods.collect(),
            publishes_topology: published.map(|drivers| drivers.into_keys().collect()),
            leases: True,
            not_taken: True,
            metadata: self.metadata.is_on(),
            renews: self.enrolment.issuers().is_some(),
            leader_epoch: self.store.leadership().epoch(),
            watermark: older_store::watermark(&self.store, node).map(Box::new),
            keep_alive_ms: u32::try_from(keep_alive.every.as_millis()).ok(),
            renew_now: ca.is_some_and(|ca| self.enrolment.tag().is_some_and(|tag| ca != tag)),
        }
    }

    /// Tells all edges to leave. No new link is accepted; existing ones go on.
    pub fn drain(&self) {
        self.draining.stop();
    }

    /// Ends when the links are drained.
    pub fn drained(&self) -> impl Future<Output = ()> {
        self.draining.stopped()
    }

    /// True once the links are drained.
    pub fn is_drained(&self) -> bool {
        self.draining.is_stopped()
    }

    fn by_node(&self) -> MutexGuard<'_, HashMap<NodeName, Arc<Handle>>> {
        self.by_node.lock()
    }

    fn cas(&self) -> MutexGuard<'_, HashMap<NodeName, Option<CaTag>>> {
        self.cas.lock()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<NodeName, Vec<oneshot::Sender<Arc<Handle>>>>> {
        self.waiting.lock()
    }
}

#[cfg(test)]
mod tests;
