//! One driver's socket at the relay. Each call goes to the csi-cloud that serves, or waits for it.
//!
//! A unary call whose connection broke is sent again, identical and with the same id.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::uri::Authority;
use http::{Request, Response};
use hyper::body::Incoming;
use proto::csi::Method;
use proto::csi::frame;
use proto::csi::status::{BadRequest, ToStatus};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::http2::body::{Body, Received};
use proto::http2::call_id::CallId;
use proto::http2::forward;
use proto::http2::forward::{Answer, CALL_ID, Call, failure};
use proto::http2::limits::MAX_PASSING;
use proto::names::DriverName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use crate::csi::dispatch::MAX_FRONT_CALLS;
use crate::error::Error;
use crate::relay::last_answers::{LastAnswers, is_local};
use crate::relay::server::{SendError, Server};
use crate::state::election::HOLD;

/// Memory for the requests of all calls in flight, in KiB.
const MAX_KIB: usize = 64 * 1024;
/// Local calls in flight; a sidecar has one or two.
const MAX_LOCAL: usize = 256;
/// The time limit of a local call; after it csi-cloud's last answer is repeated.
///
/// external-attacher allows one second at its start.
const LOCAL: Duration = Duration::from_millis(500);

/// A csi-cloud that follows gives a call back within this time.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The longest time before a call's deadline at which it is refused with the reason why no
/// csi-cloud takes it. Later its caller would learn of the deadline alone.
const REFUSE: Duration = Duration::from_secs(1);

/// Memory for the requests of all drivers, in KiB.
pub(super) struct RequestMemory(Semaphore);

impl Default for RequestMemory {
    fn default() -> Self {
        Self(Semaphore::new(MAX_KIB))
    }
}

/// One driver's socket at the relay.
pub(super) struct RelayFront {
    driver: DriverName,
    authority: Authority,
    server: Arc<Server>,
    last_answers: Arc<LastAnswers>,
    calls: Semaphore,
    /// Permits for local calls.
    local_calls: Semaphore,
    streams: Arc<Semaphore>,
    memory: Arc<RequestMemory>,
}

impl RelayFront {
    pub(super) fn new(
        driver: DriverName,
        server: Arc<Server>,
        last_answers: Arc<LastAnswers>,
        memory: Arc<RequestMemory>,
    ) -> Self {
        // A driver's name has letters, digits, '-' and '.', so it is always an authority.
        let authority = Authority::try_from(driver.as_str())
            .unwrap_or_else(|_| Authority::from_static("localhost"));
        Self {
            driver,
            authority,
            server,
            last_answers,
            calls: Semaphore::new(MAX_FRONT_CALLS),
            local_calls: Semaphore::new(MAX_LOCAL),
            streams: Arc::new(Semaphore::new(MAX_PASSING)),
            memory,
        }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// None: a call that fails is answered with its status.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let begun = Instant::now();
        let path = request.uri().path().to_owned();
        let (mut parts, body) = request.into_parts();
        // Only a socket relay sets it, so that csi-cloud knows a call that is sent again.
        parts.headers.remove(&CALL_ID);
        let id = CallId::arriving(&mut parts.headers);
        let result = self.relay(parts, body).await;
        let driver = &self.driver;
        let ms = begun.elapsed().as_millis();
        match result {
            Ok(response) => {
                debug!(call = %id, rpc = path, %driver, ms, "answered");
                Ok(response)
            }
            Err(error) => {
                let code = error.code();
                let error_chain = error.chain();
                peer_warn!(
                    LogPeer::Driver(driver),
                    call = %id, rpc = path, %driver, ?code, ms, error = error_chain,
                    "not carried out"
                );
                Ok(failure(&error))
            }
        }
    }

    async fn relay(&self, parts: Parts, body: Incoming) -> Result<Response<Body>, Error> {
        let row = Method::of_path(parts.uri.path());
        // csi-cloud refuses unknown methods by name, so they are sent there too.
        let method = row.map_or("an unknown method", Method::name);
        let bad = |source: BadRequest| Error::BadRequest { method, source };
        let deadline = forward::deadline(&parts.headers).map_err(bad)?;
        let work = async {
            let local = row.filter(|method| is_local(*method));
            // Taken before the request is read: slow senders are bounded too.
            let _permit = self.permit(local.is_some())?;
            let body = frame::collect(body).await.map_err(|error| bad(error.into()))?;
            let bytes = body.len();
            let call = Call::new(parts, body);
            // A local call needs no memory permit: an error would end its sidecar.
            if let Some(method) = local {
                return self.local(method, call, deadline).await.map(Answer::response);
            }
            let _memory = self.reserve(bytes)?;
            match row {
                Some(method) if method.streaming() => self.stream(call, deadline).await,
                _ => self.unary(call, deadline).await.map(Answer::response),
            }
        };
        forward::until(deadline, pin!(work)).await
    }

