//! The CSI socket of one driver in the cloud: every call of its sidecars comes in here.

use std::convert::Infallible;
use std::sync::Arc;

use http::uri::Authority;
use http::{Request, Response};
use hyper::body::Incoming;
use proto::error::{BadRequest, Error};
use proto::forward::{self, Answer, Body, Call};
use proto::identity::{DriverName, NodeName};
use proto::rpc::{self, Key, Learn, Rpc};
use proto::socket::Socket;
use proto::stop::Tasks;
use proto::{frame, http2};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::known::{Known, Unknown};
use crate::links::Links;
use crate::local;
use crate::passage::Passage;
use crate::route::{Facts, Plan, Unclear, names, route};

/// Calls of one driver in flight; more are refused, since each holds its request and its answer in memory.
const MAX_CALLS: usize = 1024;

/// One driver's front.
pub struct Front {
    driver: DriverName,
    authority: Authority,
    default_node: Option<NodeName>,
    known: Arc<Known>,
    links: Arc<Links>,
    room: Semaphore,
}

impl Front {
    /// The front of a driver. Calls that name no node go to `default_node`, else to the only node known.
    pub fn new(
        driver: DriverName,
        default_node: Option<NodeName>,
        known: Arc<Known>,
        links: Arc<Links>,
    ) -> Self {
        // A driver's name is made of the characters of a host name.
        let authority = driver.as_str().parse().unwrap_or_else(|_| Authority::from_static("invalid"));
        Self { driver, authority, default_node, known, links, room: Semaphore::new(MAX_CALLS) }
    }

    /// Serves the socket until told to stop; calls in flight are answered first.
    pub async fn serve(self: Arc<Self>, socket: Socket, tasks: Tasks) {
        http2::serve_socket(socket, move |request| self.clone().answer(request), tasks).await;
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let begun = Instant::now();
        let path = request.uri().path().to_owned();
        let rpc = rpc::find(&path).ok_or_else(|| Error::UnknownMethod(path.clone()));
        let result = match rpc {
            Ok(rpc) => self.call(rpc, request).await,
            Err(error) => Err(error),
        };
        let (driver, ms) = (&self.driver, begun.elapsed().as_millis());
        Ok(result.inspect(|_| debug!(rpc = path, %driver, ms, "answered")).unwrap_or_else(|error| {
            warn!(rpc = path, %driver, code = ?error.code(), ms, error = error.chain(), "not carried out");
            error.response()
        }))
    }

    async fn call(&self, rpc: &'static Rpc, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let bad = |source: BadRequest| Error::BadRequest { method: rpc.method, source };
        let (parts, body) = request.into_parts();
        let deadline = forward::deadline(&parts.headers).map_err(bad)?;
        let answered = async {
            let body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
            let message = frame::message(&body).map_err(|e| bad(e.into()))?;
            let key = rpc.key(&message).map_err(|e| bad(e.into()))?;
            match self.plan(rpc, &key)? {
                Plan::Local => self.local(rpc),
                Plan::NodeOnly => Err(Error::NodeOnly(rpc.method)),
                Plan::Node(node) => {
                    let (links, driver, authority) = (&self.links, &self.driver, &self.authority);
                    let passage = Passage { links, driver, authority, node: &node, rpc, deadline };
                    self.pass_on(&key, passage, Call::new(parts, body)).await
                }
            }
        };
        forward::until(deadline, std::pin::pin!(answered)).await
    }

    fn plan(&self, rpc: &Rpc, key: &Key) -> Result<Plan, Error> {
        let facts = Facts {
            home: &|id| self.known.home(&self.driver, id),
            nodes: &|| self.known.nodes(&self.driver),
            default: self.default_node.as_ref(),
        };
        route(key, &facts).map_err(|unclear| match unclear {
            Unclear::Yet(why) => Error::NoRoute { driver: self.driver.clone(), why },
            Unclear::SeveralHomes(nodes) => Error::SeveralHomes { method: rpc.method, nodes: names(&nodes) },
        })
    }

    fn fallback(&self) -> Option<NodeName> {
        self.default_node.clone().or_else(|| self.known.only_node(&self.driver))
    }

    fn local(&self, rpc: &'static Rpc) -> Result<Response<Body>, Error> {
        let learned = if rpc.method.starts_with("NodeGet") {
            let node = self.fallback();
            node.map_or(Err(Unknown), |node| self.known.answer_at(&node, &self.driver, rpc.method))
        } else {
            self.known.answer(&self.driver, rpc.method)
        };
        local::answer(rpc.method, &self.driver, learned)
            .map(|message| Answer::of(frame::frame(&message)).response())
    }

    async fn pass_on(&self, key: &Key, passage: Passage<'_>, call: Call) -> Result<Response<Body>, Error> {
        let _room = self.room.try_acquire().map_err(|_| Error::Full(MAX_CALLS))?;
        if passage.rpc.streaming {
            return passage.stream(call).await;
        }
        let answer = passage.unary(call).await?;
        if let Some(body) = answer.ok() {
            self.learn(passage.rpc, key, passage.node, body);
        }
        Ok(answer.response())
    }

    /// Keeps what an answer of OK teaches.
    fn learn(&self, rpc: &Rpc, key: &Key, node: &NodeName, body: &bytes::Bytes) {
        match (rpc.learn, key) {
            (Learn::Gone, Key::End(id)) => self.known.forget(&self.driver, id),
            (Learn::Lives(lives), _) => match frame::message(body).map(|message| lives(&message)) {
                Ok(Ok(ids)) => self.known.learn_homes(&self.driver, node, ids),
                _ => warn!(rpc = rpc.method, driver = %self.driver, %node, "an answer of OK cannot be read"),
            },
            _ => {}
        }
    }
}
