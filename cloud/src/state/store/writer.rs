//! The store: durable records of homes, intents, nodes, drivers and leases.
//!
//! Nothing acts on a change before it is durable: [`Store::read`] shows committed changes only. One
//! task makes the changes in order, see `write_loop`. With several replicas, only the leader's task
//! makes changes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use proto::host::peer_log::{LogPeer, peer_info, peer_warn};
use proto::host::tasks::{TaskKind, Tasks};
use proto::names::{DriverName, NodeName};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::backend::{Backend, StoreError};
use super::leadership::{Leadership, Role};
use super::replicated::Cluster;
use super::write_loop;
use super::write_loop::{Job, Writes};
use crate::state::clock;
use crate::state::colocated::ColocatedQueue;
use crate::state::known::{NamedNodes, State};
use crate::state::not_taken::NotTakenReports;
use crate::state::quotas::{OverQuota, Quota, Quotas, Refusals};
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::starts::Lack;
use crate::state::trust::{NoRandomness, Secrets, TrustChange};
use crate::state::txn::Txn;

/// The number of changes that may wait; more callers wait for room in the queue.
const QUEUE: usize = 4096;
/// The time for which a replica waits for another one to make the secret keys.
const SECRETS: Duration = Duration::from_secs(60);
/// The interval of its checks.
const LOOK: Duration = Duration::from_millis(50);

/// The interval in which the disk of a store that failed is tried.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The reason why there are no secret keys.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// They cannot be made.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// They cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The durable state, and the way to change it. Clones share the store.
#[derive(Clone)]
pub struct Store {
    state: Arc<RwLock<State>>,
    jobs: mpsc::Sender<Job>,
    colocated: Arc<ColocatedQueue>,
    not_taken: Arc<NotTakenReports>,
    quotas: Arc<Quotas>,
    refusals: Arc<Refusals>,
    holds_creates: bool,
    leadership: Leadership,
    cluster: Option<Arc<Cluster>>,
    writable_again: CancellationToken,
}

impl Store {
    /// Loads the records of a backend and starts the writing task. The task ends with the last
    /// clone, or when `tasks` stop.
    ///
    /// # Errors
    /// The backend cannot be read.
    pub fn open(mut backend: Box<dyn Backend>, tasks: &Tasks) -> Result<Self, StoreError> {
        let mut state = State::default();
        backend.load(&mut |change| state.apply(change))?;
        let state = Arc::new(RwLock::new(state));
        let (store, queue) = Self::over(state.clone(), None);
        let writable = store.writable_again.clone();
        let writing = write_loop::run(state, queue, Writes::Own(backend), tasks.clone());
        let stop = tasks.clone();
        tasks.spawn(TaskKind::All("store"), async move {
            // Its queue has ended, so all callers learn meanwhile that the store is closed.
            let Some(failed) = writing.await else { return };
            tokio::select! {
                biased;
                () = stop.stopped() => {}
                is_writable = wait_for_disk(failed) => if is_writable { writable.cancel() },
            }
        });
        Ok(store)
    }

    /// Ends when a commit has failed and a csi-cloud that is started again could write. This one
    /// should end then, because only a new start reads from the disk what became of the commit. A
    /// start before that would fail.
    pub async fn writable_again(&self) {
        self.writable_again.cancelled().await;
    }

    /// The store over a state, as one of several replicas or alone; and its queue of changes.
    pub(super) fn over(
        state: Arc<RwLock<State>>,
        cluster: Option<Arc<Cluster>>,
    ) -> (Self, mpsc::Receiver<Job>) {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let alone = || {
            let state = state.read();
            Leadership::alone(state.leader_epoch())
        };
        let leadership =
            cluster.as_ref().map_or_else(alone, |cluster| cluster.leadership().clone());
        let store = Self {
            state,
            jobs,
            colocated: Arc::default(),
            not_taken: Arc::default(),
            quotas: Arc::default(),
            refusals: Arc::default(),
            holds_creates: false,
            leadership,
            cluster,
            writable_again: CancellationToken::new(),
        };
        (store, queue)
    }

    /// The replicas, if the store has several.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// Whether this csi-cloud may change the store, and answer finally.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// This store, with this replica's leadership.
    #[must_use]
    pub fn with_leadership(self, leadership: Leadership) -> Self {
        Self { leadership, ..self }
    }

    /// The same store with these quotas of each node.
    #[must_use]
    pub fn with_quotas(self, quotas: Quotas) -> Self {
        Self { quotas: Arc::new(quotas), ..self }
    }

    /// The quotas of each node.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// The same store, which may lack creates that were sent, if this is true.
    #[must_use]
    pub fn with_creates_held(self, holds_creates: bool) -> Self {
        Self { holds_creates, ..self }
    }

    /// The reason why the store may lack creates and leases. `None` if it has all of them.
    pub fn may_lack_creates(&self) -> Option<Lack> {
        if self.holds_creates {
            return Some(Lack::Said);
        }
        self.read(|state| state.starts().lack())
    }

    /// What was refused because of quotas.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// True while it accepts changes.
    pub fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// The number of changes that wait.
    pub fn queued(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// The reports of edges about direct volumes that no runtime took. They are not durable.
    pub fn not_taken(&self) -> &NotTakenReports {
        &self.not_taken
    }

    /// The volumes that were colocated with their source. They are not durable.
    pub fn colocated(&self) -> &ColocatedQueue {
        &self.colocated
    }

    /// Reads the state. `look` must be short, because changes wait for it.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        // A panic of a reader cannot leave the state half changed.
        look(&self.state.read())
    }

    /// Keeps which nodes the operator names for a driver. Never called from within [`Self::read`].
    pub(in crate::state) fn set_named(&self, driver: DriverName, nodes: NamedNodes) {
        let mut state = self.state.write();
        state.set_named(driver, nodes);
    }

