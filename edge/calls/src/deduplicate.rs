//! Deduplicates the calls of one driver: a request that comes again shares the run in flight, or
//! gets the recent answer. Callers repeat requests on a new link, or when they lose patience.
//!
//! CSI: there should be no more than one call in flight for a volume. A different request for the
//! subject of a run is ABORTED, which means "an operation is pending, come back".
//! It may use `error`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use proto::csi::frame::PREFIX;
use proto::csi::{DirectCall, Id, Method};
use proto::http2::forward::Answer;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::{Error, Shared};

/// The most answers kept for repeated calls.
const MAX_KEPT: usize = 1024;
/// The most bytes of kept answers and their requests.
const MAX_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// The most callers of one run whose repeated calls it answers: the latest, since the others have
/// left.
const MAX_CALLS: usize = 64;
/// How long an answer is kept. Sidecars' deadlines are shorter, so nobody repeats the call after
/// that.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// How a run ended.
pub type CallResult = Result<Answer, Shared>;

/// A request, as far as it is compared with others.
pub struct Operation {
    /// Its method.
    pub method: Method,
    /// Its framed message.
    pub body: Bytes,
    /// Nothing else may operate on these meanwhile.
    pub subjects: Vec<Id>,
    /// The id of the caller's call, if it came over a link.
    pub id: Option<Uuid>,
}

/// What to do with a request.
pub enum Begin {
    /// Run it, and tell the ticket how it ended.
    Run(Ticket),
    /// It is running. The outcome comes here; nothing comes if the run was given up.
    Wait(oneshot::Receiver<CallResult>),
    /// This call was carried out before.
    Done(Box<Answer>),
}

/// The runs of one driver.
#[derive(Clone, Default)]
pub struct Runs(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    last: u64,
    running: HashMap<u64, Run>,
    by_subject: HashMap<Id, u64>,
    kept: Kept,
}

struct Run {
    begun: Instant,
    method: Method,
    body: Bytes,
    subjects: Vec<Id>,
    /// The calls that this run answers.
    calls: Vec<Uuid>,
    waiting: Vec<oneshot::Sender<CallResult>>,
}

/// Whether a request asks for the same as an earlier one.
fn same(method: Method, body: &Bytes, operation: &Operation) -> bool {
    let message = |body: &Bytes| body.slice(PREFIX.min(body.len())..);
    method == operation.method && method.same(&message(body), &message(&operation.body))
}

