//! Which calls of one driver are running, and what was answered of late: a request that comes again, on a new
//! link or from a caller who lost patience, is answered by the run that there is and not by a second one.
//!
//! CSI: there should be no more than one call in flight for a volume. So another request for what a run is about
//! is refused with ABORTED, which its caller takes for "an operation is pending, come back".

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use proto::csi::frame::PREFIX;
use proto::csi::{Id, Method};
use proto::http2::forward::Answer;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::{Error, Shared};

/// Answers kept for calls that may be sent again.
const MAX_KEPT: usize = 1024;
/// The most bytes in them, with the requests that they answer.
const MAX_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// The callers of one run whose calls may be sent again; the latest, since the others have left.
const MAX_CALLS: usize = 64;
/// How long an answer is kept: longer than the sidecars' deadlines, after which nobody sends the call again.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// How a run ended.
pub type Outcome = Result<Answer, Shared>;

/// A request, as far as it is compared with others.
pub struct Operation {
    /// Its method.
    pub method: Method,
    /// Its framed message.
    pub body: Bytes,
    /// What nothing else may be done with meanwhile.
    pub subjects: Vec<Id>,
    /// The caller's call, if it came over a link.
    pub id: Option<Uuid>,
}

/// What is to be done with a request.
pub enum Begin {
    /// Carry it out, and say how that ended.
    Run(Ticket),
    /// It runs already; its outcome comes here, nothing if the run was given up.
    Wait(oneshot::Receiver<Outcome>),
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
    method: Method,
    body: Bytes,
    subjects: Vec<Id>,
    /// The calls that this run answers.
    calls: Vec<Uuid>,
    waiting: Vec<oneshot::Sender<Outcome>>,
}

/// Whether a request asks for what another did.
fn same(method: Method, body: &Bytes, operation: &Operation) -> bool {
    let message = |body: &Bytes| body.slice(PREFIX.min(body.len())..);
    method == operation.method && method.same(&message(body), &message(&operation.body))
}

impl Runs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what is to be done with a request.
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
        // Those who left make room for those who come, or a hung run would gather them all.
        run.waiting.retain(|waiting| !waiting.is_closed());
        run.waiting.push(outcome);
        if let Some(id) = operation.id.filter(|id| !run.calls.contains(id)) {
            let too_many = (run.calls.len() + 1).saturating_sub(MAX_CALLS);
            run.calls.drain(..too_many);
            run.calls.push(id);
        }
        Ok(Begin::Wait(waiting))
    }

    fn run(&self, inner: &mut Inner, operation: Operation) -> Ticket {
        inner.last += 1;
        let key = inner.last;
        let Operation { method, body, subjects, id } = operation;
        inner.by_subject.extend(subjects.iter().map(|subject| (subject.clone(), key)));
        let run =
            Run { method, body, subjects, calls: id.into_iter().collect(), waiting: Vec::new() };
        inner.running.insert(key, run);
        Ticket { runs: self.clone(), key }
    }

    /// Ends a run; none that was given up has an outcome.
    fn end(&self, key: u64, outcome: Option<&Outcome>) {
        let mut inner = self.lock();
        let Some(run) = inner.running.remove(&key) else { return };
        for subject in &run.subjects {
            inner.by_subject.remove(subject);
        }
        // Who only reads may as well read again.
        if let Some(Ok(answer)) = outcome
            && !run.subjects.is_empty()
        {
            inner.kept.keep(&run, answer);
        }
        drop(inner);
        for waiting in run.waiting {
            // Who left does not want it any more.
            if let Some(outcome) = outcome {
                let _ = waiting.send(outcome.clone());
            }
        }
    }
}

/// The right to carry out a request; while it lives, the same is not carried out again.
pub struct Ticket {
    runs: Runs,
    key: u64,
}

impl Ticket {
    /// Tells how it ended to all that wait, and keeps a driver's answer for those whose link broke.
    pub fn end(self, outcome: &Outcome) {
        self.runs.end(self.key, Some(outcome));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Only if the run was given up: it has ended otherwise.
        self.runs.end(self.key, None);
    }
}

/// Answers of the driver's own, by call.
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
        // The same id with another request is nobody's call sent again.
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
    /// What keeping it costs, about; shared by the calls that one run answered, and counted for each.
    fn size(&self) -> usize {
        self.body.len() + self.answer.size()
    }
}

#[cfg(test)]
mod tests;
