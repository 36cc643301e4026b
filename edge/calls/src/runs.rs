//! The runs of one driver: which requests share one, which wait for another, and whose answers are
//! kept.
//!
//! A request that is the same as one in flight joins its run. Any other takes the locks of its
//! method first (decision 5). Numbers and bytes are bounded. It may use `error`, `operation` and
//! `kept_answers`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::{Id, Learn, Lock, LockPart, Method};
use proto::http2::forward::Answer;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::error::{Error, Shared};
use crate::kept_answers::KeptAnswers;
use crate::operation::Operation;

/// The most callers of one run whose repeated calls it answers: the latest, since the others have
/// left.
const MAX_CALLERS: usize = 64;
/// How long a request waits for its locks. A caller with a back-off of its own would wait longer.
pub const LOCK_WAIT: Duration = Duration::from_secs(1);
/// The most volumes whose names are known.
const MAX_NAMES: usize = 4096;

/// The result of a run.
pub(crate) type CallResult = Result<Answer, Shared>;

/// The decision about a request.
pub(crate) enum Begin {
    /// Run it, and tell the ticket how it ended.
    Run(Ticket),
    /// It is running. The outcome comes here, or none if that run was ended without one and the
    /// request may begin again. Nothing comes if csi-edge stops.
    Wait(oneshot::Receiver<Option<CallResult>>),
    /// This call was carried out before.
    Done(Box<Answer>),
}

/// The runs of one driver.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<Shelf>);

#[derive(Default)]
struct Shelf {
    inner: Mutex<Inner>,
    /// Wakes those that wait for a lock.
    unlocked: Notify,
}

#[derive(Default)]
struct Inner {
    last: u64,
    running: HashMap<u64, Run>,
    /// The runs that a request may join, by what they are about first.
    joinable: HashMap<(Method, Id), Vec<u64>>,
    held: HashMap<(Id, LockPart), Vec<Holder>>,
    names: MadeNames,
    kept: KeptAnswers,
}

/// A run that holds a lock.
struct Holder {
    run: u64,
    is_exclusive: bool,
}

struct Run {
    begun: Instant,
    operation: Arc<Operation>,
    /// What it still holds.
    locks: Vec<Lock>,
    /// The calls that this run answers.
    calls: Vec<Uuid>,
    waiting: Vec<oneshot::Sender<Option<CallResult>>>,
}