impl Runs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves nothing half done here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what to do with a request.
    ///
    /// # Errors
    /// [`Error::Pending`] if a different request for one of its subjects is running.
    pub fn begin(&self, operation: Operation) -> Result<Begin, Error> {
        let mut inner = self.lock();
        if let Some(answer) = operation.id.and_then(|id| inner.kept.find(&id, &operation)) {
            return Ok(Begin::Done(Box::new(answer)));
        }
        let running =
            operation.subjects.iter().find_map(|subject| inner.by_subject.get(subject).copied());
        let Some(key) = running else { return Ok(Begin::Run(self.run(&mut inner, operation))) };
        let pending = || Error::Pending { method: operation.method.name() };
        let run = inner.running.get_mut(&key).filter(|run| same(run.method, &run.body, &operation));
        let run = run.ok_or_else(pending)?;
        let (outcome, waiting) = oneshot::channel();
        // Callers that left make room; otherwise a hung run would collect them all.
        run.waiting.retain(|waiting| !waiting.is_closed());
        run.waiting.push(outcome);
        if let Some(id) = operation.id.filter(|id| !run.calls.contains(id)) {
            let too_many = (run.calls.len() + 1).saturating_sub(MAX_CALLS);
            run.calls.drain(..too_many);
            run.calls.push(id);
        }
        Ok(Begin::Wait(waiting))
    }

    /// The outcome of an expansion that the cloud asked for, if one runs for a subject of this
    /// request.
    pub fn expansion(&self, operation: &Operation) -> Option<oneshot::Receiver<CallResult>> {
        let mut inner = self.lock();
        let of = |subject| inner.by_subject.get(subject).copied();
        let key = operation.subjects.iter().find_map(of)?;
        let run = inner.running.get_mut(&key);
        let run = run.filter(|run| run.method.direct() == Some(DirectCall::Expand))?;
        let (outcome, waiting) = oneshot::channel();
        run.waiting.retain(|waiting| !waiting.is_closed());
        run.waiting.push(outcome);
        Some(waiting)
    }

    /// What runs: when it began, its method, and what it is about.
    pub fn running(&self) -> Vec<(Instant, Method, Vec<Id>)> {
        let inner = self.lock();
        inner.running.values().map(|run| (run.begun, run.method, run.subjects.clone())).collect()
    }

    /// Whether anything runs for one of these subjects.
    pub fn is_running(&self, subjects: &[Id]) -> bool {
        let inner = self.lock();
        subjects.iter().any(|subject| inner.by_subject.contains_key(subject))
    }

    fn run(&self, inner: &mut Inner, operation: Operation) -> Ticket {
        inner.last += 1;
        let key = inner.last;
        let Operation { method, body, subjects, id } = operation;
        inner.by_subject.extend(subjects.iter().map(|subject| (subject.clone(), key)));
        let calls = id.into_iter().collect();
        let begun = Instant::now();
        let run = Run { begun, method, body, subjects, calls, waiting: Vec::new() };
        inner.running.insert(key, run);
        Ticket { runs: self.clone(), key }
    }

    /// Ends a run. A run that was given up has no outcome.
    fn end(&self, key: u64, outcome: Option<&CallResult>) {
        let mut inner = self.lock();
        let Some(run) = inner.running.remove(&key) else { return };
        for subject in &run.subjects {
            inner.by_subject.remove(subject);
        }
        // A call that only reads may read again.
        if let Some(Ok(answer)) = outcome
            && !run.subjects.is_empty()
        {
            inner.kept.keep(&run, answer);
        }
        drop(inner);
        for waiting in run.waiting {
            // A caller that left wants no outcome.
            if let Some(outcome) = outcome {
                let _ = waiting.send(outcome.clone());
            }
        }
    }
}

/// The right to run a request. While it lives, the same request does not run again.
pub struct Ticket {
    runs: Runs,
    key: u64,
}

impl Ticket {
    /// Tells the outcome to all waiting callers, and keeps a driver's answer for repeated calls.
    pub fn end(self, outcome: &CallResult) {
        self.runs.end(self.key, Some(outcome));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // This counts only if the run was given up; otherwise it has ended already.
        self.runs.end(self.key, None);
    }
}

/// A driver's answers, by call.
#[derive(Default)]
struct Kept {
    by_call: HashMap<Uuid, Arc<Done>>,
    oldest: VecDeque<(Uuid, Instant)>,
    bytes: usize,
}

struct Done {
    method: Method,
    body: Bytes,
    answer: Answer,
}

impl Kept {
    fn find(&self, id: &Uuid, operation: &Operation) -> Option<Answer> {
        let done = self.by_call.get(id)?;
        // The same id with another request is not a repeated call.
        same(done.method, &done.body, operation).then(|| done.answer.clone())
    }

    fn keep(&mut self, run: &Run, answer: &Answer) {
        let now = Instant::now();
        let body = Bytes::copy_from_slice(&run.body);
        let done = Arc::new(Done { method: run.method, body, answer: answer.apart() });
        for id in &run.calls {
            self.bytes += done.size();
            if let Some(older) = self.by_call.insert(*id, done.clone()) {
                self.bytes -= older.size();
            }
            self.oldest.push_back((*id, now));
        }
        while let Some((id, since)) = self.oldest.front().copied() {
            let room = self.oldest.len() <= MAX_KEPT && self.bytes <= MAX_KEPT_BYTES;
            if room && now.duration_since(since) < KEPT_FOR {
                return;
            }
            self.oldest.pop_front();
            self.bytes -= self.by_call.remove(&id).map_or(0, |done| done.size());
        }
    }
}

impl Done {
    /// Its approximate memory. Calls that share an answer each count it.
    fn size(&self) -> usize {
        self.body.len() + self.answer.size()
    }
}

#[cfg(test)]
mod tests;
