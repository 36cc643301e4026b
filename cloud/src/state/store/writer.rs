//! The store: durable records of homes, intents, nodes, drivers and leases.
//!
//! Nothing acts on a change before it is durable: [`Store::read`] shows committed changes only. One
//! task makes the changes in order; changes that arrive during a commit share the next one.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use super::backend::{Backend, StoreError};
use super::leadership::Leadership;
use crate::state::colocated::ColocatedQueue;
use crate::state::known::State;
use crate::state::not_taken::NotTakenReports;
use crate::state::quotas::{OverQuota, Quota, Quotas, Refusals};
use crate::state::record::Change;
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::trust::{NoRandomness, Secrets, TrustChange};
use crate::state::txn::Txn;

/// The number of changes that may wait; more callers wait for room in the queue.
const QUEUE: usize = 4096;
/// The largest number of changes in one commit.
const BATCH: usize = 1024;

/// Why there are no secret keys.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// They cannot be made.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// They cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
}

type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
type Job = Box<dyn FnOnce(&mut Txn<'_>) -> Settle + Send>;

/// The durable state, and the way to change it. Clones share the store.
#[derive(Clone)]
pub struct Store {
    state: Arc<RwLock<State>>,
    jobs: mpsc::Sender<Job>,
    colocated: Arc<ColocatedQueue>,
    not_taken: Arc<NotTakenReports>,
    quotas: Arc<Quotas>,
    refusals: Arc<Refusals>,
    leadership: Leadership,
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
        let (jobs, queue) = mpsc::channel(QUEUE);
        tasks.spawn("store", run(state.clone(), queue, backend, tasks.clone()));
        Ok(Self {
            state,
            jobs,
            colocated: Arc::default(),
            not_taken: Arc::default(),
            quotas: Arc::default(),
            refusals: Arc::default(),
            leadership: Leadership::alone(None),
        })
    }

    /// Whether this csi-cloud may change the store, and answer finally.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
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

    /// What edges report of direct volumes that no runtime took. It is not durable.
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
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps which nodes the operator names for a driver. Never called from within [`Self::read`].
    pub(in crate::state) fn set_named(&self, driver: DriverName, nodes: BTreeSet<NodeName>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.set_named(driver, nodes);
    }

    /// Sets a node apart for a driver, or for all; it is logged once. Never called from within
    /// [`Self::read`]. See [`crate::state::set_apart`].
    pub fn set_apart(&self, node: &NodeName, driver: Option<&DriverName>, reason: Reason) {
        let why = reason.to_string();
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let is_news = state.set_apart(node, driver, reason);
        drop(state);
        if is_news {
            let driver = driver.map(ToString::to_string);
            warn!(%node, driver, why, "set apart: it gets no new volumes");
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
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let was_apart = state.clear_apart(node, driver, kind);
        drop(state);
        if was_apart {
            let driver = driver.map(ToString::to_string);
            info!(%node, driver, reason = kind.name(), "not set apart any more for this reason");
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
            _ => Reason::OverLimit { what },
        };
        self.set_apart(node, driver, reason);
    }

    /// Why a node is set apart for a driver; none if it is not.
    pub fn why_apart(&self, node: &NodeName, driver: &DriverName) -> Option<Reason> {
        self.read(|state| state.apart().why(node, driver).map(|apart| apart.reason.clone()))
    }

    /// The secret keys of csi-cloud. The first call makes them, so they are durable before use.
    ///
    /// # Errors
    /// They cannot be made, or not be kept.
    pub async fn secrets(&self) -> Result<Secrets, SecretsError> {
        if let Some(secrets) = self.read(|state| state.trust().secrets().cloned()) {
            return Ok(secrets);
        }
        let made = Secrets::generate()?;
        let keep = move |txn: &mut Txn<'_>| {
            // Another task may have been faster.
            if let Some(secrets) = txn.secrets() {
                return secrets.clone();
            }
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
        self.jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }
}

/// Commits waiting changes together, then makes them visible. At a stop, it commits those that
/// wait.
async fn run(
    state: Arc<RwLock<State>>,
    mut queue: mpsc::Receiver<Job>,
    mut backend: Box<dyn Backend>,
    tasks: Tasks,
) {
    let mut batch = Vec::new();
    loop {
        let waiting = tokio::select! {
            biased;
            waiting = queue.recv_many(&mut batch, BATCH) => waiting,
            () = tasks.stopped() => {
                queue.close();
                queue.recv_many(&mut batch, BATCH).await
            }
        };
        if waiting == 0 {
            return;
        }
        let mut settle = Vec::with_capacity(batch.len());
        let (changes, without) = {
            let seen = state.read().unwrap_or_else(PoisonError::into_inner);
            let mut txn = Txn::new(&seen);
            settle.extend(batch.drain(..).map(|job| job(&mut txn)));
            txn.changes()
        };
        let (kept, outcome, changes) = commit(backend, changes).await;
        let Some(kept) = kept else { return };
        backend = kept;
        if outcome.is_ok() {
            let mut state = state.write().unwrap_or_else(PoisonError::into_inner);
            changes.into_iter().for_each(|change| state.apply(change));
            without.into_iter().for_each(|(driver, id)| state.set_stale(&driver, id));
        }
        for settle in settle {
            settle(outcome.clone());
        }
        if let Err(error) = outcome {
            // The content of the disk is uncertain now; only a restart reads it again.
            tracing::error!(error = proto::host::chain(&error), "the store takes no more changes");
            return;
        }
    }
}

type Committed = (Option<Box<dyn Backend>>, Result<(), StoreError>, Vec<Change>);

async fn commit(mut backend: Box<dyn Backend>, changes: Vec<Change>) -> Committed {
    if changes.is_empty() {
        return (Some(backend), Ok(()), changes);
    }
    if !backend.waits() {
        let outcome = backend.commit(&changes);
        return (Some(backend), outcome, changes);
    }
    let committing = tokio::task::spawn_blocking(move || {
        let outcome = backend.commit(&changes);
        (Some(backend), outcome, changes)
    });
    // After a panic of the backend, all callers learn that the store is closed.
    committing.await.unwrap_or_else(|_| (None, Err(StoreError::Closed), Vec::new()))
}
