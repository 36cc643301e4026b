//! Reads and checks calls that come over the link or by the node's own front, and hands them to
//! their drivers' calls. It may use every room.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use parking_lot::RwLock;
use proto::control::leader::LeaderEpoch;
use proto::control::watermark::Watermark;
use proto::csi::frame;
use proto::csi::method;
use proto::csi::status::ToStatus;
use proto::csi::{Id, Key, Local, Method, Rewrite};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::busy_poll::BusyPoll;
use proto::http2::call_id::{self, CallId};
use proto::http2::forward::{self, Answer, BEGIN_WITHIN, CALL_ID, Call, LEADER_EPOCH, WATERMARK};
use proto::http2::paced::Paced;
use proto::http2::serve;
use proto::link::Io;
use proto::names::{DriverName, NodeName};
use tokio::select;
use tokio::time::{Instant, sleep_until};
use tracing::debug;
use tracing::field::display;
use uuid::Uuid;

use crate::bodies::{BodyBudget, BodyShare, NoBody};
use crate::denied_methods::{self, DeniedMethods};
pub use crate::driver_calls::DeleteGuard;
use crate::driver_calls::DriverCalls;
use crate::drivers::Drivers;
use crate::ended_calls::EndedCalls;
use crate::error::{Error, Shared};
use crate::expansions::{Caller, Expansions, Tracked};
use crate::fence::Fence;
use crate::introductions::may_stand_for;
use crate::node_volumes::NodeVolume;
use crate::operation::Operation;
use crate::rewrite::TopologyRewrite;
use crate::runs::CallResult;
pub use crate::runs::LOCK_WAIT;
use crate::scopes::{NODE_INFO_EVERY, Scopes};
pub use crate::validity::Replaced;
use crate::validity::Validity;
use crate::watermark::NewestWatermark;

/// Executes the calls of all drivers of this node.
pub struct Executor {
    drivers: Arc<Drivers>,
    /// The calls of each driver that was called.
    calls: RwLock<Vec<Arc<DriverCalls>>>,
    tasks: Tasks,
    scopes: Arc<Scopes>,
    denied: DeniedMethods,
    delete_guard: Option<Arc<DeleteGuard>>,
    expansions: Option<Arc<Expansions>>,
    fence: Arc<Fence>,
    watermark: NewestWatermark,
    busy_poll: Arc<BusyPoll>,
    ended: EndedCalls,
    bodies: BodyBudget,
    /// The part of it that the callers at the node's own fronts have.
    own_bodies: BodyShare,
}

/// A call in flight at a driver.
pub struct RunningCall {
    /// The driver.
    pub driver: DriverName,
    /// The time at which it began.
    pub begun: Instant,
    /// Its method.
    pub method: Method,
    /// What it is about.
    pub about: Vec<Id>,
}

/// The origin of a request.
#[derive(Default)]
pub struct Origin {
    /// The cloud's id for the call.
    pub id: Option<Uuid>,
    /// Set when a newer link replaced the one that the request came on.
    pub replaced: Replaced,
    /// This node, if the request came by its own front, whose callers see our topology.
    pub front_of: Option<NodeName>,
    /// The link's memory for requests that arrive; `None` at a front of the node.
    pub bodies: Option<BodyShare>,
}

/// Takes what the csi-cloud that sends a call says of itself, which is not for drivers: its leader
/// epoch, and how far its store is.
fn of_cloud(headers: &mut HeaderMap) -> (Option<LeaderEpoch>, Option<Watermark>) {
    let [epoch, watermark] = [&LEADER_EPOCH, &WATERMARK].map(|name| headers.remove(name));
    let epoch = epoch.as_ref().and_then(LeaderEpoch::of_header);
    (epoch, watermark.as_ref().and_then(Watermark::of_header))
}

/// The body of a request that is still arriving.
pub trait Incomplete: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send {}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send> Incomplete for B {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Executor {
    /// Executes calls against these drivers; the calls run in `tasks`.
    pub fn new(drivers: Arc<Drivers>, tasks: Tasks) -> Self {
        let fence = Arc::new(Fence::open(None, drivers.node().clone()));
        let bodies = BodyBudget::default();
        let watermark = NewestWatermark::open(None, tasks.clone());
        Self {
            watermark,
            drivers,
            calls: RwLock::default(),
            tasks,
            scopes: Arc::default(),
            denied: DeniedMethods::default(),
            delete_guard: None,
            expansions: None,
            fence,
            busy_poll: Arc::default(),
            ended: EndedCalls::default(),
            own_bodies: bodies.share(),
            bodies,
        }
    }

    /// Uses these scopes of the drivers.
    #[must_use]
    pub fn with_scopes(self, scopes: Arc<Scopes>) -> Self {
        Self { scopes, ..self }
    }

