//! A model sidecar's connection to the cloud's socket: deadlines as grpc-go keeps them, and the
//! exit of the sidecar when it finds its connection lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cloud::state::policy::Scope;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use prost::Message;
use proto::csi::Method;
use proto::csi::{frame, wire};
use proto::http2::forward;
use proto::http2::forward::Upstream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::dice::Dice;
use crate::fleet::Fleet;
use crate::process::Process;
use crate::record::{Called, Ending, NUMBER, Record, SECRET};
use crate::trace::Trace;

/// How long after its deadline a call must have been answered.
pub const GRACE: Duration = Duration::from_millis(100);

/// How a sidecar calls.
pub struct Client {
    who: &'static str,
    upstream: Upstream,
    /// A call broke off, or the cloud sent GOAWAY: grpc-go dials for the next call.
    broken: AtomicBool,
    /// Cancelled when a call finds the connection lost: the sidecar exits.
    pub lost: CancellationToken,
    timeout: Duration,
    /// The longest of the unusual deadlines.
    longest: Duration,
    dice: Mutex<Dice>,
    record: Record,
    trace: Trace,
}

/// Whether deadlines are unusual, for all sidecars of a run.
#[derive(Default)]
pub struct Unusual(AtomicBool);

impl Unusual {
    /// Sets it.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    /// Whether deadlines are unusual now: none, zero, short, very long.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An answer to a sidecar.
pub struct Reply {
    /// The code from the sidecar's gRPC library.
    pub code: Code,
    /// The status message.
    pub text: String,
    /// The message of an OK.
    pub body: Bytes,
}

impl Reply {
    fn of(code: Code, text: &str) -> Self {
        Self { code, text: text.to_owned(), body: Bytes::new() }
    }

    /// The answer's message; none if it is no OK or cannot be read.
    pub fn decode<M: Message + Default>(&self) -> Option<M> {
        if self.code == Code::Ok { M::decode(self.body.clone()).ok() } else { None }
    }
}

impl Client {
    /// Connects a sidecar that runs as `process`.
    ///
    /// # Errors
    /// There is no cloud.
    pub async fn connect(
        who: &'static str,
        fleet: &Fleet,
        process: &Process,
        timeout: Duration,
        dice: Dice,
        (record, trace): (Record, Trace),
    ) -> anyhow::Result<Self> {
        let (upstream, connection) = forward::connect(fleet.front(process.end.clone())?).await?;
        process.tasks.spawn_until_stop("sidecar connection", async move { drop(connection.await) });
        let lost = CancellationToken::new();
        let broken = AtomicBool::new(false);
        let longest = if fleet.shape().scope == Scope::Shared { HOUR } else { DAY };
        Ok(Self {
            who,
            upstream,
            broken,
            lost,
            timeout,
            longest,
            dice: Mutex::new(dice),
            record,
            trace,
        })
    }

    /// Whether the next call would find the connection lost.
    pub fn is_broken(&self) -> bool {
        self.upstream.is_closed() || self.broken.load(Ordering::Relaxed)
    }

    /// Calls an RPC. It never returns if the connection is lost, because the process exits.
    pub async fn call(
        &self,
        method: &'static str,
        key: &str,
        message: &impl Message,
        unusual: &Unusual,
    ) -> Reply {
        if self.is_broken() {
            self.lost.cancel();
            std::future::pending::<()>().await;
        }
        let (timeout, patient) = self.times(unusual.is());
        let sent = Instant::now();
        let deadline = timeout.map(|timeout| sent + timeout);
        let bare = Bytes::from(message.encode_to_vec());
        let message = with_secrets(method, key, &bare);
        let called = Called {
            who: self.who,
            method,
            key: key.to_owned(),
            message: message.clone(),
            bare,
            sent,
            deadline,
            patient,
            ended: None,
        };
        let number = self.record.begin(called);
        let within =
            timeout.map_or_else(|| "no deadline".to_owned(), |timeout| format!("{timeout:?}"));
        self.trace.say(format_args!("{}: #{number} {method} {key} ({within})", self.who));
        let (reply, ending) =
            self.exchange(number, method, &message, (timeout, deadline, patient)).await;
        self.trace.say(format_args!("{}: #{number} {:?} {}", self.who, reply.code, reply.text));
        self.broken.fetch_or(ending == Ending::Broken, Ordering::Relaxed);
        self.record.end(number, ending);
        reply
    }

