//! Runs the calls of one driver. A repeated request shares the run in flight, or gets the recent
//! answer.
//!
//! Each run goes on to its end, even without a caller. CSI: there should be one call in flight for
//! a volume, so a different request for the same subject is ABORTED. Numbers and bytes are bounded.
//! It may use `error`, `drivers`, `expansions`, `validity` and `missing_volumes`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ahash::HashMap;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::frame::PREFIX;
use proto::csi::{DirectCall, Id, Method};
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::call_id::CallId;
use proto::http2::forward::{self, Answer, Call};
use proto::http2::limits::MAX_PASSING;
use proto::http2::serve::Stopping;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use crate::drivers::Driver;
use crate::error::{Error, Shared};
use crate::expansions::Tracked;
use crate::missing_volumes::MissingVolumes;
use crate::validity::Validity;

/// The most calls in flight at one driver; further ones are refused.
const MAX_IN_FLIGHT: usize = 1024;
/// The most answers kept for repeated calls.
const MAX_KEPT: usize = 1024;
/// The most bytes of kept answers and their requests.
const MAX_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// The most callers of one run whose repeated calls it answers: the latest, since the others have
/// left.
const MAX_CALLERS: usize = 64;
/// The time for which an answer is kept. Sidecars' deadlines are shorter, so nobody repeats the
/// call later.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// The result of a run.
pub(crate) type CallResult = Result<Answer, Shared>;

/// A request, as far as it is compared with others.
pub(crate) struct Operation {
    /// Its method.
    pub(crate) method: Method,
    /// Its framed message.
    pub(crate) body: Bytes,
    /// Nothing else may operate on these meanwhile.
    pub(crate) subjects: Vec<Id>,
    /// The id of the caller's call, if it came over a link.
    pub(crate) id: Option<Uuid>,
}

/// The decision about a request.
pub(crate) enum Begin {
    /// Run it, and tell the ticket how it ended.
    Run(Ticket),
    /// It is running. The outcome comes here; nothing comes if the run was given up.
    Wait(oneshot::Receiver<CallResult>),
    /// This call was carried out before.
    Done(Box<Answer>),
}

/// The calls of one driver.
pub(crate) struct DriverCalls {
    pub(crate) driver: Arc<Driver>,
    pub(crate) runs: Runs,
    missing: MissingVolumes,
    unary: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

impl DriverCalls {
    pub(crate) fn new(driver: Arc<Driver>, tasks: Tasks) -> Self {
        Self {
            driver,
            runs: Runs::default(),
            missing: MissingVolumes::default(),
            unary: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            streams: Arc::new(Semaphore::new(MAX_PASSING)),
            tasks,
        }
    }

    /// True if anything runs for one of these subjects.
    pub(crate) fn is_running(&self, subjects: &[Id]) -> bool {
        self.runs.is_running(subjects)
    }

    /// Passes a stream on as fast as its caller reads. It changes nothing, so it ends with its
    /// caller.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room. Otherwise the call is not valid any more, or the driver
    /// is away or breaks it off.
    pub(crate) async fn stream(
        &self,
        call: Call,
        validity: &Validity,
    ) -> Result<Response<Body>, Error> {
        let permit = self.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| self.full(&call, MAX_PASSING))?;
        let response = self.driver.connection(call.path.path()).send(&call, validity).await?;
        let source = "in the middle of a stream".into();
        let broken = Error::DriverBroke { at: self.driver.socket_of(call.path.path()), source };
        Ok(forward::pass(response, &broken, permit))
    }

    /// The error of a call for which there is no room.
    fn full(&self, call: &Call, limit: usize) -> Error {
        Error::Full { at: self.driver.socket_of(call.path.path()), limit }
    }

    /// Waits for a running expansion of the volume, if the call is to join what follows from it.
    /// True if there was one.
    pub(crate) async fn await_expansion(
        &self,
        operation: &Operation,
        tracked: Option<&Tracked>,
    ) -> bool {
        let mut has_waited = false;
        if tracked.is_some_and(Tracked::joins) {
            // The node's half is part of that run. The driver is asked again after it.
            while let Some(outcome) = self.runs.expansion(operation) {
                has_waited = true;
                let _ = outcome.await;
            }
        }
        has_waited
    }

