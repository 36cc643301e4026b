//! Runs the calls of one driver: bounds how many are in flight, deduplicates them, and carries each
//! dispatched call to its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use http::Response;
use proto::host::tasks::Tasks;
use proto::http2::forward;
use proto::http2::forward::{Answer, Body, Call, DeadlinePassed};
use proto::http2::limits::MAX_PASSING;
use proto::http2::serve::Stopping;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::deduplicate::{Begin, CallResult, Operation, Runs, Ticket};
use crate::drivers::Driver;
use crate::error::{Error, Shared};

/// The most calls in flight at one driver; further ones are refused, since each holds its request
/// and its answer in memory.
const MAX_IN_FLIGHT: usize = 1024;

/// The calls of one driver.
pub struct Dispatcher {
    pub(crate) driver: Arc<Driver>,
    runs: Runs,
    unary: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

impl Dispatcher {
    pub(crate) fn new(driver: Arc<Driver>, tasks: Tasks) -> Self {
        Self {
            driver,
            runs: Runs::default(),
            unary: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            streams: Arc::new(Semaphore::new(MAX_PASSING)),
            tasks,
        }
    }

    /// Passes a stream on as fast as its caller reads. It changes nothing, so it ends with its
    /// caller.
    pub(crate) async fn stream(
        &self,
        call: Call,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Error> {
        let permit = self.streams.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Error::Full(MAX_PASSING))?;
        let response = self.driver.call(&call, deadline).await?;
        let source = "in the middle of a stream".into();
        let broken = Error::DriverBroke { driver: self.driver.name.clone(), source };
        Ok(forward::pass(response, &broken, permit))
    }

    /// Runs the call, unless the same operation is running or was answered already.
    pub(crate) async fn deduplicate(
        &self,
        operation: Operation,
        call: Call,
        deadline: Option<Instant>,
    ) -> CallResult {
        match self.runs.begin(operation)? {
            Begin::Done(answer) => Ok(*answer),
            Begin::Wait(outcome) => {
                let gone = |_| Err(Stopping("csi-edge").into());
                outcome.await.unwrap_or_else(gone)
            }
            Begin::Run(ticket) => self.run(call, deadline, Some(ticket)).await,
        }
    }

    /// Runs the call to its end, even if the caller leaves.
    pub(crate) async fn run(
        &self,
        call: Call,
        deadline: Option<Instant>,
        ticket: Option<Ticket>,
    ) -> CallResult {
        let permit = self.unary.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Error::Full(MAX_IN_FLIGHT))?;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(DeadlinePassed("before it was passed on to the driver").into());
        }
        let driver = self.driver.clone();
        let run = async move {
            let outcome = exchange(&driver, call, deadline).await.map_err(Shared::from);
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

async fn exchange(driver: &Driver, call: Call, deadline: Option<Instant>) -> Result<Answer, Error> {
    let response = driver.call(&call, deadline).await?;
    let broke = |source| Error::DriverBroke { driver: driver.name.clone(), source };
    Answer::collect(response).await.map_err(broke)
}
