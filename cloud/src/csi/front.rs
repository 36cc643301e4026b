//! The CSI socket of one driver in the cloud: every call of its sidecars comes in here.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use proto::csi::frame;
use proto::csi::rpc;
use proto::csi::rpc::{Key, Rpc};
use proto::error::{BadRequest, Error};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::forward;
use proto::http2::forward::{Answer, Body, CALL_ID, Call};
use proto::http2::serve;
use proto::names::{DriverName, NodeName};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::csi::capacity::Capacities;
use crate::csi::dispatch::Carrier;
use crate::csi::identity;
use crate::csi::lists::Lists;
use crate::csi::route::{Facts, Plan, Unclear, route};
use crate::nodes::discover::Finder;
use crate::nodes::in_doubt::Unsettled;
use crate::nodes::links::Links;
use crate::nodes::query::Asker;
use crate::state::clock::now;
use crate::state::create_journal::Creates;
use crate::state::driver_info::Unknown;
use crate::state::election::elect;
use crate::state::known::{OfDriver, State};
use crate::state::node_names::names;
use crate::state::policy::{Placement, Policy, Scope};
use crate::state::record::text;
use crate::state::store::writer::Store;
use crate::telemetry::calls;
use crate::telemetry::calls::{Calls, Running, UNKNOWN};

/// Calls of one driver in flight; more are refused, since each holds its request and its answer in memory.
pub(crate) const MAX_CALLS: usize = 1024;

/// How long after its start csi-cloud has holders' calls wait for edges: those of a large fleet come back within 16 s.
const EDGES: Duration = Duration::from_secs(30);
/// Edges come in swarms; a call is looked at again so often at most.
const AGAIN: Duration = Duration::from_millis(20);

/// One driver's front.
pub struct Front {
    driver: DriverName,
    /// The node that all its calls are for, if it is a node's own front.
    only: Option<NodeName>,
    policy: Policy,
    store: Store,
    asker: Asker,
    creates: Arc<Creates>,
    lists: Lists,
    capacities: Capacities,
    unsettled: Unsettled,
    room: Semaphore,
    calls: Arc<Calls>,
}

/// By what a request came in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// A socket of ours.
    Socket,
    /// A holder, which has given it its id.
    Holder,
}

/// A call as it came in.
#[derive(Clone)]
pub(crate) struct Came {
    /// Its row in the table.
    pub(crate) rpc: &'static Rpc,
    /// What it is about.
    pub(crate) key: Key,
    /// Its unframed request.
    pub(crate) message: Bytes,
    /// All of it.
    pub(crate) call: Call,
    /// Until when its caller waits.
    pub(crate) deadline: Option<Instant>,
    /// Where others see how far it got.
    pub(crate) running: Arc<Running>,
}

impl Front {
    /// The front of a driver, whose calls are seen among `calls`.
    pub fn new(
        driver: DriverName,
        policy: Policy,
        store: Store,
        links: Arc<Links>,
        calls: Arc<Calls>,
    ) -> Self {
        let tasks = links.tasks().child();
        let asker = Asker::new(driver.clone(), links);
        let creates = Arc::new(Creates::new(driver.clone(), store.clone()));
        let lists = Lists::new(asker.clone(), store.clone(), tasks.clone());
        let capacities = Capacities::new(asker.clone(), store.clone(), policy.grace, tasks);
        let elected = store.read(|state| state.driver(&driver)?.elected().cloned());
        let (unsettled, room) = (Unsettled::after(elected), Semaphore::new(MAX_CALLS));
        Self { driver, only: None, policy, store, asker, creates, lists, capacities, unsettled, room, calls }
    }

    /// The front of one node: what names no other node is for it.
    pub(crate) fn of_node(&self, node: NodeName) -> Self {
        let (driver, policy, store) = (self.driver.clone(), self.policy.clone(), self.store.clone());
        let front = Self::new(driver, policy, store, self.asker.links().clone(), self.calls.clone());
        // A name is one create, whichever front it comes in by. What it sends goes to no elected node.
        let (creates, unsettled) = (self.creates.clone(), Unsettled::default());
        Self { only: Some(node), creates, unsettled, ..front }
    }

    /// All links.
    pub(crate) fn links(&self) -> &Arc<Links> {
        self.asker.links()
    }

    /// The nodes that have the driver, without those that were removed.
    pub(crate) fn nodes(&self) -> Vec<NodeName> {
        self.store.read(|state| {
            let nodes = state.driver(&self.driver).map(|driver| driver.nodes().keys());
            nodes.into_iter().flatten().filter(|node| !state.is_removed(node)).cloned().collect()
        })
    }

    /// The lists of all its nodes together.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Serves the socket, if it has one, until told to stop; calls in flight are answered first.
    pub async fn serve(self: Arc<Self>, socket: Option<Socket>, tasks: Tasks) {
        let front = self.clone();
        tasks.spawn_until_stop("new nodes", async move {
            front.lists.learn_new(|| front.scope() == Scope::Node).await;
        });
        if let Some(socket) = socket {
            self.answer_all(socket, tasks).await;
        }
    }

