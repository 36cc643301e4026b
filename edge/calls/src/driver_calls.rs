//! Carries out the calls of one driver. A repeated request shares the run in flight, or gets the
//! recent answer.
//!
//! A run goes on without its caller, and all but a create's end at the deadline of the call that
//! began them; see [`Validity::ends`]. It may use `error`, `drivers`, `expansions`, `operation`,
//! `runs`, `validity` and `missing_volumes`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use proto::csi::topology::Scope;
use proto::csi::{DirectCall, Learn, Method, frame};
use proto::host::plain;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::call_id::CallId;
use proto::http2::forward::{self, Answer, Call};
use proto::http2::limits::MAX_PASSING;
use proto::http2::serve::Stopping;
use proto::names::DriverName;
use tokio::sync::Semaphore;
use tonic::{Code, Status};
use tracing::field::display;
use tracing::{Instrument, info, info_span};

use crate::drivers::Driver;
use crate::error::{Error, GuardRefusal, Shared};
use crate::expansions::{NodeHalf, Tracked};
use crate::missing_volumes::MissingVolumes;
use crate::operation::Operation;
use crate::runs::{Begin, CallResult, Runs, Ticket};
use crate::scopes::Scopes;
use crate::validity::Validity;

/// The most calls in flight at one driver; further ones are refused.
const MAX_IN_FLIGHT: usize = 1024;

/// Takes the driver and the message of a DeleteVolume.
type OfDelete<T> = Box<dyn Fn(&DriverName, &Bytes) -> T + Send + Sync>;

/// The node's part in a DeleteVolume.
pub struct DeleteGuard {
    /// Refuses it while the node still uses the volume.
    pub check: OfDelete<Result<(), GuardRefusal>>,
    /// Forgets the volume, which the driver has deleted.
    pub deleted: OfDelete<()>,
}

/// The calls of one driver.
pub(crate) struct DriverCalls {
    pub(crate) driver: Arc<Driver>,
    pub(crate) runs: Runs,
    missing: MissingVolumes,
    guard: Option<Arc<DeleteGuard>>,
    scopes: Arc<Scopes>,
    unary: Arc<Semaphore>,
    /// For what we never end: creates, which so take no room from the others.
    unending: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

impl DriverCalls {
    /// No calls yet; the guard is asked before each DeleteVolume.
    pub(crate) fn new(
        driver: Arc<Driver>,
        guard: Option<Arc<DeleteGuard>>,
        scopes: Arc<Scopes>,
        tasks: Tasks,
    ) -> Self {
        Self {
            driver,
            runs: Runs::default(),
            missing: MissingVolumes::default(),
            guard,
            scopes,
            unary: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            unending: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            streams: Arc::new(Semaphore::new(MAX_PASSING)),
            tasks,
        }
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
        let connection = self.driver.connection(call.path.path());
        let (response, mut stream) = connection.send(&call, validity).await?;
        // It ends with its caller.
        stream.over();
        let source = "in the middle of a stream".into();
        let broken = Error::DriverBroke { at: self.driver.socket_of(call.path.path()), source };
        Ok(forward::pass(response, &broken, (permit, stream)))
    }

    /// The error of a call for which there is no room.
    fn full(&self, call: &Call, limit: usize) -> Error {
        Error::Full { at: self.driver.socket_of(call.path.path()), limit }
    }

    /// Runs the call, unless the same operation is running or was answered already. A mount of a
    /// volume that the driver did not have waits before that. `tracked` is its effect on a volume
    /// of this node.
    ///
    /// # Errors
    /// [`Error::Pending`] if a different request holds one of its locks. Otherwise the run's own,
    /// or csi-edge is stopping.
    pub(crate) async fn deduplicate(
        self: &Arc<Self>,
        operation: Operation,
        call: Call,
        validity: Validity,
        tracked: Option<Tracked>,
    ) -> CallResult {
        let validity = validity.of_run(operation.method);
        let mount = self.missing.mount(operation.method, &operation.about);
        if let Some(mount) = &mount {
            Box::pin(mount.wait(validity.deadline())).await;
        }
        let operation = Arc::new(operation);
        let outcome = loop {
            match self.runs.admit(&operation).await? {
                Begin::Done(answer) => break Ok(*answer),
                Begin::Wait(outcome) => match outcome.await {
                    Ok(Some(outcome)) => break outcome,
                    // That run ended at its own caller's deadline.
                    Ok(None) => validity.check()?,
                    Err(_) => break Err(Stopping("csi-edge").into()),
                },
                Begin::Run(ticket) => {
                    if let Err(error) = self.check(&operation, &validity) {
                        ticket.give_up();
                        break Err(error.into());
                    }
                    let id = CallId::of(&call.headers, operation.id);
                    self.log_delete(&operation, id);
                    let tracked = tracked.map(|tracked| tracked.of_call(id));
                    break self.run(call, validity, Some(ticket), tracked).await;
                }
            }
        };
        if let Ok(answer) = &outcome {
            let status = answer.failure();
            if let Some(mount) = mount {
                mount.answered(status.as_ref().map(Status::code));
            }
            if let Some(status) = status {
                self.note_refusal(&operation, &status);
            }
        }
        outcome
    }

