//! The links that edges hold to this cloud: one for each node, the newest wins.
//!
//! HTTP/2 on a link starts with its first call, since most edges are idle most of the time.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use futures_channel::mpsc;
use proto::host::chain;
use proto::host::tasks::Tasks;
use proto::http2::limits::MAX_PASSING;
use proto::http2::upstream;
use proto::http2::upstream::Upstream;
use proto::link::{Io, Kind, LinkError};
use proto::names::{DriverName, NodeName};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot, watch};
use tokio::time::Instant;

use super::scopes::Scopes;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;

/// Calls on their way on one link; more are refused, since each holds its request in memory.
const MAX_CALLS: usize = 2048;

pub(super) type Want = (Kind, oneshot::Sender<Result<Io, LinkError>>);

/// Answers what an edge says of a lease. It stands above this room, so it is handed in.
pub type AnswerLease =
    for<'a> fn(
        &'a Links,
        &'a NodeName,
        &'a Arc<Handle>,
        proto::control::lease::Request,
    ) -> futures_util::future::BoxFuture<'a, Option<proto::control::lease::Reply>>;

/// All links, by node.
pub struct Links {
    pub(super) answer_lease: AnswerLease,
    by_node: StdMutex<HashMap<NodeName, Arc<Handle>>>,
    /// When the link of each node was lost that has none now.
    pub(super) lost: StdMutex<HashMap<NodeName, Instant>>,
    /// When links could first be made.
    begun: Instant,
    /// Those whose call was on a link that is lost.
    waiting: StdMutex<HashMap<NodeName, Vec<oneshot::Sender<Arc<Handle>>>>>,
    pub(super) store: Store,
    pub(super) tasks: Tasks,
    /// Told to stop when edges are to go elsewhere.
    draining: Tasks,
    /// Told whenever a node has a new link.
    linking: watch::Sender<()>,
    /// What edges were told last.
    pub(super) told: watch::Sender<Told>,
    /// What edges are told of their drivers.
    pub(super) scopes: Scopes,
    /// How many links were made so far.
    made: AtomicU64,
}

/// What all edges are told, and again when it changes.
pub(super) struct Told {
    /// It grows with the largest fleet seen.
    pub(super) backoff_cap: Duration,
    /// Those of all drivers; each edge is told of its own.
    pub(super) scopes: BTreeMap<DriverName, Scope>,
}

/// What a call needs of a link.
pub struct Handle {
    calls: Mutex<Option<Upstream>>,
    bulk: Mutex<Option<Upstream>>,
    want: mpsc::Sender<Want>,
    room: Semaphore,
    passing: Arc<Semaphore>,
    /// Stopped when the link ends; what runs on the link is part of it.
    pub(super) tasks: Tasks,
    /// Whether it is its node's: no newer one is there, and the edge has not said goodbye on it.
    pub(super) in_use: AtomicBool,
    /// Whether it was said that its node has as many volumes as may be its own.
    full: AtomicBool,
    /// When the link was made.
    pub(crate) begun: Instant,
    /// Who is at its other end.
    pub(crate) peer: Peer,
}

/// What is shown of the other end of a link.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// `wss`, `quic`, or empty if the link was not made over a network.
    pub transport: &'static str,
    /// Where it dialed from, as far as we see; none if the link was not made over a network.
    pub address: Option<SocketAddr>,
    /// The version of csi-edge.
    pub version: Box<str>,
    /// Whether it says which volumes it has that one guest owns.
    pub leases: bool,
}

impl Links {
    /// No links yet. Their tasks are part of `tasks`.
    pub fn new(store: Store, tasks: Tasks, answer_lease: AnswerLease) -> Self {
        let told =
            watch::Sender::new(Told { backoff_cap: backoff_cap(0), scopes: BTreeMap::new() });
        let (by_node, waiting, lost, draining, linking) = Default::default();
        let (begun, made) = (Instant::now(), AtomicU64::new(0));
        let scopes = Scopes::default();
        Self {
            answer_lease,
            by_node,
            waiting,
            lost,
            begun,
            store,
            tasks,
            draining,
            linking,
            told,
            scopes,
            made,
        }
    }

    /// The same with the operator's word on how far the volumes of these drivers reach.
    #[must_use]
    pub fn scoped(self, policies: &BTreeMap<DriverName, Policy>) -> Self {
        Self { scopes: Scopes::new(policies), ..self }
    }

    /// How far a driver's volumes reach, as edges are told.
    pub(crate) fn scope(&self, driver: &DriverName) -> Option<Scope> {
        self.scopes.of(driver, &self.store)
    }

    /// What is durable.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The tasks of all links; what asks nodes by itself is one of them.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// How long there could be links by now.
    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Changes whenever a node has a new link.
    pub(crate) fn linking(&self) -> watch::Receiver<()> {
        self.linking.subscribe()
    }

    fn waiting(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<NodeName, Vec<oneshot::Sender<Arc<Handle>>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn map(&self) -> std::sync::MutexGuard<'_, HashMap<NodeName, Arc<Handle>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link of a node, if it has one.
    pub fn now(&self, node: &NodeName) -> Option<Arc<Handle>> {
        self.map().get(node).cloned()
    }

    /// For how long a node has had no link, this csi-cloud's life at most; none if it has one.
    pub fn away(&self, node: &NodeName) -> Option<Duration> {
        if self.map().contains_key(node) {
            return None;
        }
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).get(node).copied();
        Some(lost.unwrap_or(self.begun).elapsed())
    }

    /// The nodes that have a link.
    pub fn linked(&self) -> Vec<NodeName> {
        self.map().keys().cloned().collect()
    }