    /// Runs the call, unless the same operation is running or was answered already. A mount of a
    /// volume that the driver did not have waits before that.
    ///
    /// # Errors
    /// [`Error::Pending`] if a different request for one of its subjects is running. Otherwise the
    /// run's own, or csi-edge is stopping.
    pub(crate) async fn deduplicate(
        &self,
        operation: Operation,
        call: Call,
        validity: Validity,
        tracked: Option<Tracked>,
    ) -> CallResult {
        let id = CallId::of(&call.headers, operation.id);
        let mount = self.missing.mount(operation.method, &operation.subjects);
        if let Some(mount) = &mount {
            Box::pin(mount.wait(validity.deadline())).await;
        }
        let outcome = match self.runs.begin(operation)? {
            Begin::Done(answer) => Ok(*answer),
            Begin::Wait(outcome) => {
                let gone = |_| Err(Stopping("csi-edge").into());
                outcome.await.unwrap_or_else(gone)
            }
            Begin::Run(ticket) => {
                let tracked = tracked.map(|tracked| tracked.of_call(id));
                self.run(call, validity, Some(ticket), tracked).await
            }
        };
        if let (Some(mount), Ok(answer)) = (mount, &outcome) {
            mount.answered(answer.failure().map(|status| status.code()));
        }
        outcome
    }

    /// Runs the call to its end, even if the caller leaves. Without a ticket it is not compared
    /// with others; `tracked` is its effect on a volume of this node.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room. Otherwise the call is not valid any more, its effect
    /// fails, or the driver is away or breaks it off.
    pub(crate) async fn run(
        &self,
        call: Call,
        validity: Validity,
        ticket: Option<Ticket>,
        tracked: Option<Tracked>,
    ) -> CallResult {
        let permit = self.unary.clone().try_acquire_owned();
        let permit = permit.map_err(|_| self.full(&call, MAX_IN_FLIGHT))?;
        validity.check()?;
        let driver = self.driver.clone();
        let run = async move {
            let outcome = match tracked {
                // Boxed: otherwise the future of every call would hold it.
                Some(tracked) => Box::pin(tracked.carry_out(&driver, &call, &validity)).await,
                None => {
                    let connection = driver.connection(call.path.path());
                    connection.exchange(&call, &validity).await
                }
            };
            let outcome = outcome.map_err(Shared::from);
            drop(permit);
            if let Some(ticket) = ticket {
                ticket.end(&outcome);
            }
            outcome
        };
        Detaching { run: Some(Box::pin(run)), tasks: &self.tasks }.await
    }
}

/// A run that its caller polls, and that goes on in a task of its own when the caller leaves.
struct Detaching<'a> {
    run: Option<BoxFuture<'static, CallResult>>,
    tasks: &'a Tasks,
}

impl Future for Detaching<'_> {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let Some(run) = &mut self.run else { return Poll::Pending };
        let outcome = ready!(run.as_mut().poll(cx));
        self.run = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Detaching<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            // Nobody waits any more; the call runs to its end all the same.
            self.tasks.spawn("call", async move { drop(run.await) });
        }
    }
}

/// The runs of one driver.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    last: u64,
    running: HashMap<u64, Run>,
    by_subject: HashMap<Id, u64>,
    kept: KeptAnswers,
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

/// True if a request asks for the same as an earlier one.
fn same(method: Method, body: &Bytes, operation: &Operation) -> bool {
    let message = |body: &Bytes| body.slice(PREFIX.min(body.len())..);
    method == operation.method && method.same(&message(body), &message(&operation.body))
}

impl Runs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves nothing half done here.
        self.0.lock()
    }

    /// Decides how to handle a request.
    ///
    /// # Errors
    /// [`Error::Pending`] if a different request for one of its subjects is running.
    pub(crate) fn begin(&self, operation: Operation) -> Result<Begin, Error> {
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
            let too_many = (run.calls.len() + 1).saturating_sub(MAX_CALLERS);
            run.calls.drain(..too_many);
            run.calls.push(id);
        }
        Ok(Begin::Wait(waiting))
    }

    /// The outcome of an expansion that the cloud asked for, if one runs for a subject of this
    /// request.
    pub(crate) fn expansion(&self, operation: &Operation) -> Option<oneshot::Receiver<CallResult>> {
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

    /// The calls in flight: their begin, method and subjects.
    pub(crate) fn running(&self) -> Vec<(Instant, Method, Vec<Id>)> {
        let inner = self.lock();
        inner.running.values().map(|run| (run.begun, run.method, run.subjects.clone())).collect()
    }

    /// True if anything runs for one of these subjects.
    pub(crate) fn is_running(&self, subjects: &[Id]) -> bool {
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
pub(crate) struct Ticket {
    runs: Runs,
    key: u64,
}

impl Ticket {
    /// Tells the outcome to all waiting callers, and keeps a driver's answer for repeated calls.
    pub(crate) fn end(self, outcome: &CallResult) {
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
struct KeptAnswers {
    by_call: HashMap<Uuid, Arc<Done>>,
    oldest: VecDeque<(Uuid, Instant)>,
    bytes: usize,
}

struct Done {
    method: Method,
    body: Bytes,
    answer: Answer,
}

impl KeptAnswers {
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