    /// How many deletes of csi-cloud were refused because they were too many.
    pub fn deletes_refused(&self) -> u64 {
        self.denied.deletes_refused()
    }

    /// Denies calls to the cloud.
    #[must_use]
    pub fn with_denied_methods(self, denied: DeniedMethods) -> Self {
        Self { denied, ..self }
    }

    /// Asks this guard before each DeleteVolume.
    #[must_use]
    pub fn with_delete_guard(self, guard: DeleteGuard) -> Self {
        Self { delete_guard: Some(Arc::new(guard)), ..self }
    }

    /// Expands volumes on this node.
    #[must_use]
    pub fn with_expansions(self, expansions: Option<Arc<Expansions>>) -> Self {
        Self { expansions, ..self }
    }

    /// Uses this fence, which remembers the csi-cloud that may call.
    #[must_use]
    pub fn with_fence(self, fence: Fence) -> Self {
        Self { fence: Arc::new(fence), ..self }
    }

    /// Keeps csi-cloud's watermark here.
    #[must_use]
    pub fn with_watermark(self, watermark: NewestWatermark) -> Self {
        Self { watermark, ..self }
    }

    /// The newest watermark of csi-cloud.
    pub fn watermark(&self) -> &NewestWatermark {
        &self.watermark
    }

    /// The fence, which knows the csi-cloud that may call.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Whether the program polls for the next call instead of sleeping.
    pub fn busy_poll(&self) -> &Arc<BusyPoll> {
        &self.busy_poll
    }