    /// Answers what comes on a socket until told to stop.
    pub(crate) async fn answer_all(self: Arc<Self>, socket: Socket, tasks: Tasks) {
        serve::serve_socket(socket, move |request| self.clone().answer(request), tasks).await;
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        Ok(self.answered(request, By::Socket).await.unwrap_or_else(|error| error.response()))
    }

    /// Answers one request that a holder brings. It may have been on its way through another csi-cloud before, when
    /// the edges were linked to that one, so it waits for them if this one has just begun.
    ///
    /// # Errors
    /// It was not carried out, or its outcome is not known.
    pub(crate) async fn answer_held(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Error> {
        self.answered(request, By::Holder).await
    }

    async fn answered(&self, request: Request<Incoming>, by: By) -> Result<Response<Body>, Error> {
        let begun = Instant::now();
        let path = request.uri().path().to_owned();
        let rpc = rpc::find(&path).ok_or_else(|| Error::UnknownMethod(path.clone()));
        let method = rpc.as_ref().map_or(UNKNOWN, |rpc| rpc.method);
        let ongoing = self.calls.clone().begin(method, &self.driver);
        let result = match rpc {
            Ok(rpc) => self.call(rpc, request, ongoing.running(), by).await,
            Err(error) => Err(error),
        };
        ongoing.ended(result.as_ref().map_or_else(Error::code, calls::code));
        let (driver, ms) = (&self.driver, begun.elapsed().as_millis());
        match &result {
            Ok(_) => debug!(rpc = path, %driver, ms, "answered"),
            Err(error) => {
                warn!(rpc = path, %driver, code = ?error.code(), ms, error = error.chain(), "not carried out");
            }
        }
        result
    }

    async fn call(
        &self,
        rpc: &'static Rpc,
        request: Request<Incoming>,
        running: Arc<Running>,
        by: By,
    ) -> Result<Response<Body>, Error> {
        let bad = |source: BadRequest| Error::BadRequest { method: rpc.method, source };
        let (mut parts, body) = request.into_parts();
        if by == By::Socket {
            // A sidecar has no say in this.
            parts.headers.remove(CALL_ID);
        }
        let deadline = forward::deadline(&parts.headers).map_err(bad)?;
        let answered = async {
            let body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
            let message = frame::message(&body).map_err(|e| bad(e.into()))?;
            let key = rpc.key(&message).map_err(|e| bad(e.into()))?;
            // A shared driver is asked whatever it is, and says so itself.
            if let Some(field) = rpc.missing(&key).filter(|_| self.scope() == Scope::Node) {
                return Err(Error::Missing(rpc.method, field));
            }
            running.is_about(&key);
            let call = Call::new(parts, body);
            let mut came = Came { rpc, key, message, call, deadline, running };
            match by {
                By::Socket => self.planned(&mut came).await,
                // Boxed: every other call would have room for it too.
                By::Holder => Box::pin(self.awaited(&came)).await,
            }
        };
        forward::until(deadline, std::pin::pin!(answered)).await
    }

    /// Carries a call out, and as long as csi-cloud has just begun, again when another edge has linked.
    async fn awaited(&self, came: &Came) -> Result<Response<Body>, Error> {
        let mut linking = self.links().linking();
        while let Some(left) = EDGES.checked_sub(self.links().age()) {
            linking.mark_unchanged();
            let error = match self.planned(&mut came.clone()).await {
                Err(error) if error.awaits_link() => error,
                other => return other,
            };
            if tokio::time::timeout(left, linking.changed()).await.is_err() {
                return Err(error);
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.planned(&mut came.clone()).await
    }

    async fn planned(&self, came: &mut Came) -> Result<Response<Body>, Error> {
        let mut plan = self.plan(came).await?;
        if let Plan::Ask(ids) = &plan {
            let finder = Finder { asker: &self.asker, store: &self.store, deadline: came.deadline };
            let _room = self.room()?;
            for id in ids {
                match finder.find(id).await {
                    // CSI: a list of a snapshot that is not there is empty.
                    Err(Error::NoSuchThing { .. }) if came.rpc.bulk() => return Ok(empty()),
                    Err(error @ Error::NoSuchThing { .. }) => {
                        let incomplete = came.rpc.incomplete(&came.message);
                        return Err(incomplete.map_or(error, |field| Error::Missing(came.rpc.method, field)));
                    }
                    found => found?,
                }
            }
            plan = self.plan(came).await?;
        }
        let Self { driver, asker, store, creates, lists, capacities, unsettled, .. } = self;
        let carrier =
            Carrier { driver, asker, store, creates, lists, capacities, unsettled, scope: self.scope() };
        match plan {
            Plan::Local => self.local(came.rpc),
            Plan::NodeOnly => Err(Error::NodeOnly(came.rpc.method)),
            Plan::Done => Ok(empty()),
            Plan::Ask(ids) => {
                let id = ids.first().map(text).unwrap_or_default().into();
                Err(Error::NoSuchThing { driver: driver.clone(), id })
            }
            Plan::Node(_) | Plan::Make(_) | Plan::Everywhere | Plan::All | Plan::Capacity(_) => {
                let _room = self.room()?;
                carrier.carry(plan, came).await
            }
        }
    }

    fn room(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Error> {
        self.room.try_acquire().map_err(|_| Error::Full(MAX_CALLS))
    }

    /// How far the driver's volumes reach: the operator's word, else what the driver says.
    fn scope(&self) -> Scope {
        let inferred =
            || self.store.read(|state| state.driver(&self.driver).map(|driver| driver.said().scope()));
        self.policy.scope.or_else(inferred).unwrap_or(Scope::Node)
    }

    async fn plan(&self, came: &Came) -> Result<Plan, Error> {
        let scope = self.scope();
        if scope == Scope::Shared && self.only.is_none() && !matches!(came.key, Key::Local | Key::Node(_)) {
            self.elect().await?;
        }
        let links = self.asker.links();
        let decided = self.store.read(|state| {
            let facts = Facts {
                driver: state.driver(&self.driver),
                linked: &|node| links.now(node).is_some(),
                removed: &|node| state.is_removed(node),
                only: self.only.as_ref(),
                scope,
                policy: &self.policy,
                now: now(),
            };
            route(came.rpc, &came.key, &facts)
        });
        let driver = self.driver.clone();
        decided.map_err(|unclear| match unclear {
            Unclear::Yet(why) => Error::NoRoute { driver, why },
            Unclear::Nowhere(why) => Error::Nowhere { driver, why },
            Unclear::Removed(node) => Error::Removed { node },
            Unclear::Away(node) if self.policy.reschedule && came.rpc.method == "CreateVolume" => {
                Error::Reschedule { node }
            }
            Unclear::Away(node) => Error::NotLinked { node, driver },
            Unclear::SeveralHomes(nodes) => {
                Error::SeveralHomes { method: came.rpc.method, nodes: names(&nodes) }
            }
        })
    }

    /// Elects another node if the one of now has been away for too long.
    async fn elect(&self) -> Result<(), Error> {
        let links = self.asker.links();
        self.unsettled.forget(|node| self.store.read(|state| state.is_removed(node)));
        let next = |state: &State, driver: &OfDriver| {
            let away = |node: &NodeName| {
                if state.is_removed(node) { Some(Duration::MAX) } else { links.away(node) }
            };
            elect(driver.elected(), driver.nodes().keys(), away, self.policy.grace).cloned()
        };
        let next = self.store.read(|state| state.driver(&self.driver).and_then(|driver| next(state, driver)));
        let Some(next) = next else { return Ok(()) };
        tracing::info!(driver = %self.driver, node = %next, "elected for a shared driver");
        let driver = self.driver.clone();
        let written = self.store.write(move |txn| txn.elect(&driver, Some(next)));
        written.await.map_err(|source| Error::NotDurable { source: source.into() })
    }

    /// What the one node says that calls go to which name none: the pinned one, else the only one there is.
    fn node_info(&self, driver: &OfDriver, scope: Scope) -> Result<Option<Bytes>, Unknown> {
        let nodes = driver.nodes();
        let node = match (&self.only, &self.policy.placement) {
            (Some(node), _) | (None, Placement::Pinned(node)) => node,
            (None, Placement::Spread) if nodes.len() == 1 => nodes.keys().next().ok_or(Unknown)?,
            (None, Placement::Spread) => return Err(Unknown),
        };
        let at = nodes.get(node).filter(|at| at.has_spoken()).ok_or(Unknown)?;
        let shown = |info| {
            crate::rewrite::message::into(
                "NodeGetInfo",
                info,
                node,
                Some(at).filter(|_| scope == Scope::Node),
            )
        };
        Ok(at.answer("NodeGetInfo").map(|info| shown(info).unwrap_or_else(|_| info.clone())))
    }

    fn local(&self, rpc: &'static Rpc) -> Result<Response<Body>, Error> {
        let scope = self.scope();
        let learned = self.store.read(|state| {
            let driver = state.driver(&self.driver).ok_or(Unknown)?;
            match rpc.method {
                // The same at each node, so there is none that is the front's.
                "NodeGetInfo" => self.node_info(driver, scope),
                method => {
                    let said = driver.said();
                    for odd in said.news() {
                        warn!(driver = %self.driver, %odd, "its nodes differ; the front says only what all can do");
                    }
                    said.answer(method, scope == Scope::Node && driver.has_our_topology())
                }
            }
        });
        identity::answer(rpc.method, &self.driver, learned)
            .map(|message| Answer::of(frame::frame(&message)).response())
    }
}

/// The answer of OK with a message that has no fields set.
fn empty() -> Response<Body> {
    Answer::of(frame::frame(&[])).response()
}