    /// Notes an attach for which the node has no room: a kubelet would ask again then how much it
    /// has. Also an UNAVAILABLE of a shared driver, whose node is elected by its health.
    fn note_refusal(&self, operation: &Operation, status: &Status) {
        let is_full = status.code() == Code::ResourceExhausted
            && matches!(operation.method.learn(), Learn::Attached(_));
        if is_full && self.scopes.publishes_topology(&self.driver.name) {
            self.driver.ask_node_info();
        }
        if status.code() != Code::Unavailable {
            return;
        }
        let Some(about) = operation.about.first() else { return };
        if self.scopes.of(&self.driver.name) == Some(Scope::Shared) {
            let method = operation.method;
            let why = format!("it answers {method} with Unavailable: {}", status.message());
            self.driver.connection(method.path()).refused(about.text(), &why);
        }
    }

    /// Whether a request may go to the driver, now that it has its locks.
    fn check(&self, operation: &Operation, validity: &Validity) -> Result<(), Error> {
        validity.check()?;
        if let Some(guard) = &self.guard
            && operation.method.direct() == Some(DirectCall::Delete)
        {
            let message = frame::message(&operation.body);
            let unreadable = |source| Error::bad(Some(operation.method), source);
            (guard.check)(&self.driver.name, &message.map_err(unreadable)?)?;
        }
        Ok(())
    }

    /// Logs a delete. Each one is, whoever asks for it: data ends here.
    fn log_delete(&self, operation: &Operation, id: Option<CallId>) {
        if let Operation { method, about, .. } = operation
            && method.name().starts_with("Delete")
            && let Some(subject) = about.first()
        {
            let (call, driver) = (id.map(display), &self.driver.name);
            let subject = plain(subject.text());
            info!(call, rpc = method.name(), %driver, subject, "the driver is asked to delete it");
        }
    }

    /// Has the node forget a volume, if this was its delete.
    fn note_deleted(&self, call: &Call) {
        let Some(guard) = &self.guard else { return };
        let method = Method::of_path(call.path.path());
        if method.and_then(Method::direct) == Some(DirectCall::Delete)
            && let Ok(message) = frame::message(&call.body)
        {
            (guard.deleted)(&self.driver.name, &message);
        }
    }

    /// Runs the call, even if the caller leaves. Without a ticket it is not compared with others;
    /// `tracked` is its effect on a volume of this node.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room. Otherwise the call is not valid any more, its effect
    /// fails, or the driver is away or breaks it off.
    pub(crate) async fn run(
        self: &Arc<Self>,
        call: Call,
        validity: Validity,
        ticket: Option<Ticket>,
        tracked: Option<Tracked>,
    ) -> CallResult {
        let room = if validity.ends().is_some() { &self.unary } else { &self.unending };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            if let Some(ticket) = ticket {
                ticket.give_up();
            }
            return Err(self.full(&call, MAX_IN_FLIGHT).into());
        };
        let calls = self.clone();
        let run = async move {
            let outcome = match tracked {
                // Boxed: otherwise the future of every call would hold it.
                Some(tracked) => {
                    let span = info_span!("call", call = tracked.id().map(display));
                    let both = calls.carry_out(tracked, &call, &validity, ticket.as_ref());
                    Box::pin(both.instrument(span)).await
                }
                None => {
                    let connection = calls.driver.connection(call.path.path());
                    connection.exchange(&call, &validity).await
                }
            };
            let outcome = outcome.map_err(Shared::from);
            // Before anybody can make the volume anew.
            if outcome.as_ref().is_ok_and(|answer| answer.ok().is_some()) {
                calls.note_deleted(&call);
            }
            drop(permit);
            if let Some(ticket) = ticket {
                ticket.end(&outcome);
            }
            outcome
        };
        Detaching { run: Some(Box::pin(run)), tasks: &self.tasks }.await
    }

    /// Sends a call that changes the record of a volume here, and has the node's half of an
    /// expansion done if that is due after it.
    async fn carry_out(
        self: &Arc<Self>,
        mut tracked: Tracked,
        call: &Call,
        validity: &Validity,
        ticket: Option<&Ticket>,
    ) -> Result<Answer, Error> {
        let driver = &self.driver;
        tracked.begin(driver).await?;
        let answered = driver.connection(call.path.path()).exchange(call, validity).await;
        let (answer, half) = tracked.note(driver, answered).await?;
        let Some(half) = half else { return Ok(answer) };
        // The half is a run of its own, and wants the volume at this node for itself. What a growth
        // locks is not in its way.
        if !tracked.is_growth() {
            ticket.into_iter().for_each(Ticket::unlock);
        }
        if let Some(outcome) = self.run_half(&tracked, &half).await {
            tracked.end(driver, &half, outcome).await?;
        }
        Ok(answer)
    }

    /// Has the driver do the node's half of an expansion. It has the two minutes of a call without
    /// a deadline. It waits for nobody: while the volume is busy the growth stays owed. None if the
    /// volume is at that path no more, so that it stays owed too.
    fn run_half<'a>(
        self: &'a Arc<Self>,
        tracked: &'a Tracked,
        half: &'a NodeHalf,
    ) -> BoxFuture<'a, Option<CallResult>> {
        Box::pin(async move {
            let operation = Arc::new(half.operation());
            let ticket = match self.runs.begin(&operation) {
                Ok(Begin::Run(ticket)) => ticket,
                Ok(Begin::Done(answer)) => return Some(Ok(*answer)),
                Ok(Begin::Wait(outcome)) => {
                    let stopping = || Err(Stopping("csi-edge").into());
                    return Some(outcome.await.ok().flatten().unwrap_or_else(stopping));
                }
                Err(busy) => return Some(Err(busy.into())),
            };
            if !tracked.is_at(&self.driver, half) {
                ticket.give_up();
                return None;
            }
            let validity = Validity::default().of_run(operation.method);
            Some(self.run(half.call(), validity, Some(ticket), None).await)
        })
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