impl Runs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves nothing half done here.
        self.0.inner.lock()
    }

    /// Decides about a request, which waits for its locks for a second at most.
    ///
    /// # Errors
    /// [`Error::Pending`] if another run holds one of them for longer.
    pub(crate) async fn admit(&self, operation: &Arc<Operation>) -> Result<Begin, Error> {
        match self.begin(operation) {
            // Boxed: otherwise the future of every call would hold it.
            Err(Error::Pending { .. }) => Box::pin(self.wait(operation)).await,
            decided => decided,
        }
    }

    async fn wait(&self, operation: &Arc<Operation>) -> Result<Begin, Error> {
        let latest = Instant::now() + LOCK_WAIT;
        loop {
            // Made before the look, so that no end between the two is missed.
            let unlocked = self.0.unlocked.notified();
            match self.begin(operation) {
                Err(pending @ Error::Pending { .. }) => {
                    if timeout_at(latest, unlocked).await.is_err() {
                        return Err(pending);
                    }
                }
                decided => return decided,
            }
        }
    }

    /// Decides about a request now.
    ///
    /// # Errors
    /// [`Error::Pending`] if another run holds one of its locks.
    pub(crate) fn begin(&self, operation: &Arc<Operation>) -> Result<Begin, Error> {
        let mut inner = self.lock();
        if let Some(answer) = operation.id.and_then(|id| inner.kept.find(&id, operation)) {
            return Ok(Begin::Done(Box::new(answer)));
        }
        if let Some(run) = inner.same_as(operation) {
            return Ok(Begin::Wait(run.join(operation.id)));
        }
        let locks = inner.names.locks(operation);
        if let Some(run) = inner.in_the_way(&locks) {
            return Err(Error::Pending {
                method: operation.method.name(),
                running: run.operation.method.name(),
                about: run.operation.about.first().map_or("", Id::text).to_owned(),
                age: run.begun.elapsed(),
            });
        }
        let run = inner.add(operation, locks);
        Ok(Begin::Run(Ticket { runs: self.clone(), run, operation: operation.clone() }))
    }

    /// The calls in flight: their begin, method and what they are about.
    pub(crate) fn running(&self) -> Vec<(Instant, Method, Vec<Id>)> {
        let inner = self.lock();
        let of = |run: &Run| (run.begun, run.operation.method, run.operation.about.clone());
        inner.running.values().map(of).collect()
    }

    /// True if anything runs that is about one of these.
    pub(crate) fn is_running(&self, about: &[Id]) -> bool {
        let inner = self.lock();
        let is_about = |run: &Run| run.operation.about.iter().any(|id| about.contains(id));
        inner.running.values().any(is_about)
    }

    fn unlock(&self, run: u64) {
        let mut inner = self.lock();
        if inner.unlock(run) {
            drop(inner);
            self.0.unlocked.notify_waiters();
        }
    }

    /// Ends a run, which made this. All that wait get the outcome, or hear that there is none.
    fn end(&self, run: u64, outcome: Option<&CallResult>, made: Option<Id>) {
        let mut inner = self.lock();
        let was_locked = inner.unlock(run);
        let Some(run) = inner.remove(run) else { return };
        inner.names.learn(made, &run.operation);
        // A call that only reads may read again.
        if let Some(Ok(answer)) = outcome
            && !run.operation.locks.is_empty()
        {
            inner.kept.keep(&run.operation, &run.calls, answer);
        }
        drop(inner);
        if was_locked {
            self.0.unlocked.notify_waiters();
        }
        for waiting in run.waiting {
            // A caller that left wants no outcome.
            let _ = waiting.send(outcome.cloned());
        }
    }
}

impl Inner {
    /// A run of the same request.
    fn same_as(&mut self, operation: &Operation) -> Option<&mut Run> {
        let about = operation.about.first()?.clone();
        let runs = self.joinable.get(&(operation.method, about))?;
        let is_same = |run: &&u64| {
            let run = self.running.get(run);
            run.is_some_and(|run| operation.is_same(run.operation.method, &run.operation.body))
        };
        let run = *runs.iter().find(is_same)?;
        self.running.get_mut(&run)
    }

    /// A run that holds one of these locks in a way that keeps others out.
    fn in_the_way(&self, locks: &[Lock]) -> Option<&Run> {
        let holder = locks.iter().find_map(|lock| {
            let holders = self.held.get(&(lock.id.clone(), lock.part.clone()))?;
            holders.iter().find(|holder| lock.is_exclusive || holder.is_exclusive)
        });
        self.running.get(&holder?.run)
    }

    fn add(&mut self, operation: &Arc<Operation>, locks: Vec<Lock>) -> u64 {
        self.last += 1;
        let run = self.last;
        if let Some(about) = operation.about.first() {
            self.joinable.entry((operation.method, about.clone())).or_default().push(run);
        }
        for lock in &locks {
            let holder = Holder { run, is_exclusive: lock.is_exclusive };
            self.held.entry((lock.id.clone(), lock.part.clone())).or_default().push(holder);
        }
        let calls = operation.id.into_iter().collect();
        let operation = operation.clone();
        let begun = Instant::now();
        self.running.insert(run, Run { begun, operation, locks, calls, waiting: Vec::new() });
        run
    }