    async fn exchange(
        &self,
        number: usize,
        method: &str,
        message: &Bytes,
        (timeout, deadline, patient): (Option<Duration>, Option<Instant>, bool),
    ) -> (Reply, Ending) {
        let answer = self.send(request(number, method, timeout), frame::frame(message));
        let until = deadline.map(|deadline| if patient { deadline + GRACE } else { deadline });
        let answered = match until {
            Some(until) => tokio::time::timeout_at(until, answer).await,
            None => Ok(answer.await),
        };
        match answered {
            Ok(Ok(reply)) => {
                let ending = Ending::Answer(reply.code, reply.text.clone());
                (reply, ending)
            }
            // grpc-go: a connection that breaks under a call is UNAVAILABLE.
            Ok(Err(error)) => (Reply::of(Code::Unavailable, &error.to_string()), Ending::Broken),
            Err(_) => {
                let ending = if patient { Ending::Late } else { Ending::Cancelled };
                (Reply::of(Code::DeadlineExceeded, "the caller's own deadline"), ending)
            }
        }
    }

    async fn send(&self, request: Request<()>, body: Bytes) -> anyhow::Result<Reply> {
        let (head, body) = self.upstream.send(request, body).await?.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().and_then(Status::from_header_map);
        let status = trailers.or_else(|| Status::from_header_map(&head.headers));
        let status = status.ok_or_else(|| anyhow::anyhow!("an answer without a status"))?;
        let body = frame::message(&body.to_bytes()).unwrap_or_default();
        Ok(Reply { code: status.code(), text: status.message().to_owned(), body })
    }

    /// The deadline of the next call, and whether the caller waits beyond it.
    fn times(&self, unusual: bool) -> (Option<Duration>, bool) {
        let mut dice = self.dice.lock();
        let short = dice.time(1, 400);
        let unusual_one =
            dice.pick(&[Some(Duration::ZERO), Some(short), Some(short), Some(self.longest), None]);
        let is_unusual = dice.chance(25);
        let patient = dice.chance(50);
        (if unusual && is_unusual { unusual_one } else { Some(self.timeout) }, patient)
    }
}

const DAY: Duration = Duration::from_secs(100_000);
/// A shared driver's create goes to no other node before its deadline: a run is over sooner than a
/// day.
const HOUR: Duration = Duration::from_secs(3_600);

/// The request with a secret that names what the call is about, if its RPC has secrets.
fn with_secrets(method: &str, key: &str, bare: &Bytes) -> Bytes {
    let Some(field) = Method::of_name(method).and_then(Method::secrets) else {
        return bare.clone();
    };
    let mut entry = Vec::new();
    wire::append(&mut entry, &[1], b"password");
    wire::append(&mut entry, &[2], format!("{SECRET}{key}").as_bytes());
    let mut message = bare.to_vec();
    wire::append(&mut message, &[field], &entry);
    message.into()
}

fn request(number: usize, method: &str, timeout: Option<Duration>) -> Request<()> {
    let path = Method::of_name(method).map_or("/", Method::path);
    let mut request = Request::new(());
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = format!("http://localhost{path}").parse().unwrap_or_default();
    let headers: &mut HeaderMap = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(NUMBER, HeaderValue::from(number));
    if let Some(timeout) = timeout {
        let value = if timeout.as_secs() > 10_000 {
            format!("{}S", timeout.as_secs())
        } else {
            format!("{}m", timeout.as_millis())
        };
        headers.extend(
            HeaderValue::try_from(value).ok().map(|value| (forward::TIMEOUT.clone(), value)),
        );
    }
    request
}
