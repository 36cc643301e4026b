//! Carries calls out against this node's drivers.
//!
//! A call that has been dispatched runs to its end though its caller, or the link, has gone. CSI: cancelling an RPC does not cancel the operation; so the driver is given no deadline,
//! and only its own answer, or its death, ends the call.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use proto::csi::frame;
use proto::csi::rpc;
use proto::csi::rpc::Rpc;
use proto::csi::topology;
use proto::error::{BadRequest, Error};
use proto::host::tasks::Tasks;
use proto::http2::busy_poll::Awake;
use proto::http2::forward;
use proto::http2::forward::{Answer, Body, CALL_ID, Call};
use proto::http2::upstream::MAX_PASSING;
use proto::names::{DriverName, NodeName};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::direct::may_be_deleted;
use crate::direct::own::asks::Asks;
use crate::drivers::Driver;
use crate::scopes::Scopes;
use crate::share::{Asked, Begin, Outcome, Share, Ticket};
use crate::topology::Ours;

/// Calls in flight at one driver; more are refused, since each holds its request and its answer in memory.
const MAX_IN_FLIGHT: usize = 1024;

/// The calls of all drivers of this node.
pub struct Calls {
    drivers: BTreeMap<DriverName, Slot>,
    scopes: Scopes,
    asks: Asks,
    /// Where it is kept what is handed over directly.
    direct: Option<PathBuf>,
    tasks: Tasks,
    awake: Arc<Awake>,
}

/// How a request came here.
#[derive(Default)]
pub struct Came {
    /// The cloud's id for the call.
    pub id: Option<Uuid>,
    /// Whether the link that it came on is no longer the one in use.
    pub replaced: Replaced,
    /// This node, if the request came in by its own front, whose callers see our topology.
    pub front_of: Option<NodeName>,
}

/// Set when a newer link is used instead. Not a token, whose clone for each call takes a lock.
pub type Replaced = Arc<AtomicBool>;

/// The body of a request on its way in.
pub trait Incomplete: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send {}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send> Incomplete for B {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

struct Slot {
    driver: Arc<Driver>,
    running: Share,
    room: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Calls {
    /// Calls against these drivers; they run in `tasks`.
    pub fn new(drivers: &[Arc<Driver>], tasks: Tasks) -> Self {
        let slot = |driver: &Arc<Driver>| Slot {
            driver: driver.clone(),
            running: Share::default(),
            room: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            streams: Arc::new(Semaphore::new(MAX_PASSING)),
        };
        let drivers = drivers.iter().map(|driver| (driver.name.clone(), slot(driver))).collect();
        Self {
            drivers,
            scopes: Scopes::default(),
            asks: Asks::default(),
            direct: None,
            tasks,
            awake: Arc::default(),
        }
    }

    /// The same with what is known of how far the drivers' volumes reach.
    #[must_use]
    pub fn scoped(self, scopes: Scopes) -> Self {
        Self { scopes, ..self }
    }

    /// The same, and no volume is deleted that this state directory has as handed over.
    #[must_use]
    pub fn keeping(self, direct: Option<PathBuf>) -> Self {
        Self { direct, ..self }
    }

    /// How far the drivers' volumes reach.
    pub fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    /// How the cloud is asked whose a volume is.
    pub(crate) fn asks(&self) -> &Asks {
        &self.asks
    }

    /// Whether the program stays awake for the next one.
    pub(crate) fn awake(&self) -> &Arc<Awake> {
        &self.awake
    }

    /// Answers a request from the cloud, whose `:authority` names the driver. `replaced` is set when the
    /// request's link is no longer the one in use.
    pub async fn from_link(
        self: Arc<Self>,
        request: Request<Incoming>,
        replaced: Replaced,
    ) -> Result<Response<Body>, Infallible> {
        let driver =
            request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let id = request.headers().get(CALL_ID).and_then(|id| Uuid::try_parse_ascii(id.as_bytes()).ok());
        self.answer(&driver, Came { id, replaced, front_of: None }, request).await
    }

    /// Answers a request for a driver.
    pub async fn answer<B: Incomplete>(
        &self,
        driver: &str,
        came: Came,
        request: Request<B>,
    ) -> Result<Response<Body>, Infallible> {
        let (begun, _awake) = (Instant::now(), self.awake.begin());
        let rpc = request.uri().path().to_owned();
        let result = self.run(driver, came, request).await;
        let ms = begun.elapsed().as_millis();
        Ok(result.inspect(|_| debug!(rpc, driver, ms, "answered")).unwrap_or_else(|error| {
            warn!(rpc, driver, code = ?error.code(), ms, error = error.chain(), "not carried out");
            error.response()
        }))
    }

    async fn run<B: Incomplete>(
        &self,
        driver: &str,
        Came { id, replaced, front_of }: Came,
        request: Request<B>,
    ) -> Result<Response<Body>, Arc<Error>> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path();
        if !rpc::of_driver(path) {
            return Err(Error::UnknownMethod(path.to_owned()).into());
        }
        let slot = self.drivers.iter().find(|(name, _)| name.as_str() == driver);
        let (name, slot) = slot.ok_or_else(|| Error::NoSuchDriver(driver.to_owned()))?;
        // A method newer than ours is the driver's to know; only its length of answer is bounded.
        let row = rpc::find(path);
        let method = row.map_or("a method newer than this csi-edge", |rpc| rpc.method);
        let bad = |source: BadRequest| Error::BadRequest { method, source };
        let deadline = forward::deadline(&parts.headers).map_err(bad)?;
        let work = async {
            let mut body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
            let message = frame::message(&body).map_err(|e| bad(e.into()))?;
            let key = row.map(|rpc| rpc.key(&message)).transpose().map_err(|e| bad(e.into()))?;
            if replaced.load(Ordering::Relaxed) {
                // It was on its way for so long that the cloud has sent it again, and maybe a later call too.
                return Err(Error::LinkReplaced.into());
            }
            if method == "DeleteVolume" {
                may_be_deleted(self.direct.as_deref(), name, &message)?;
            }
            parts.headers.remove(CALL_ID);
            let ours = row.zip(front_of).and_then(|(rpc, node)| self.ours(rpc, node, &slot.driver));
            if let Some(ours) = &ours {
                body = ours.out_of(&message)?;
            }
            let call = Call::new(parts, body.clone());
            let answer = match row.zip(key) {
                Some((rpc, _)) if rpc.streaming => {
                    return Box::pin(slot.stream(call, deadline)).await.map_err(Arc::new);
                }
                Some((rpc, key)) => {
                    let asked = Asked { rpc, body, subjects: rpc.subjects(&key), id };
                    slot.share(asked, call, deadline, &self.tasks).await?
                }
                None => slot.dispatch(call, deadline, None, &self.tasks).await?,
            };
            Ok(match ours {
                Some(ours) => ours.shown(answer)?.response(),
                None => answer.response(),
            })
        };
        forward::until(deadline, std::pin::pin!(work)).await
    }

