//! The CSI socket of one driver in the cloud: every call of its sidecars comes in here.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use proto::csi::frame;
use proto::csi::status::ToStatus;
use proto::csi::{Id, Method};
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::forward::{self, Body, CALL_ID};
use proto::http2::serve;
use proto::names::{DriverName, NodeName};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::capacity::Capacities;
use super::dispatch::{Dispatcher, MAX_CALLS};
use super::lists::merged::Lists;
use super::plan::Planner;
use super::request::{Arrived, IncomingCall, bad, prepare};
use crate::error::Error;
use crate::nodes::in_doubt::InDoubt;
use crate::nodes::links::Links;
use crate::nodes::query::NodeQueries;
use crate::state::create_journal::CreateJournal;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;
use crate::telemetry::calls::{self, Calls, Running, UNKNOWN};

/// How long after its start csi-cloud has relayed calls wait for edges: those of a large fleet come
/// back within 16 s.
const EDGES: Duration = Duration::from_secs(30);
/// Edges come in swarms; a call is looked at again so often at most.
const AGAIN: Duration = Duration::from_millis(20);

/// One driver's front.
pub struct Front {
    dispatcher: Dispatcher,
    calls: Arc<Calls>,
}

/// How a request came in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// A socket of ours.
    Socket,
    /// A socket relay, which has given it its id.
    Relay,
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
        let asker = NodeQueries::new(driver.clone(), links);
        let elected = store.read(|state| state.driver(&driver)?.elected().cloned());
        let dispatcher = Dispatcher {
            journal: Arc::new(CreateJournal::new(driver.clone(), store.clone())),
            lists: Lists::new(asker.clone(), store.clone(), tasks.clone()),
            capacities: Capacities::new(asker.clone(), store.clone(), policy.grace, tasks),
            in_doubt: InDoubt::after(elected),
            room: Semaphore::new(MAX_CALLS),
            planner: Planner { driver, only: None, policy },
            store,
            asker,
        };
        Self { dispatcher, calls }
    }

    /// The front of one node: what names no other node is for it.
    pub(crate) fn of_node(&self, node: NodeName) -> Self {
        let Dispatcher { planner, store, asker, journal, .. } = &self.dispatcher;
        let driver = planner.driver.clone();
        let policy = planner.policy.clone();
        let mut front =
            Self::new(driver, policy, store.clone(), asker.links().clone(), self.calls.clone());
        front.dispatcher.planner.only = Some(node);
        // A name is one create, whichever front it comes in by. Nothing goes to an elected node.
        front.dispatcher.journal = journal.clone();
        front.dispatcher.in_doubt = InDoubt::default();
        front
    }

    /// All links.
    pub(crate) fn links(&self) -> &Arc<Links> {
        self.dispatcher.asker.links()
    }

    /// The nodes that have the driver, without those that were removed.
    pub(crate) fn nodes(&self) -> Vec<NodeName> {
        self.dispatcher.lists.nodes()
    }

    /// The lists of all its nodes together.
    pub fn lists(&self) -> &Lists {
        &self.dispatcher.lists
    }

    /// Serves the socket, if it has one, until told to stop; calls in flight are answered first.
    pub async fn serve(self: Arc<Self>, socket: Option<Socket>, tasks: Tasks) {
        let front = self.clone();
        tasks.spawn_until_stop("new nodes", async move {
            front.lists().learn_new(|| front.scope() == Scope::Node).await;
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
    pub async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let answered = self.answered(request, By::Socket).await;
        Ok(answered.unwrap_or_else(|error| forward::failure(&error)))
    }

    /// Answers one request that a socket relay brings. It may have been on its way through an earlier
    /// csi-cloud, so it waits for edges if this one has just begun.
    ///
    /// # Errors
    /// It was not carried out, or its outcome is not known.
    pub(crate) async fn answer_relayed(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Error> {
        self.answered(request, By::Relay).await
    }

    async fn answered(&self, request: Request<Incoming>, by: By) -> Result<Response<Body>, Error> {
        let begun = Instant::now();
        let driver = &self.dispatcher.planner.driver;
        let path = request.uri().path().to_owned();
        let method = Method::of_path(&path).ok_or_else(|| Error::UnknownMethod(path.clone()));
        let name = method.as_ref().map_or(UNKNOWN, |method| method.name());
        let ongoing = self.calls.clone().begin(name, driver);
        let result = match method {
            Ok(method) => self.call(method, request, ongoing.running(), by).await,
            Err(error) => Err(error),
        };
        ongoing.ended(result.as_ref().map_or_else(Error::code, calls::code));
        let ms = begun.elapsed().as_millis();
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
        method: Method,
        request: Request<Incoming>,
        running: Arc<Running>,
        by: By,
    ) -> Result<Response<Body>, Error> {
        let (mut parts, body) = request.into_parts();
        if by == By::Socket {
            // A sidecar has no say in this.
            parts.headers.remove(CALL_ID);
        }
        let deadline = forward::deadline(&parts.headers).map_err(|error| bad(method, error))?;
        let answered = async {
            let body = frame::collect(body).await.map_err(|error| bad(method, error.into()))?;
            let arrived = Arrived { method, parts, body, deadline, running };
            let mut call = prepare(arrived, |id| self.class(id))?;
            // A shared driver is asked whatever it is, and says so itself.
            if let Some(field) = call.key.missing().filter(|_| self.scope() == Scope::Node) {
                return Err(Error::Missing(method.name(), field));
            }
            match by {
                By::Socket => self.dispatcher.dispatch(&mut call).await,
                // Boxed: every other call would have room for it too.
                By::Relay => Box::pin(self.awaited(&call)).await,
            }
        };
        forward::until(deadline, std::pin::pin!(answered)).await
    }

    /// Carries a call out, and as long as csi-cloud has just begun, again when another edge has linked.
    async fn awaited(&self, call: &IncomingCall) -> Result<Response<Body>, Error> {
        let mut linking = self.links().linking();
        while let Some(left) = EDGES.checked_sub(self.links().age()) {
            linking.mark_unchanged();
            let error = match self.dispatcher.dispatch(&mut call.clone()).await {
                Err(error) if error.awaits_link() => error,
                other => return other,
            };
            if tokio::time::timeout(left, linking.changed()).await.is_err() {
                return Err(error);
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.dispatcher.dispatch(&mut call.clone()).await
    }

    /// How far the driver's volumes reach.
    fn scope(&self) -> Scope {
        self.dispatcher.planner.scope(&self.dispatcher.store)
    }

    /// The parameters of ours that a volume was made with, if it was made here.
    fn class(&self, id: &Id) -> BTreeMap<String, String> {
        let Dispatcher { planner, store, .. } = &self.dispatcher;
        let class = store.read(|state| state.driver(&planner.driver)?.home(id)?.parameters.clone());
        class.map(|class| *class).unwrap_or_default()
    }
}