    /// Has drivers asked for NodeGetInfo again, from time to time and until dropped: those that no
    /// kubelet registers, because csi-cloud publishes them.
    pub async fn ask_node_infos(self: Arc<Self>) {
        // Each driver's introduction has just asked.
        let mut asked: HashMap<DriverName, Instant> = HashMap::new();
        let mut changes = self.drivers.changes();
        loop {
            let now = Instant::now();
            let mut next = now + NODE_INFO_EVERY;
            for driver in self.drivers.all() {
                let Some(every) = self.scopes.node_info_every(&driver.name) else {
                    asked.remove(&driver.name);
                    continue;
                };
                let last = asked.entry(driver.name.clone()).or_insert(now);
                if now >= *last + every {
                    driver.ask_node_info();
                    *last = now;
                }
                next = next.min(*last + every);
            }
            select! {
                biased;
                () = self.scopes.changed() => {}
                _ = changes.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// The calls of the Node service at this node's fronts that ended.
    pub fn ended(&self) -> &EndedCalls {
        &self.ended
    }

    /// Serves the cloud's calls on a byte stream of a link until it closes. If `tasks` are told to
    /// stop, the calls in flight are answered before. `replaced` is set when a newer link replaced
    /// it.
    ///
    /// # Errors
    /// The cloud does not speak HTTP/2, or broke off.
    pub async fn serve_link(
        self: Arc<Self>,
        io: Io,
        replaced: Replaced,
        tasks: &Tasks,
    ) -> hyper::Result<()> {
        let bodies = self.bodies.share();
        let service = move |request| {
            let origin = Origin {
                replaced: replaced.clone(),
                bodies: Some(bodies.clone()),
                ..Origin::default()
            };
            self.clone().answer_link(request, origin)
        };
        tokio::select! {
            biased;
            served = serve::serve(Paced::serving(io), service, tasks.stopped()) => served,
            () = tasks.given_up() => Ok(()),
        }
    }

    /// Answers a request from the cloud, whose `:authority` names the driver.
    async fn answer_link(
        self: Arc<Self>,
        request: Request<Incoming>,
        origin: Origin,
    ) -> Result<Response<Body>, Infallible> {
        let authority = request.uri().authority();
        let driver = authority.map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let id = call_id::ours(request.headers());
        self.answer(&driver, Origin { id, ..origin }, request).await
    }

    /// Answers a request for a driver.
    ///
    /// # Errors
    /// None: a call that fails is answered with its status.
    pub async fn answer<B: Incomplete>(
        &self,
        driver: &str,
        origin: Origin,
        request: Request<B>,
    ) -> Result<Response<Body>, Infallible> {
        let begun = Instant::now();
        let _busy_poll = self.busy_poll.begin();
        let rpc = request.uri().path().to_owned();
        let by_link = origin.front_of.is_none();
        let id = origin.id.or_else(|| call_id::ours(request.headers()));
        let call = CallId::of(request.headers(), id).map(display);
        let result = self.run(driver, origin, request).await;
        let ms = begun.elapsed().as_millis();
        Ok(result.inspect(|_| debug!(call, rpc, driver, ms, "answered")).unwrap_or_else(|error| {
            let code = error.code();
            let caller = if by_link { LogPeer::Cloud } else { LogPeer::Caller };
            peer_warn!(
                caller,
                call,
                rpc,
                driver,
                ?code,
                ms,
                error = error.chain(),
                "not carried out"
            );
            match by_link && error.is_not_dispatched() {
                true => forward::refusal(&error),
                false => forward::failure(&error),
            }
        }))
    }

    async fn run<B: Incomplete>(
        &self,
        driver: &str,
        Origin { id, replaced, front_of, bodies }: Origin,
        request: Request<B>,
    ) -> Result<Response<Body>, Shared> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path();
        if !method::of_driver(path) {
            return Err(Error::UnknownMethod(path.to_owned()).into());
        }
        let by_link = front_of.is_none();
        let (epoch, watermark) = of_cloud(&mut parts.headers);
        // By the node's own front the driver gets methods newer than this csi-edge too; only the
        // answer's length is bounded.
        let method =
            if by_link { Some(denied_methods::sent(path)?) } else { Method::of_path(path) };
        let calls = &self.calls(driver)?;
        let deadline = forward::deadline(&parts.headers).map_err(|e| Error::bad(method, e))?;
        let begins_by = forward::deadline_in(&parts.headers, &BEGIN_WITHIN);
        let begins_by = begins_by.map_err(|e| Error::bad(method, e))?;
        parts.headers.remove(&BEGIN_WITHIN);
        let validity = Validity::until(deadline);
        let validity = match by_link {
            true => validity.on_link(self.fence.clone(), epoch, replaced).beginning_by(begins_by),
            false => validity,
        };
        let work = async {
            let mut body = self.collect(method, bodies.as_ref(), body).await?;
            let (message, key) = read(method, &body)?;
            if by_link {
                validity.check_link()?;
                self.settle(epoch, watermark).await?;
            }
            if let Some((method, key)) = method.zip(key.as_ref()) {
                self.check_allowed(method, key, by_link, calls)?;
            }
            parts.headers.remove(&CALL_ID);
            let rewrite = method.zip(front_of);
            let rewrite = rewrite.and_then(|(method, node)| self.rewrite(method, node, calls));
            if let Some(rewrite) = &rewrite {
                body = rewrite.request(&message)?;
            }
            let call = Call::new(parts, body.clone());
            let kept = method.filter(|_| !by_link).and_then(|method| self.kept(method, calls));
            let answer = match (kept, method.zip(key)) {
                (Some(kept), _) => kept,
                (None, Some((method, _))) if method.streaming() => {
                    let streamed = Box::pin(calls.stream(call, &validity)).await;
                    return streamed.map_err(Shared::from);
                }
                (None, Some((method, key))) => {
                    let caller = if by_link { Caller::Cloud } else { Caller::Node };
                    let tracked = self.track(calls, caller, method, &message)?;
                    let operation = Operation::new(method, &key, &message, body).of_call(id);
                    let answer = calls.deduplicate(operation, call, validity, tracked).await?;
                    self.earlier(method, calls, &answer).filter(|_| !by_link).unwrap_or(answer)
                }
                (None, None) => calls.run(call, validity, None, None).await?,
            };
            Ok(match rewrite {
                Some(rewrite) => rewrite.answer(answer)?.response(),
                None => answer.response(),
            })
        };
        forward::until(deadline, std::pin::pin!(work)).await
    }

    /// The whole body of a request, in the memory of its link or of the node's own callers.
    async fn collect<B: Incomplete>(
        &self,
        method: Option<Method>,
        share: Option<&BodyShare>,
        body: B,
    ) -> Result<Bytes, Error> {
        let collected = share.unwrap_or(&self.own_bodies).collect(body).await;
        collected.map_err(|why| match why {
            NoBody::Frame(error) => Error::bad(method, error),
            NoBody::Late => Error::BodyLate { node: self.drivers.node().clone() },
        })
    }

    /// Waits until it is known whether the csi-cloud of this epoch may call, and then believes how
    /// far its store is.
    async fn settle(
        &self,
        epoch: Option<LeaderEpoch>,
        watermark: Option<Watermark>,
    ) -> Result<(), Error> {
        if !self.fence.is_settled(epoch) {
            Box::pin(self.fence.settle(epoch)).await?;
        }
        watermark.into_iter().for_each(|told| self.watermark.take(told));
        Ok(())
    }

    /// Calls a driver on behalf of csi-edge itself, and ends the call at the deadline as any other.
    ///
    /// # Errors
    /// There is no such driver or method, or the request cannot be read. Otherwise the call was not
    /// carried out, or its outcome is not known.
    pub async fn ask(&self, driver: &str, call: Call, deadline: Option<Instant>) -> CallResult {
        let calls = &self.calls(driver)?;
        let path = call.path.path();
        let method = Method::of_path(path).ok_or_else(|| Error::UnknownMethod(path.to_owned()))?;
        let message = frame::message(&call.body).map_err(|e| Error::bad(Some(method), e))?;
        let key = method.key(&message).map_err(|e| Error::bad(Some(method), e))?;
        let tracked = self.track(calls, Caller::Own, method, &message)?;
        let operation = Operation::new(method, &key, &message, call.body.clone());
        calls.deduplicate(operation, call, Validity::until(deadline), tracked).await
    }

    /// Tracks the effect of a call on owed growth of a volume on this node.
    fn track(
        &self,
        calls: &DriverCalls,
        caller: Caller,
        method: Method,
        message: &Bytes,
    ) -> Result<Option<Tracked>, Error> {
        let Some(expansions) = &self.expansions else { return Ok(None) };
        expansions.track(&calls.driver, caller, method, message)
    }

    /// The answer for a driver that is away, if it has introduced itself and the call asks for
    /// that.
    fn kept(&self, method: Method, calls: &DriverCalls) -> Option<Answer> {
        let local = method.local().filter(|_| !calls.driver.is_here())?;
        let message = self.drivers.introductions().answer(&calls.driver.name, local)?;
        Some(Answer::of(frame::frame(&message)))
    }

    /// What the same driver said to NodeGetInfo before, if this is a failure that may pass. Another
    /// answer than before is noted.
    fn earlier(&self, method: Method, calls: &DriverCalls, answer: &Answer) -> Option<Answer> {
        if method.local() != Some(Local::NodeInfo) {
            return None;
        }
        calls.driver.note_node_info(answer);
        let failure = answer.failure()?;
        let info = calls.driver.plugin_info().filter(|_| may_stand_for(failure.code()))?;
        let message = self.drivers.introductions().node_info(&calls.driver.name, &info)?;
        Some(Answer::of(frame::frame(&message)))
    }

    /// The calls of a driver, which may have been found since the last one.
    fn calls(&self, driver: &str) -> Result<Arc<DriverCalls>, Error> {
        let named = |calls: &&Arc<DriverCalls>| calls.driver.name.as_str() == driver;
        let known = self.calls.read();
        if let Some(calls) = known.iter().find(named) {
            return Ok(calls.clone());
        }
        drop(known);
        let no_such =
            || Error::NoSuchDriver { node: self.drivers.node().clone(), driver: driver.to_owned() };
        let found = self.drivers.of_name(driver).ok_or_else(no_such)?;
        let mut known = self.calls.write();
        // Another call may have been faster.
        if let Some(calls) = known.iter().find(named) {
            return Ok(calls.clone());
        }
        let calls = Arc::new(DriverCalls::new(
            found,
            self.delete_guard.clone(),
            self.scopes.clone(),
            self.tasks.clone(),
        ));
        known.push(calls.clone());
        Ok(calls)
    }

    /// The volumes whose expansion has begun, and has not ended on this node.
    pub fn open_expansions(&self) -> Vec<NodeVolume> {
        self.expansions.as_ref().map(|expansions| expansions.growing()).unwrap_or_default()
    }

    /// The calls in flight, in no order.
    pub fn running(&self) -> Vec<RunningCall> {
        let known = self.calls.read();
        let of = |calls: &Arc<DriverCalls>| {
            let driver = calls.driver.name.clone();
            let call = move |(begun, method, about)| RunningCall {
                driver: driver.clone(),
                begun,
                method,
                about,
            };
            calls.runs.running().into_iter().map(call)
        };
        known.iter().flat_map(of).collect()
    }

    /// Refuses a call of the cloud that the node's operator denies. The node's own calls are noted.
    fn check_allowed(
        &self,
        method: Method,
        key: &Key,
        by_link: bool,
        calls: &DriverCalls,
    ) -> Result<(), Error> {
        if by_link {
            let node = self.drivers.node();
            self.denied.check(node, method, || calls.runs.is_running(&method.about(key)))?;
            return self.denied.check_deletes(node, &calls.driver.name, method, key);
        }
        self.denied.note_run(method);
        Ok(())
    }

    /// The rewriting of topology in a call of the node's own front; none if the method has none.
    fn rewrite<'a>(
        &'a self,
        method: Method,
        node: NodeName,
        calls: &'a DriverCalls,
    ) -> Option<TopologyRewrite<'a>> {
        let driver = &*calls.driver;
        let Self { scopes, drivers, .. } = self;
        let introductions = drivers.introductions();
        let rewrite = TopologyRewrite { driver, scopes, introductions, node, method };
        (method.rewrite() != Rewrite::Nothing).then_some(rewrite)
    }
}

/// The message of a framed request, and what it is about if its method is known.
fn read(method: Option<Method>, body: &Bytes) -> Result<(Bytes, Option<Key>), Error> {
    let message = frame::message(body).map_err(|e| Error::bad(method, e))?;
    let key = method.map(|method| method.key(&message)).transpose();
    Ok((message, key.map_err(|e| Error::bad(method, e))?))
}
