//! The task that makes changes, one after another. Changes that arrive during a commit share the
//! next one.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;
use proto::host::tasks::Tasks;
use tokio::sync::mpsc;

use super::backend::{Backend, StoreError};
use super::replicated::commit;
use super::replicated::commit::Committer;
use crate::state::known::State;
use crate::state::record::Change;
use crate::state::txn::Txn;

/// The largest number of jobs in one commit.
const BATCH: usize = 1024;
/// With so many changes a transaction has room for one more job: most have three or fewer.
const NEARLY: usize = commit::MOST - 20;

/// Tells the caller if the change is durable.
pub(super) type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Makes a change.
pub(super) type Job = Box<dyn FnOnce(&mut Txn<'_>) -> Settle + Send>;

/// The backend that makes changes durable.
pub(super) enum Writes {
    /// In a store that this csi-cloud has alone.
    Own(Box<dyn Backend>),
    /// In one that it shares.
    Shared(Committer),
}

impl Writes {
    /// The backend of a store that this csi-cloud has alone.
    fn own(self) -> Option<Box<dyn Backend>> {
        match self {
            Self::Own(backend) => Some(backend),
            Self::Shared(_) => None,
        }
    }

    /// The number of changes that ends a batch.
    fn enough(&self) -> usize {
        match self {
            Self::Own(_) => usize::MAX,
            Self::Shared(_) => NEARLY,
        }
    }

    /// Makes changes durable, and says which were. None is left of it after a panic. With
    /// `confirms` it proves that this csi-cloud leads, also without a change.
    async fn commit(self, changes: Vec<Change>, confirms: bool) -> (Option<Self>, Outcome) {
        match self {
            writes if changes.is_empty() && !confirms => (Some(writes), (changes, Ok(()))),
            Self::Own(backend) if changes.is_empty() => {
                (Some(Self::Own(backend)), (changes, Ok(())))
            }
            Self::Own(backend) => {
                let (backend, outcome) = commit_own(backend, changes).await;
                (backend.map(Self::Own), outcome)
            }
            Self::Shared(mut committer) if changes.is_empty() => {
                let outcome = (changes, committer.seal().await);
                (Some(Self::Shared(committer)), outcome)
            }
            Self::Shared(mut committer) => {
                let outcome = committer.commit(changes).await;
                (Some(Self::Shared(committer)), outcome)
            }
        }
    }
}

/// The durable changes, and the failure of the rest.
type Outcome = (Vec<Change>, Result<(), StoreError>);

/// Commits waiting changes together, then makes them visible. At a stop, it commits those that
/// wait. Returns the backend of a store of its own that takes no more changes.
pub(super) async fn run(
    state: Arc<RwLock<State>>,
    mut queue: mpsc::Receiver<Job>,
    mut writes: Writes,
    tasks: Tasks,
) -> Option<Box<dyn Backend>> {
    let mut arrived = Vec::new();
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            tokio::select! {
                biased;
                _ = queue.recv_many(&mut arrived, BATCH) => {}
                () = tasks.stopped() => {
                    queue.close();
                    queue.recv_many(&mut arrived, BATCH).await;
                }
            }
            waiting.extend(arrived.drain(..));
        }
        if waiting.is_empty() {
            return None;
        }
        let mut settle = Vec::with_capacity(waiting.len());
        let (confirms, (changes, without)) = {
            let seen = state.read();
            let mut txn = Txn::new(&seen);
            while txn.len() < writes.enough()
                && let Some(job) = waiting.pop_front()
            {
                settle.push(job(&mut txn));
            }
            (txn.confirms(), txn.changes())
        };
        let (left, (durable, outcome)) = writes.commit(changes, confirms).await;
        {
            let mut state = state.write();
            durable.into_iter().for_each(|change| state.apply(change));
            if outcome.is_ok() {
                without.into_iter().for_each(|(driver, id)| state.set_stale(&driver, id));
            }
        }
        for settle in settle {
            settle(outcome.clone());
        }
        writes = left?;
        if let Err(error) = outcome
            && !error.is_refusal()
        {
            // What the disk or etcd has is uncertain now; only a restart reads it again.
            tracing::error!(error = proto::host::chain(&error), "the store takes no more changes");
            return writes.own();
        }
    }
}

async fn commit_own(
    mut backend: Box<dyn Backend>,
    changes: Vec<Change>,
) -> (Option<Box<dyn Backend>>, Outcome) {
    let waits = backend.waits();
    let commit = move || match backend.commit(&changes) {
        Ok(()) => (Some(backend), (changes, Ok(()))),
        Err(error) => (Some(backend), (Vec::new(), Err(error))),
    };
    if !waits {
        return commit();
    }
    // After a panic of the backend, all callers learn that the store is closed.
    tokio::task::spawn_blocking(commit)
        .await
        .unwrap_or_else(|_| (None, (Vec::new(), Err(StoreError::Closed))))
}
