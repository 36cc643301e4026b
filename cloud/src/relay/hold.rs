//! A call at a holder: sent to the csi-cloud that serves, held while there is none, and sent again, identical and with
//! the same id, when the connection broke with the call on it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use http::uri::Authority;
use http::{Request, Response};
use hyper::body::Incoming;
use proto::csi::Method;
use proto::csi::frame;
use proto::csi::status::{BadRequest, ToStatus};
use proto::http2::forward;
use proto::http2::forward::{Answer, Body, CALL_ID, Call, failure};
use proto::http2::limits::MAX_PASSING;
use proto::names::DriverName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use crate::csi::dispatch::MAX_CALLS;
use crate::nodes::node_call::{HOLD, call_id};
use crate::relay::known::{Known, is_local};
use crate::relay::server::{Failed, Server};

/// What all calls in flight may take of memory with their requests, in KiB.
const MAX_KIB: usize = 64 * 1024;
/// Calls in flight of those that csi-cloud answers by itself; a sidecar has one or two.
const MAX_LOCAL: usize = 256;
/// How long csi-cloud may take to answer what it answers by itself before its last word is given: external-attacher
/// allows a second at its start.
const LOCAL: Duration = Duration::from_millis(500);

/// Room for the requests of all drivers, in KiB.
pub(super) struct Room(Semaphore);

impl Default for Room {
    fn default() -> Self {
        Self(Semaphore::new(MAX_KIB))
    }
}

/// One driver's front, as the holder has it.
pub(super) struct Held {
    driver: DriverName,
    authority: Authority,
    server: Arc<Server>,
    known: Arc<Known>,
    calls: Semaphore,
    /// For what csi-cloud answers by itself.
    locals: Semaphore,
    streams: Arc<Semaphore>,
    room: Arc<Room>,
}

impl Held {
    pub(super) fn new(driver: DriverName, server: Arc<Server>, known: Arc<Known>, room: Arc<Room>) -> Self {
        // A driver's name has letters, digits, '-' and '.', so it is always an authority.
        let none = || Authority::from_static("localhost");
        let authority = Authority::try_from(driver.as_str()).unwrap_or_else(|_| none());
        let (calls, locals) = (Semaphore::new(MAX_CALLS), Semaphore::new(MAX_LOCAL));
        let streams = Arc::new(Semaphore::new(MAX_PASSING));
        Self { driver, authority, server, known, calls, locals, streams, room }
    }

    /// Answers one request.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let begun = Instant::now();
        let path = request.uri().path().to_owned();
        let result = self.run(request).await;
        let (driver, ms) = (&self.driver, begun.elapsed().as_millis());
        Ok(result.inspect(|_| debug!(rpc = path, %driver, ms, "answered")).unwrap_or_else(|error| {
            warn!(rpc = path, %driver, code = ?error.code(), ms, error = error.chain(), "not carried out");
            failure(&error)
        }))
    }

    async fn run(&self, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let (parts, body) = request.into_parts();
        let row = Method::of_path(parts.uri.path());
        // What csi-cloud does not know it refuses by name.
        let method = row.map_or("an unknown method", Method::name);
        let bad = |source: BadRequest| Error::BadRequest { method, source };
        let deadline = forward::deadline(&parts.headers).map_err(bad)?;
        let work = async {
            let local = row.filter(|method| is_local(*method));
            // Taken before the request is read, so that those who send theirs slowly are bounded too.
            let _place = match local {
                Some(_) => self.locals.try_acquire().map_err(|_| Error::Full(MAX_LOCAL))?,
                None => self.calls.try_acquire().map_err(|_| Error::Full(MAX_CALLS))?,
            };
            let body = frame::collect(body).await.map_err(|e| bad(e.into()))?;
            let bytes = body.len();
            let call = Call::new(parts, body);
            // Answered however many calls are held: an error here ends a sidecar.
            if let Some(method) = local {
                return self.local(method, call, deadline).await.map(Answer::response);
            }
            let _bytes = self.bytes(bytes)?;
            match row {
                Some(method) if method.streaming() => self.stream(call, deadline).await,
                _ => self.unary(call, deadline).await.map(Answer::response),
            }
        };
        forward::until(deadline, std::pin::pin!(work)).await
    }

    /// Room for a call's request until it is answered.
    fn bytes(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Error> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let in_flight = || MAX_CALLS - self.calls.available_permits();
        self.room.0.try_acquire_many(kib).map_err(|_| Error::Full(in_flight()))
    }

    /// A call that has one answer; it is given to one csi-cloud after another until there is one.
    async fn unary(&self, mut call: Call, deadline: Option<Instant>) -> Result<Answer, Error> {
        call.headers.insert(CALL_ID, call_id());
        let mut last = "there is none at the places of --to".into();
        loop {
            let next = self.server.next();
            let server = match deadline {
                // The caller's own end is watched by who called this.
                Some(_) => next.await,
                None => timeout(HOLD, next).await.map_err(|_| Error::ServerLost { source: last })?,
            };
            last = match server.send(call.clone(), &self.authority, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Broke(source)) => return Err(Error::ServerLost { source }),
                Err(Failed::Away(why)) => why,
            };
            debug!(driver = %self.driver, reason = %last, "csi-cloud went away with a call; it gets it when it is back");
        }
    }

    /// What csi-cloud answers by itself: its last word if it is away or slow.
    async fn local(&self, method: Method, call: Call, deadline: Option<Instant>) -> Result<Answer, Error> {
        let before = self.known.answer(&self.driver, method);
        if let Some(server) = self.server.now() {
            let asking = server.send(call.clone(), &self.authority, deadline);
            if let Ok(Ok(answer)) = timeout(LOCAL, asking).await {
                self.known.keep(&self.driver, method, &answer);
                return Ok(answer);
            }
        }
        match before {
            Some(answer) => Ok(answer),
            None => self
                .unary(call, deadline)
                .await
                .inspect(|answer| self.known.keep(&self.driver, method, answer)),
        }
    }

    /// A call whose answer is a stream: held until it can be sent, and never sent again once it may have begun.
    async fn stream(&self, call: Call, deadline: Option<Instant>) -> Result<Response<Body>, Error> {
        let room = self.streams.clone().try_acquire_owned().map_err(|_| Error::Full(MAX_PASSING))?;
        loop {
            let server = timeout(HOLD, self.server.next()).await;
            let server = server.map_err(|_| Error::ServerLost { source: "there is none".into() })?;
            match server.begin(call.clone(), &self.authority, deadline).await {
                // The next one is to get it.
                Ok(response) if server.is_again(&response) => {}
                Ok(response) => return Ok(pass(response, room)),
                // It says itself that it did not begin it.
                Err(error) if server.is_lost(&error) && refused(error.as_ref()) => {}
                Err(source) => return Err(Error::ServerLost { source }),
            }
        }
    }
}

fn refused(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<h2::Error>().is_some_and(|h2| h2.is_go_away() && h2.is_remote())
}

fn pass(response: Response<proto::http2::upstream::Received>, room: OwnedSemaphorePermit) -> Response<Body> {
    let broken = Error::ServerLost { source: "in the middle of its answer".into() };
    forward::pass(response, &broken, room)
}
