//! The front of one driver in the cloud: the CSI socket that its sidecars call.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use hyper::body::Incoming;
use proto::csi::Method;
use proto::csi::frame;
use proto::host::socket::Socket;
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::body::Body;
use proto::http2::call_id::CallId;
use proto::http2::forward::{self, CALL_ID};
use proto::http2::serve;
use proto::names::{DriverName, NodeName};
use tokio::sync::{Mutex, Semaphore};
use tracing::debug;

use super::capacity::Capacities;
use super::dispatch::{Dispatcher, MAX_FRONT_CALLS};
use super::exhausted::ExhaustedNodes;
use super::failure_log::log;
use super::lists::merged::Lists;
use super::request::{CallRequest, RawRequest, SubjectFacts, bad_request, enrich, parse};
use crate::csi::create_journal::CreateJournal;
use crate::error::Error;
use crate::nodes::in_doubt::InDoubt;
use crate::nodes::inquiry::Inquiries;
use crate::nodes::links::Links;
use crate::nodes::query::NodeQueries;
use crate::state::clock::now;
use crate::state::driver_state::DriverState;
use crate::state::policy::{Policy, Scope};
use crate::state::store::writer::Store;
use crate::telemetry::calls::{self, Calls, Running, UNKNOWN};

/// The time for which relayed calls wait for edges after csi-cloud began to lead. A large fleet
/// reconnects within 16 s.
const RECONNECT: Duration = Duration::from_secs(30);
/// The shortest time between two attempts of a call, since many edges link at once.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// One driver's front.
pub struct Front {
    dispatcher: Dispatcher,
    calls: Arc<Calls>,
}

/// The origin of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A sidecar, over a socket of csi-cloud.
    Socket,
    /// A socket relay, which has set the call id.
    Relay,
}

impl Front {
    /// The front of a driver. Its calls in flight are registered in `calls`.
    pub fn new(
        driver: DriverName,
        policy: Policy,
        store: Store,
        links: Arc<Links>,
        calls: Arc<Calls>,
    ) -> Self {
        let tasks = links.tasks().child();
        let inquiring = tasks.clone();
        let queries = NodeQueries::new(driver.clone(), links, policy.ask_with_secrets);
        let dispatcher = Dispatcher {
            journal: Arc::new(CreateJournal::new(driver, store.clone())),
            lists: Lists::new(queries.clone(), store.clone(), policy.always_asked, tasks.clone()),
            capacities: Capacities::new(queries.clone(), store.clone(), &policy, tasks),
            inquiries: Inquiries::new(inquiring),
            in_doubt: InDoubt::default(),
            exhausted: ExhaustedNodes::default(),
            electing: Mutex::default(),
            permits: Semaphore::new(MAX_FRONT_CALLS),
            only: None,
            policy,
            store,
            queries,
        };
        let front = Self { dispatcher, calls };
        if front.links().leading().has_begun() {
            front.begin();
        }
        front
    }

    /// Takes over from the csi-cloud that led before, or from an earlier start. Their calls may be
    /// in doubt at the elected node, and at those elected lately.
    pub fn begin(&self) {
        let Dispatcher { queries, store, in_doubt, .. } = &self.dispatcher;
        store.read(|state| {
            let elected = state.driver(&queries.driver).and_then(DriverState::election);
            in_doubt.begin_after(elected, now());
        });
    }

    /// The front of one node, which gets every call without another home.
    pub(crate) fn of_node(&self, node: NodeName) -> Self {
        let Dispatcher { policy, store, queries, journal, .. } = &self.dispatcher;
        let driver = queries.driver.clone();
        let policy = policy.clone();
        let mut front =
            Self::new(driver, policy, store.clone(), queries.links().clone(), self.calls.clone());
        front.dispatcher.only = Some(node);
        // Shared, since a name is one create on whichever front it arrives.
        front.dispatcher.journal = journal.clone();
        // A node's own front uses no elected node, so no earlier call is in doubt.
        front.dispatcher.in_doubt = InDoubt::default();
        front
    }

    /// All links.
    pub(crate) fn links(&self) -> &Arc<Links> {
        self.dispatcher.queries.links()
    }

    /// The nodes with the driver, without removed ones.
    pub(crate) fn nodes(&self) -> Vec<NodeName> {
        let Dispatcher { queries, store, .. } = &self.dispatcher;
        store.read(|state| {
            let nodes = state.driver(&queries.driver).map(|driver| driver.nodes().keys());
            nodes.into_iter().flatten().filter(|node| !state.is_removed(node)).cloned().collect()
        })
    }

    /// The merged lists of all nodes.
    pub fn lists(&self) -> &Lists {
        &self.dispatcher.lists
    }