    /// How many links were made since this csi-cloud began.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// How many nodes have a link, by transport.
    pub fn by_transport(&self) -> HashMap<&'static str, u64> {
        let mut counts = HashMap::new();
        for link in self.map().values() {
            *counts.entry(link.peer.transport).or_default() += 1;
        }
        counts
    }

    /// Ends the link of a node, if it has one.
    pub fn end(&self, node: &NodeName) {
        if let Some(link) = self.now(node) {
            link.tasks.stop();
        }
    }

    /// Waits until the node has another link than `lost`. None if this cloud stops before: it then takes no
    /// more links.
    pub async fn next(&self, node: &NodeName, lost: &Arc<Handle>) -> Option<Arc<Handle>> {
        let linked = {
            let map = self.map();
            if let Some(other) = map.get(node).filter(|link| !Arc::ptr_eq(link, lost)) {
                return Some(other.clone());
            }
            let (linked, next) = oneshot::channel();
            // Under the map's lock, so that no link comes in between.
            let mut waiting = self.waiting();
            let of_node = waiting.entry(node.clone()).or_default();
            of_node.retain(|waiting| !waiting.is_closed());
            of_node.push(linked);
            next
        };
        tokio::select! {
            biased;
            () = self.tasks.stopped() => None,
            () = self.drained() => None,
            link = linked => link.ok(),
        }
    }

    /// Makes this the link of a node; gives back the one that it replaces.
    pub(super) fn put(&self, node: &NodeName, handle: &Arc<Handle>) -> Option<Arc<Handle>> {
        let older = self.map().insert(node.clone(), handle.clone());
        if let Some(older) = &older {
            older.in_use.store(false, Ordering::SeqCst);
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
        for waiting in self.waiting().remove(node).unwrap_or_default() {
            // Who left does not want it any more.
            let _ = waiting.send(handle.clone());
        }
        self.linking.send_replace(());
        older
    }

    /// Tells all edges to go elsewhere. No link is taken any more; those that are there go on.
    pub fn drain(&self) {
        self.draining.stop();
    }

    /// Ends when the links are drained.
    pub fn drained(&self) -> impl Future<Output = ()> {
        self.draining.stopped()
    }

    /// Whether the links are drained.
    pub fn is_drained(&self) -> bool {
        self.draining.is_stopped()
    }
}

impl Handle {
    pub(crate) fn new(peer: Peer, want: mpsc::Sender<Want>, tasks: Tasks) -> Self {
        Self {
            calls: Mutex::default(),
            bulk: Mutex::default(),
            want,
            room: Semaphore::new(MAX_CALLS),
            passing: Arc::new(Semaphore::new(MAX_PASSING)),
            tasks,
            in_use: AtomicBool::new(true),
            full: AtomicBool::default(),
            begun: Instant::now(),
            peer,
        }
    }

    /// Whether the link still holds.
    pub fn is_up(&self) -> bool {
        !self.tasks.is_stopped()
    }

    /// Whether it is its node's link: no newer one is there, and the edge has not said goodbye on it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::SeqCst)
    }

    /// Notes that the node has as many leases as it may; true the first time.
    pub(crate) fn note_full(&self) -> bool {
        !self.full.swap(true, Ordering::Relaxed)
    }

    /// Room for one more call.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn room(&self) -> Result<SemaphorePermit<'_>, Error> {
        self.room.try_acquire().map_err(|_| Error::Full(MAX_CALLS))
    }

    /// Room for one more stream that is passed on as it arrives.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn passing(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.passing.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_PASSING))
    }

    /// The connection for this kind of calls. Who comes first begins it, the others wait for that.
    ///
    /// # Errors
    /// The link ended, or opens no byte stream.
    pub async fn upstream(&self, kind: Kind) -> Result<Upstream, LinkError> {
        let slot = if kind == Kind::Calls { &self.calls } else { &self.bulk };
        if let Some(sender) = slot.try_lock().ok().and_then(|slot| open(&slot)) {
            return Ok(sender);
        }
        // Boxed: every call would have room for it.
        Box::pin(self.begin(kind, slot)).await
    }

    async fn begin(
        &self,
        kind: Kind,
        slot: &Mutex<Option<Upstream>>,
    ) -> Result<Upstream, LinkError> {
        let mut slot = slot.lock().await;
        if let Some(sender) = open(&slot) {
            return Ok(sender);
        }
        let gone = || LinkError::Closed("it ended before the call was sent".into());
        let (answer, opened) = oneshot::channel();
        self.want.clone().try_send((kind, answer)).map_err(|_| gone())?;
        let io = opened.await.map_err(|_| gone())??;
        let begun = upstream::connect(io).await.map_err(|error| LinkError::Closed(chain(&error)));
        let (sender, connection) = begun?;
        self.tasks.spawn_until_stop("link http2", async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %chain(&error), "HTTP/2 on a link ended");
            }
        });
        *slot = Some(sender.clone());
        Ok(sender)
    }
}

/// The connection that was begun, while it holds.
fn open(slot: &Option<Upstream>) -> Option<Upstream> {
    slot.as_ref().filter(|sender| !sender.is_closed()).cloned()
}

/// The longest that an edge should wait before it dials again: about 1,000 links can be made in a second. In
/// steps of two, so that it seldom changes as a fleet grows.
pub(super) fn backoff_cap(linked: usize) -> Duration {
    let seconds = u64::try_from(linked / 1000).unwrap_or(u64::MAX).clamp(2, 30);
    Duration::from_secs(1 << seconds.ilog2())
}
