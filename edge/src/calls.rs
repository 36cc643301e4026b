//! Carries calls out against this node's drivers.
//!
//! A call that has been dispatched lives in a task of its own and runs to its end though its caller, or the
//! link, has gone. CSI: cancelling an RPC does not cancel the operation; so the driver is given no deadline,
//! and only its own answer, or its death, ends the call.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use proto::error::{BadRequest, Error};
use proto::forward::{self, Answer, Body, Call};
use proto::frame;
use proto::identity::DriverName;
use proto::rpc;
use proto::stop::Tasks;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::drivers::Driver;

/// Calls in flight at one driver; more are refused, since each holds its request and its answer in memory.
const MAX_IN_FLIGHT: usize = 1024;

/// The calls of all drivers of this node.
pub struct Calls {
    drivers: BTreeMap<DriverName, Slot>,
    tasks: Tasks,
}

struct Slot {
    driver: Arc<Driver>,
    room: Arc<Semaphore>,
}

impl Calls {
    /// Calls against these drivers; they run in `tasks`.
    pub fn new(drivers: &[Arc<Driver>], tasks: Tasks) -> Self {
        let slot = |driver: &Arc<Driver>| Slot {
            driver: driver.clone(),
            room: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        };
        Self { drivers: drivers.iter().map(|driver| (driver.name.clone(), slot(driver))).collect(), tasks }
    }

    /// Answers a request from the cloud, whose `:authority` names the driver.
    pub async fn from_link(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let driver =
            request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        self.answer(&driver, request).await
    }

    /// Answers a request for a driver.
    pub async fn answer(
        &self,
        driver: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let begun = Instant::now();
        let rpc = request.uri().path().to_owned();
        let result = self.run(driver, request).await;
        let ms = begun.elapsed().as_millis();
        Ok(result.inspect(|_| debug!(rpc, driver, ms, "answered")).unwrap_or_else(|error| {
            warn!(rpc, driver, code = ?error.code(), ms, error = error.chain(), "not carried out");
            error.response()
        }))
    }

    async fn run(&self, driver: &str, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if !rpc::of_driver(path) {
            return Err(Error::UnknownMethod(path.to_owned()));
        }
        let slot = self.drivers.iter().find(|(name, _)| name.as_str() == driver);
        let (_, slot) = slot.ok_or_else(|| Error::NoSuchDriver(driver.to_owned()))?;
        // A method newer than ours is the driver's to know; only its length of answer is bounded.
        let row = rpc::find(path);
        let method = row.map_or("a method newer than this csi-edge", |rpc| rpc.method);
        let bad = |source: BadRequest| Error::BadRequest { method, source };
        let deadline = forward::deadline(&parts.headers).map_err(bad)?;
        let work = async {
            let body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
            frame::message(&body).map_err(|e| bad(e.into()))?;
            let call = Call::new(parts, body);
            if row.is_some_and(|rpc| rpc.streaming) {
                slot.stream(call).await
            } else {
                slot.dispatch(call, deadline, &self.tasks).await
            }
        };
        forward::until(deadline, std::pin::pin!(work)).await
    }
}

impl Slot {
    /// A stream changes nothing and is read as fast as its caller reads; it ends with its caller.
    async fn stream(&self, call: Call) -> Result<Response<Body>, Error> {
        let response = self.driver.call(call).await?;
        let source = "in the middle of a stream".into();
        Ok(forward::pass(response, &Error::DriverBroke { driver: self.driver.name.clone(), source }))
    }

    /// Runs the call in its own task and waits for it.
    async fn dispatch(
        &self,
        call: Call,
        deadline: Option<Instant>,
        tasks: &Tasks,
    ) -> Result<Response<Body>, Error> {
        let permit = self.room.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_IN_FLIGHT))?;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Error::DeadlinePassed("before it was passed on to the driver"));
        }
        let (answer, answered) = oneshot::channel();
        let driver = self.driver.clone();
        tasks.spawn("call", async move {
            let result = carry_out(&driver, call).await;
            drop(permit);
            // Nobody may be waiting any more; the call was carried out all the same.
            let _ = answer.send(result);
        });
        let gone = |_| Err(Error::Stopping("csi-edge"));
        answered.await.unwrap_or_else(gone).map(Answer::response)
    }
}

async fn carry_out(driver: &Driver, call: Call) -> Result<Answer, Error> {
    let response = driver.call(call).await?;
    let broke = |source| Error::DriverBroke { driver: driver.name.clone(), source };
    Answer::collect(response).await.map_err(broke)
}