    /// Keeps whether the labels that select a driver's nodes are still unknown. Never called from
    /// within [`Self::read`].
    pub(crate) fn set_awaits_labels(&self, driver: &DriverName, awaits: bool) {
        let mut state = self.state.write();
        state.set_awaits_labels(driver, awaits);
    }

    /// Sets a node apart for a driver, or for all; it is logged once. Never called from within
    /// [`Self::read`]. See [`crate::state::set_apart`].
    pub fn set_apart(&self, node: &NodeName, driver: Option<&DriverName>, reason: Reason) {
        let why = reason.to_string();
        let mut state = self.state.write();
        let is_news = state.set_apart(node, driver, reason);
        drop(state);
        if is_news {
            let driver = driver.map(ToString::to_string);
            peer_warn!(
                LogPeer::Node(node), %node, driver, why, "set apart: it gets no new volumes"
            );
        }
    }

    /// Removes a reason for which a node is set apart. Never called from within [`Self::read`].
    pub fn clear_apart(&self, node: &NodeName, driver: Option<&DriverName>, kind: ReasonKind) {
        // Asked for with each answer of a node, and nearly never there.
        let has = self.read(|state| {
            let mut reasons = state.apart().at(node);
            reasons.any(|(of, apart)| of == driver && apart.reason.kind() == kind)
        });
        if !has {
            return;
        }
        let mut state = self.state.write();
        let was_apart = state.clear_apart(node, driver, kind);
        drop(state);
        if was_apart {
            let driver = driver.map(ToString::to_string);
            peer_info!(
                LogPeer::Node(node), %node, driver, reason = kind.name(),
                "not set apart any more for this reason"
            );
        }
    }

    /// Sets a node apart that is over a quota, and counts the refusal. Never called from within
    /// [`Self::read`].
    pub fn refuse_over_quota(
        &self,
        node: &NodeName,
        driver: Option<&DriverName>,
        over: &OverQuota,
    ) {
        self.refusals.count(over.quota);
        let what = over.to_string();
        let reason = match over.quota {
            Quota::ControlMessages => Reason::TooManyMessages { what },
            Quota::Drivers
            | Quota::Segments
            | Quota::StringBytes
            | Quota::NodeIdBytes
            | Quota::Volumes
            | Quota::DurableBytes
            | Quota::ListBytes
            | Quota::StoreBytes => Reason::OverLimit { what },
        };
        self.set_apart(node, driver, reason);
    }

    /// The reason why a node is set apart for a driver; none if it is not.
    pub fn why_apart(&self, node: &NodeName, driver: &DriverName) -> Option<Reason> {
        self.read(|state| state.apart().why(node, driver).map(|apart| apart.reason.clone()))
    }

    /// The secret keys of csi-cloud. The first call makes them, so they are durable before use. A
    /// replica that follows waits until the one that leads has made them.
    ///
    /// # Errors
    /// They cannot be made, or not be kept.
    pub async fn secrets(&self) -> Result<Secrets, SecretsError> {
        let end = Instant::now() + SECRETS;
        loop {
            if let Some(secrets) = self.read(|state| state.trust().secrets().cloned()) {
                return Ok(secrets);
            }
            match self.check_leads() {
                Ok(()) => return self.make_secrets().await,
                Err(error) if Instant::now() >= end => return Err(error.into()),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn make_secrets(&self) -> Result<Secrets, SecretsError> {
        let made = Secrets::generate()?;
        let keep = move |txn: &mut Txn<'_>| {
            // Another task may have been faster.
            if let Some(secrets) = txn.secrets() {
                return secrets.clone();
            }
            let begun = if txn.state().is_empty() { clock::now() / 1000 } else { 0 };
            let made = Secrets { begun, ..made };
            txn.set_trust(TrustChange::Secrets(made.clone()));
            made
        };
        Ok(self.write(keep).await?)
    }

    /// Makes a change and waits until it is durable. `change` sees all changes before it. It is
    /// made even if the caller does not wait.
    ///
    /// # Errors
    /// The change is not durable, and nobody sees it.
    pub async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Txn<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, outcome) = oneshot::channel();
        let job: Job = Box::new(move |txn| {
            let value = change(txn);
            // The caller may have left.
            Box::new(move |durable| drop(done.send(durable.map(|()| value))))
        });
        self.check_leads()?;
        self.jobs.send(job).await.map_err(|_| self.closed())?;
        outcome.await.map_err(|_| self.closed())?
    }

    /// # Errors
    /// Another csi-cloud makes the changes.
    fn check_leads(&self) -> Result<(), StoreError> {
        match self.leadership.role() {
            Role::Alone(_) | Role::Leading(_) => Ok(()),
            Role::Following(Some(leader)) => Err(StoreError::Follows { leader: leader.name }),
            Role::Following(None) => Err(StoreError::NoLeader),
            Role::Deposed => Err(StoreError::Deposed),
        }
    }

    fn closed(&self) -> StoreError {
        match self.leadership.role() {
            Role::Deposed => StoreError::Deposed,
            Role::Alone(_) | Role::Leading(_) | Role::Following(_) => StoreError::Closed,
        }
    }
}

/// Waits until a store that is opened again could write. Returns `false` if only a person can tell.
async fn wait_for_disk(mut failed: Box<dyn Backend>) -> bool {
    loop {
        let trying = tokio::task::spawn_blocking(move || {
            let tried = failed.try_again();
            (failed, tried)
        });
        let Ok((backend, tried)) = trying.await else { return false };
        failed = backend;
        match tried {
            Some(Ok(())) => return true,
            Some(Err(error)) => debug!(%error, "the disk of the store takes nothing yet"),
            None => return false,
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}
