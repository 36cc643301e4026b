//! A model of the socket relay: it holds the sidecars' connections, and sends each call to one
//! cloud after another until one answers it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cloud::relay::connection::AGAIN;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use prost::Message;
use proto::csi::{self, Method, frame};
use proto::http2::body::Body;
use proto::http2::call_id::CallId;
use proto::http2::forward::{self, Answer, Call};
use proto::http2::serve;
use tokio::io::DuplexStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::clouds::{Laid, RUN, Replicas};
use crate::keys::REPLICAS;
use crate::shape::DRIVER;
use crate::wire::{Plan, boxed, wire};

/// How long a call without a deadline waits for a cloud.
const HOLD: Duration = Duration::from_secs(120);
/// How long a cloud may take with what it answers itself.
const LOCAL: Duration = Duration::from_millis(500);
/// The wait when no cloud took a call.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a caller's connection.
pub(crate) fn take(replicas: &Arc<Replicas>, caller: CancellationToken) -> DuplexStream {
    let plan = Plan::default();
    let (near, far, _) = wire(&plan, [caller, CancellationToken::new()], &replicas.tasks);
    let relaying = replicas.clone();
    let answer = move |request| answer(relaying.clone(), request);
    replicas.tasks.spawn_until_stop("relay", async move {
        // It ends with its caller.
        let _ = serve::serve(far, answer, std::future::pending()).await;
    });
    near
}

async fn answer(
    replicas: Arc<Replicas>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (mut parts, body) = request.into_parts();
    CallId::arriving(&mut parts.headers);
    let deadline = forward::deadline(&parts.headers).ok().flatten();
    let until = deadline.unwrap_or_else(|| Instant::now() + HOLD);
    let answered = tokio::time::timeout_at(until, replicas.relay(parts, body, deadline)).await;
    Ok(match answered {
        Ok(Ok(answer)) => answer.response(),
        Ok(Err(error)) => Status::unavailable(error.to_string()).into_http(),
        Err(_) if deadline.is_some() => {
            Status::deadline_exceeded("the relay had no answer in time").into_http()
        }
        Err(_) => Status::unavailable("no cloud answered").into_http(),
    })
}

/// A sidecar would exit at an error of its first call.
fn not_ready() -> Answer {
    let probe = csi::ProbeResponse { ready: Some(false) };
    Answer::of(frame::frame(&probe.encode_to_vec()))
}

impl Replicas {
    async fn relay(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        deadline: Option<Instant>,
    ) -> anyhow::Result<Answer> {
        let method = Method::of_path(parts.uri.path());
        let local = method.filter(|method| method.local().is_some());
        let call = Call::new(parts, frame::collect(body).await?);
        let Some(local) = local else { return self.carry(call, deadline).await };
        let asked = tokio::time::timeout(LOCAL, self.carry(call.clone(), deadline)).await;
        let last = || {
            let last = self.relay.last.lock();
            let not_ready = || (local == Method::Probe).then(not_ready);
            last.get(local.name()).cloned().or_else(not_ready)
        };
        let answer = match (asked, last()) {
            (Ok(answered), _) => answered?,
            (Err(_), Some(last)) => return Ok(last),
            (Err(_), None) => self.carry(call, deadline).await?,
        };
        if answer.ok().is_some() {
            let mut last = self.relay.last.lock();
            last.insert(local.name(), answer.clone());
        }
        Ok(answer)
    }

    /// Sends a call to one cloud after another.
    async fn carry(
        self: &Arc<Self>,
        mut call: Call,
        deadline: Option<Instant>,
    ) -> anyhow::Result<Answer> {
        let driver = Authority::from_static(DRIVER);
        loop {
            // Several may think that they lead, so not all calls go to the same one.
            let any = self.lock().dice.below(REPLICAS.len() * 3);
            let last = self.relay.now.load(Ordering::Relaxed);
            let first = if any < REPLICAS.len() { any } else { last };
            for step in 0..REPLICAS.len() {
                let at = (first + step) % REPLICAS.len();
                let Ok((number, io)) = self.to_cloud(at) else { continue };
                call.headers.insert(RUN, HeaderValue::from(number));
                let sent = Instant::now();
                if let Some(answer) = self.send(&call, &driver, deadline, io).await {
                    self.relay.now.store(at, Ordering::Relaxed);
                    self.note_list(&call, number);
                    return Ok(answer);
                }
                // It had the call, so it may have counted an attempt. Another one cannot take that
                // back, and its name stays at its node; see `pinned`.
                if sent.elapsed() > Duration::ZERO {
                    self.trace.say(format_args!("relay: sending the call again, after cloud {at}"));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Notes a list by the cloud of this life if a later cloud has begun to lead.
    fn note_list(&self, call: &Call, life: u64) {
        let is_superseded = {
            let state = self.lock();
            state.epochs.values().max() > state.epochs.get(&life)
        };
        if is_superseded && Method::of_path(call.path.path()) == Some(Method::ListVolumes) {
            *self.relay.listed_late.lock() = Some(Instant::now());
        }
    }

    /// The answer of a cloud; none if the next one is to get the call.
    async fn send(
        &self,
        call: &Call,
        driver: &Authority,
        deadline: Option<Instant>,
        io: DuplexStream,
    ) -> Option<Answer> {
        let (upstream, driving) = forward::connect(io).await.ok()?;
        self.tasks.spawn_until_stop("relay's connection", async move { drop(driving.await) });
        let response = forward::forward(&upstream, call, driver, deadline).await.ok()?;
        if response.headers().contains_key(AGAIN) {
            return None;
        }
        Answer::collect(response).await.ok()
    }

    /// A connection to a cloud, and the number of its life.
    fn to_cloud(&self, at: usize) -> io::Result<(u64, DuplexStream)> {
        let mut state = self.lock();
        let life = state.lives.get(at).cloned().flatten();
        let is_still = state.still.get(at).is_some_and(|until| *until > Instant::now());
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let life = life.filter(|life| !is_still && !life.ends).ok_or_else(refused)?;
        let (_, relays) = life.run.ok_or_else(refused)?;
        let owners = [CancellationToken::new(), life.process.end.clone()];
        let (near, far, wire) = wire(&Plan::default(), owners, &self.tasks);
        state.wires.push(Laid { at, member: None, wire });
        drop(state);
        relays.take(boxed(far));
        Ok((life.number, near))
    }
}