    /// Serves the socket, if any, until stopped. Calls in flight are still answered.
    pub async fn serve(self: Arc<Self>, socket: Option<Socket>, tasks: Tasks) {
        let front = self.clone();
        tasks.spawn_until_stop(TaskKind::All("new nodes"), async move {
            front.lists().list_new_nodes(|| front.dispatcher.scope() == Scope::Node).await;
        });
        if let Some(socket) = socket {
            self.serve_socket(socket, tasks).await;
        }
    }

    /// Answers the requests on a socket until stopped.
    pub(crate) async fn serve_socket(self: Arc<Self>, socket: Socket, tasks: Tasks) {
        serve::serve_socket(socket, move |request| self.clone().answer(request), tasks).await;
    }

    /// Answers one request of a sidecar.
    ///
    /// # Errors
    /// None: a call that fails is answered with its status.
    pub async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let answer = self.handle(request, Origin::Socket).await;
        Ok(answer.unwrap_or_else(|error| forward::failure(&error)))
    }

    /// Answers one request of a socket relay. When csi-cloud began to lead it waits until edges had
    /// time to reconnect, since an earlier csi-cloud may have received the same request.
    ///
    /// # Errors
    /// It was not carried out, or its outcome is unknown.
    pub(crate) async fn answer_relayed(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Error> {
        self.handle(request, Origin::Relay).await
    }

    /// Carries out a request, counts it, and logs its outcome once.
    async fn handle(
        &self,
        request: Request<Incoming>,
        origin: Origin,
    ) -> Result<Response<Body>, Error> {
        let driver = &self.dispatcher.queries.driver;
        let (mut parts, body) = request.into_parts();
        if origin == Origin::Socket {
            // Only a socket relay may set a call id.
            parts.headers.remove(&CALL_ID);
        }
        // Only csi-cloud itself says whose call an edge gets.
        forward::remove_csi_clouds(&mut parts.headers);
        let id = CallId::arriving(&mut parts.headers);
        let method = Method::of_path(parts.uri.path());
        let name = method.as_ref().map_or(UNKNOWN, |method| method.name());
        let ongoing = self.calls.clone().begin(name, driver, id);
        let running = ongoing.running();
        let result = match method {
            Some(method) => self.call(method, parts, body, running.clone(), origin).await,
            None => Err(Error::UnknownMethod(parts.uri.path().to_owned())),
        };
        let outcome = calls::outcome(&result);
        if let Some(failed) = ongoing.ended(&outcome) {
            log(&self.dispatcher.store, &failed, &running, &outcome, result.is_err());
        }
        debug!(call = %id, rpc = name, %driver, code = ?outcome.code, "answered");
        result
    }

    /// Refuses a call if this csi-cloud does not lead. Local answers need no leader: sidecars ask
    /// at their start, and exit at an error.
    fn check_leads(&self, method: Method) -> Result<(), Error> {
        match method.local() {
            Some(_) => Ok(()),
            None => Ok(self.links().leading().check()?),
        }
    }

    /// Carries a call out if this csi-cloud leads, and answers if it still does then.
    async fn call(
        &self,
        method: Method,
        parts: Parts,
        body: Incoming,
        running: Arc<Running>,
        origin: Origin,
    ) -> Result<Response<Body>, Error> {
        self.check_leads(method)?;
        let deadline =
            forward::deadline(&parts.headers).map_err(|error| bad_request(method, error))?;
        let answered = async {
            let body = frame::collect(body).await;
            let body = body.map_err(|error| bad_request(method, error.into()))?;
            let request = parse(RawRequest { method, parts, body, deadline, running })?;
            let Dispatcher { queries, store, .. } = &self.dispatcher;
            let driver = &queries.driver;
            let facts = store.read(|state| SubjectFacts::new(state.driver(driver), &request));
            let request = enrich(driver, request, facts)?;
            match origin {
                Origin::Socket => self.dispatcher.dispatch(&request).await,
                // Boxed to keep the future of other calls small.
                Origin::Relay => Box::pin(self.dispatch_awaiting_links(&request)).await,
            }
        };
        let result = forward::until(deadline, std::pin::pin!(answered)).await;
        self.check_leads(method)?;
        result
    }

    /// Carries out a call. Until edges had time to reconnect, it is retried after each new link.
    async fn dispatch_awaiting_links(
        &self,
        request: &CallRequest,
    ) -> Result<Response<Body>, Error> {
        let mut linking = self.links().linking();
        while let Some(left) = RECONNECT.checked_sub(self.links().leading().age()) {
            linking.mark_unchanged();
            let error = match self.dispatcher.dispatch(request).await {
                Err(error) if error.awaits_link() => error,
                other => return other,
            };
            if tokio::time::timeout(left, linking.changed()).await.is_err() {
                return Err(error);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        self.dispatcher.dispatch(request).await
    }
}
