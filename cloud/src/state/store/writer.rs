//! What the cloud must not forget: where volumes live, which creates were sent where, which nodes and drivers
//! there are. Nothing is acted on before it is durable: what [`Store::read`] shows has been committed.
//!
//! All of it is in memory too, so that routing never waits. Changes are made one after another by one task; those
//! that come while a commit runs share the next one.

use std::sync::{Arc, PoisonError, RwLock};

use proto::host::tasks::Tasks;
use tokio::sync::{mpsc, oneshot};

use super::backend::{Backend, StoreError};
use crate::state::known::State;
use crate::state::record::Change;
use crate::state::txn::Txn;

/// Changes that may wait for a commit; who comes then waits for room.
const QUEUE: usize = 4096;
/// Changes that one commit takes at most.
const BATCH: usize = 1024;

type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
type Job = Box<dyn FnOnce(&mut Txn<'_>) -> Settle + Send>;

/// The store: state that is durable, and the way to change it. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    state: Arc<RwLock<State>>,
    jobs: mpsc::Sender<Job>,
}

impl Store {
    /// Loads what a backend keeps and starts the task that changes it, which ends when the last clone is gone or `tasks` stop.
    ///
    /// # Errors
    /// The backend cannot be read.
    pub fn open(mut backend: Box<dyn Backend>, tasks: &Tasks) -> Result<Self, StoreError> {
        let mut state = State::default();
        backend.load(&mut |change| state.apply(change))?;
        let state = Arc::new(RwLock::new(state));
        let (jobs, queue) = mpsc::channel(QUEUE);
        tasks.spawn("store", run(state.clone(), queue, backend, tasks.clone()));
        Ok(Self { state, jobs })
    }

    /// Whether it still takes changes.
    pub fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// How many changes wait for their turn.
    pub fn queued(&self) -> usize {
        self.jobs.max_capacity() - self.jobs.capacity()
    }

    /// Looks at the state. `look` must be short: changes wait for it.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        // Nothing in the state can be left half done by a panic of a reader.
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a change and waits until it is durable. `change` sees all changes before it. It is made even if the
    /// caller does not wait for its end.
    ///
    /// # Errors
    /// It is not durable, and is not seen by anybody.
    pub async fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Txn<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, outcome) = oneshot::channel();
        let job: Job = Box::new(move |txn| {
            let value = change(txn);
            // Who left does not want to know.
            Box::new(move |durable| drop(done.send(durable.map(|()| value))))
        });
        self.jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }
}

/// Makes changes durable, as many at once as there are, and then seen. Told to stop, it makes those that wait.
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
            // What the disk holds now is not known for certain; only a new start reads it again.
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
    // A panic of the backend: whoever waits learns that the store is closed.
    committing.await.unwrap_or_else(|_| (None, Err(StoreError::Closed), Vec::new()))
}