    /// Takes a run's locks from it; returns whether it had any.
    fn unlock(&mut self, run: u64) -> bool {
        let locks = self.running.get_mut(&run).map(|run| std::mem::take(&mut run.locks));
        let locks = locks.unwrap_or_default();
        for lock in &locks {
            let part = (lock.id.clone(), lock.part.clone());
            if let Some(holders) = self.held.get_mut(&part) {
                holders.retain(|holder| holder.run != run);
                if holders.is_empty() {
                    self.held.remove(&part);
                }
            }
        }
        !locks.is_empty()
    }

    fn remove(&mut self, run: u64) -> Option<Run> {
        let removed = self.running.remove(&run)?;
        if let Some(about) = removed.operation.about.first() {
            let key = (removed.operation.method, about.clone());
            if let Some(runs) = self.joinable.get_mut(&key) {
                runs.retain(|other| *other != run);
                if runs.is_empty() {
                    self.joinable.remove(&key);
                }
            }
        }
        Some(removed)
    }
}

impl Run {
    /// The outcome, for one more call.
    fn join(&mut self, call: Option<Uuid>) -> oneshot::Receiver<Option<CallResult>> {
        let (outcome, waiting) = oneshot::channel();
        // Callers that left make room; otherwise a hung run would collect them all.
        self.waiting.retain(|waiting| !waiting.is_closed());
        self.waiting.push(outcome);
        if let Some(id) = call.filter(|id| !self.calls.contains(id)) {
            let too_many = (self.calls.len() + 1).saturating_sub(MAX_CALLERS);
            self.calls.drain(..too_many);
            self.calls.push(id);
        }
        waiting
    }
}

/// The right to run a request. While it lives, the same request does not run again.
pub(crate) struct Ticket {
    runs: Runs,
    run: u64,
    operation: Arc<Operation>,
}

impl Ticket {
    /// Lets other requests have its locks. The same request still joins it.
    pub(crate) fn unlock(&self) {
        self.runs.unlock(self.run);
    }

    /// Tells the outcome to all waiting callers, and keeps a driver's answer for repeated calls.
    /// Callers of a run that was ended at its deadline begin again, if they have time left.
    pub(crate) fn end(self, outcome: &CallResult) {
        let is_ended = outcome.as_ref().is_err_and(Shared::is_ended);
        let made = outcome.as_ref().ok().and_then(|answer| made(&self.operation, answer));
        self.runs.end(self.run, Some(outcome).filter(|_| !is_ended), made);
    }

    /// Gives the run up before it began; callers that joined it begin one of their own.
    pub(crate) fn give_up(self) {
        self.runs.end(self.run, None, None);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // This counts only if csi-edge stops; otherwise the run has ended already.
        let mut inner = self.runs.lock();
        inner.unlock(self.run);
        inner.remove(self.run);
    }
}

/// The names under which volumes and snapshots were made, of the latest ones.
#[derive(Default)]
struct MadeNames {
    by_id: HashMap<Id, Id>,
    oldest: VecDeque<Id>,
}

impl MadeNames {
    /// The locks of a request. What is deleted is locked with the name that made it: a create of
    /// that name would be answered with what is about to go.
    fn locks(&self, operation: &Operation) -> Vec<Lock> {
        let mut locks = operation.locks.clone();
        if matches!(operation.method.learn(), Learn::Gone) {
            let name = operation.about.first().and_then(|id| self.by_id.get(id));
            locks.extend(name.map(|name| Lock::exclusive(name, LockPart::Whole)));
        }
        locks
    }

    fn learn(&mut self, made: Option<Id>, operation: &Operation) {
        let Some((made, name)) = made.zip(operation.about.first()) else { return };
        if self.by_id.insert(made.clone(), name.clone()).is_none() {
            self.oldest.push_back(made);
        }
        if self.oldest.len() > MAX_NAMES
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }
}

/// What the answer says that the request made.
fn made(operation: &Operation, answer: &Answer) -> Option<Id> {
    let Learn::Made(read) = operation.method.learn() else { return None };
    let made = read(&answer.message()?).ok()?;
    made.into_iter().next().map(|made| made.id)
}

#[cfg(test)]
mod tests;
