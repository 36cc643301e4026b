//! The calls of one driver: each runs to its end, whoever still waits, and identical ones run once.
//!
//! They are bounded, because each holds its request and its answer in memory. It may use what is
//! to the left of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use http::Response;
use proto::csi::Id;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::call_id::CallId;
use proto::http2::forward::{self, Call};
use proto::http2::limits::MAX_PASSING;
use proto::http2::serve::Stopping;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::deduplicate::{Begin, CallResult, Operation, Runs, Ticket};
use crate::drivers::Driver;
use crate::error::{Error, Shared};
use crate::expansions::Tracked;

/// The most calls in flight at one driver; further ones are refused.
const MAX_IN_FLIGHT: usize = 1024;

/// The calls of one driver.
pub(crate) struct DriverCalls {
    pub(crate) driver: Arc<Driver>,
    pub(crate) runs: Runs,
    unary: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

impl DriverCalls {
    pub(crate) fn new(driver: Arc<Driver>, tasks: Tasks) -> Self {
        Self {
            driver,
            runs: Runs::default(),
            unary: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            streams: Arc::new(Semaphore::new(MAX_PASSING)),
            tasks,
        }
    }

    /// Whether anything runs for one of these subjects.
    pub(crate) fn is_running(&self, subjects: &[Id]) -> bool {
        self.runs.is_running(subjects)
    }

    /// Passes a stream on as fast as its caller reads. It changes nothing, so it ends with its
    /// caller.
    pub(crate) async fn stream(
        &self,
        call: Call,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Error> {
        let permit = self.streams.clone().try_acquire_owned();
        let at = || self.driver.socket_of(call.path.path());
        let permit = permit.map_err(|_| Error::Full { at: at(), limit: MAX_PASSING })?;
        let response = self.driver.call(&call, deadline).await?;
        let source = "in the middle of a stream".into();
        let broken = Error::DriverBroke { at: at(), source };
        Ok(forward::pass(response, &broken, permit))
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

    /// Runs the call, unless the same operation is running or was answered already.
    pub(crate) async fn deduplicate(
        &self,
        operation: Operation,
        call: Call,
        deadline: Option<Instant>,
        tracked: Option<Tracked>,
    ) -> CallResult {
        let id = CallId::of(&call.headers, operation.id);
        match self.runs.begin(operation)? {
            Begin::Done(answer) => Ok(*answer),
            Begin::Wait(outcome) => {
                let gone = |_| Err(Stopping("csi-edge").into());
                outcome.await.unwrap_or_else(gone)
            }
            Begin::Run(ticket) => {
                let tracked = tracked.map(|tracked| tracked.of_call(id));
                self.run(call, deadline, Run { ticket: Some(ticket), tracked }).await
            }
        }
    }

    /// Runs the call to its end, even if the caller leaves.
    pub(crate) async fn run(&self, call: Call, deadline: Option<Instant>, run: Run) -> CallResult {
        let permit = self.unary.clone().try_acquire_owned();
        let at = || self.driver.socket_of(call.path.path());
        let permit = permit.map_err(|_| Error::Full { at: at(), limit: MAX_IN_FLIGHT })?;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Error::too_late().into());
        }
        let driver = self.driver.clone();
        let Run { ticket, tracked } = run;
        let run = async move {
            let outcome = match tracked {
                // Boxed: otherwise the future of every call would hold it.
                Some(tracked) => Box::pin(tracked.carry_out(&driver, &call, deadline)).await,
                None => driver.exchange(&call, deadline).await,
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

/// What belongs to the run of one call.
#[derive(Default)]
pub(crate) struct Run {
    /// The right to run it; none if it is not compared with others.
    ticket: Option<Ticket>,
    /// What follows from it for a volume on this node.
    tracked: Option<Tracked>,
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