    fn permit(&self, is_local: bool) -> Result<SemaphorePermit<'_>, Error> {
        if is_local {
            self.local_calls.try_acquire().map_err(|_| Error::Full(MAX_LOCAL))
        } else {
            self.calls.try_acquire().map_err(|_| Error::Full(MAX_FRONT_CALLS))
        }
    }

    /// Reserves memory for a call's request until it is answered.
    fn reserve(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Error> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let in_flight = || MAX_FRONT_CALLS - self.calls.available_permits();
        self.memory.0.try_acquire_many(kib).map_err(|_| Error::Full(in_flight()))
    }

    /// A unary call, sent to one csi-cloud after another until one answers.
    async fn unary(&self, call: Call, deadline: Option<Instant>) -> Result<Answer, Error> {
        let mut last = "there is none at the places of --to".into();
        let mut held_until = Instant::now() + HOLD;
        let refuse_at = deadline.map(|deadline| deadline - refuse_before(deadline));
        loop {
            let next = self.server.next();
            let connection = match deadline {
                // The caller of this function watches the deadline.
                Some(_) => next.await,
                None if Instant::now() >= held_until => {
                    return Err(Error::ServerLost { source: last });
                }
                None => timeout_at(held_until, next)
                    .await
                    .map_err(|_| Error::ServerLost { source: last })?,
            };
            let sent = Instant::now();
            last = match connection.send(call.clone(), &self.authority, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(SendError::Broken(source)) => return Err(Error::ServerLost { source }),
                Err(SendError::Gone(reason)) => reason,
                Err(SendError::Again(source))
                    if refuse_at.is_some_and(|at| at <= Instant::now()) =>
                {
                    return Err(Error::ServerLost { source });
                }
                Err(SendError::Again(reason)) => reason,
            };
            if sent.elapsed() > AT_ONCE {
                // It had the call. Those that follow give it back at once, for as long as none
                // leads.
                held_until = Instant::now() + HOLD;
            }
            debug!(
                driver = %self.driver,
                reason = %last,
                "csi-cloud went away with a call; it gets it when it is back"
            );
        }
    }

    /// A local call; the last answer is repeated if csi-cloud is away or slow.
    async fn local(
        &self,
        method: Method,
        call: Call,
        deadline: Option<Instant>,
    ) -> Result<Answer, Error> {
        let last = self.last_answers.of(&self.driver, method);
        if let Some(connection) = self.server.now() {
            let asking = connection.send(call.clone(), &self.authority, deadline);
            if let Ok(Ok(answer)) = timeout(LOCAL, asking).await {
                self.last_answers.keep(&self.driver, method, &answer);
                return Ok(answer);
            }
        }
        if let Some(answer) = last {
            return Ok(answer);
        }
        let answer = self.unary(call, deadline).await?;
        self.last_answers.keep(&self.driver, method, &answer);
        Ok(answer)
    }

    /// A streaming call. It waits until it can be sent; once it may have begun it is not repeated.
    async fn stream(&self, call: Call, deadline: Option<Instant>) -> Result<Response<Body>, Error> {
        let streams = self.streams.clone();
        let permit = streams.try_acquire_owned().map_err(|_| Error::Full(MAX_PASSING))?;
        loop {
            let next = timeout(HOLD, self.server.next()).await;
            let connection =
                next.map_err(|_| Error::ServerLost { source: "there is none".into() })?;
            match connection.begin(call.clone(), &self.authority, deadline).await {
                // The next csi-cloud is to get it.
                Ok(response) if connection.is_again(&response) => {}
                Ok(response) => return Ok(pass(response, permit)),
                // The server says that it did not begin the call.
                Err(error) if connection.is_lost(&error) && is_refused(error.as_ref()) => {}
                Err(source) => return Err(Error::ServerLost { source }),
            }
        }
    }
}

/// The time before its deadline at which a waiting call is refused with the reason.
fn refuse_before(deadline: Instant) -> Duration {
    (deadline.saturating_duration_since(Instant::now()) / 10).min(REFUSE)
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<h2::Error>().is_some_and(|h2| h2.is_go_away() && h2.is_remote())
}

fn pass(response: Response<Received>, permit: OwnedSemaphorePermit) -> Response<Body> {
    let broken = Error::ServerLost { source: "in the middle of its answer".into() };
    forward::pass(response, &broken, permit)
}