    /// Asks a driver on behalf of a call that is not passed on as it came; it runs as any other does, to its end.
    pub async fn ask(&self, driver: &str, call: Call) -> Outcome {
        let slot = self.drivers.iter().find(|(name, _)| name.as_str() == driver);
        let (_, slot) = slot.ok_or_else(|| Error::NoSuchDriver(driver.to_owned()))?;
        let path = call.path.path();
        let rpc = rpc::find(path).ok_or_else(|| Error::UnknownMethod(path.to_owned()))?;
        let bad = |source: BadRequest| Error::BadRequest { method: rpc.method, source };
        let message = frame::message(&call.body).map_err(|e| bad(e.into()))?;
        let key = rpc.key(&message).map_err(|e| bad(e.into()))?;
        let asked = Asked { rpc, body: call.body.clone(), subjects: rpc.subjects(&key), id: None };
        slot.share(asked, call, None, &self.tasks).await
    }

    /// What is to be done about topology in a call of the node's own front, if anything.
    fn ours<'a>(&'a self, rpc: &'static Rpc, node: NodeName, driver: &'a Driver) -> Option<Ours<'a>> {
        let Rpc { method, .. } = rpc;
        topology::concerns(method).then_some(Ours { driver, scopes: &self.scopes, node, method })
    }
}

impl Slot {
    /// A stream changes nothing and is read as fast as its caller reads; it ends with its caller.
    async fn stream(&self, call: Call, deadline: Option<Instant>) -> Result<Response<Body>, Error> {
        let permit = self.streams.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_PASSING))?;
        let response = self.driver.call(&call, deadline).await?;
        let source = "in the middle of a stream".into();
        let broken = Error::DriverBroke { driver: self.driver.name.clone(), source };
        Ok(forward::pass(response, &broken, permit))
    }

    /// Carries the call out, unless it is running or was answered already.
    async fn share(&self, asked: Asked, call: Call, deadline: Option<Instant>, tasks: &Tasks) -> Outcome {
        match self.running.begin(asked)? {
            Begin::Done(answer) => Ok(*answer),
            Begin::Wait(outcome) => {
                let gone = |_| Err(Error::Stopping("csi-edge").into());
                outcome.await.unwrap_or_else(gone)
            }
            Begin::Run(ticket) => self.dispatch(call, deadline, Some(ticket), tasks).await,
        }
    }

    /// Runs the call to its end, also when the caller leaves.
    async fn dispatch(
        &self,
        call: Call,
        deadline: Option<Instant>,
        ticket: Option<Ticket>,
        tasks: &Tasks,
    ) -> Outcome {
        let permit = self.room.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_IN_FLIGHT))?;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Error::DeadlinePassed("before it was passed on to the driver").into());
        }
        let driver = self.driver.clone();
        let run = async move {
            let outcome = carry_out(&driver, call, deadline).await.map_err(Arc::new);
            drop(permit);
            if let Some(ticket) = ticket {
                ticket.end(&outcome);
            }
            outcome
        };
        Detaching { run: Some(Box::pin(run)), tasks }.await
    }
}

/// A run that its caller polls, and that goes on in a task of its own when the caller leaves.
struct Detaching<'a> {
    run: Option<BoxFuture<'static, Outcome>>,
    tasks: &'a Tasks,
}

impl Future for Detaching<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(run) = &mut self.run else { return Poll::Pending };
        let outcome = ready!(run.as_mut().poll(cx));
        self.run = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Detaching<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            // Nobody waits any more; the call is carried out all the same.
            self.tasks.spawn("call", async move { drop(run.await) });
        }
    }
}

async fn carry_out(driver: &Driver, call: Call, deadline: Option<Instant>) -> Result<Answer, Error> {
    let response = driver.call(&call, deadline).await?;
    let broke = |source| Error::DriverBroke { driver: driver.name.clone(), source };
    Answer::collect(response).await.map_err(broke)
}
