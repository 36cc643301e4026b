//! Serves HTTP/1, at the admin socket and for monitoring.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::debug;

use crate::host::accept::accept;
use crate::host::chain;
use crate::host::socket::Socket;
use crate::host::tasks::Tasks;

/// An answer, whole.
pub type Answer = Response<Full<Bytes>>;
/// The mode of an admin socket: only its owner may connect, and may do everything.
pub const MODE: u32 = 0o600;
/// The admin socket's name in the fronts' directory.
///
/// No driver or node has an underscore in its name, so it is no `DRIVER.sock` and no `NODE/`.
pub const SOCKET_NAME: &str = "_admin.sock";
/// OpenMetrics, as Prometheus asks for it.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Plain text.
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The time limit for a request's headers.
const HEADERS: Duration = Duration::from_secs(10);

/// The socket on which HTTP/1 is served.
pub enum Listener {
    /// At a unix socket.
    Unix(Socket),
    /// At an address of this machine.
    Tcp(TcpListener),
}

/// A connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(socket) => Box::new(socket.listener.accept().await?.0),
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
        })
    }

    /// Answers requests until the tasks are stopped, on so many connections at a time. More wait in
    /// the listener's queue.
    pub async fn serve<F, R, B>(self, connections: usize, service: F, tasks: Tasks)
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<B>> + Send,
        B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
    {
        let connections = Arc::new(Semaphore::new(connections));
        loop {
            // The semaphore is never closed.
            let permit = tokio::select! {
                biased;
                () = tasks.stopped() => return,
                permit = connections.clone().acquire_owned() => permit.ok(),
            };
            let stream = tokio::select! {
                biased;
                () = tasks.stopped() => return,
                accepted = accept("a connection", || self.accept()) => accepted,
            };
            let service = service.clone();
            let ended = tasks.clone();
            tasks.spawn("http connection", async move {
                serve(stream, service, ended.stopped()).await;
                drop(permit);
            });
        }
    }
}

/// An answer with a line of text.
pub fn text(status: StatusCode, text: &str) -> Answer {
    answer(status, TEXT, format!("{text}\n"))
}

/// An answer with metrics.
fn metrics(text: String) -> Answer {
    answer(StatusCode::OK, METRICS, text)
}

/// The answer to `/livez`, `/readyz` and `/metrics`; none for another path. `ready` is the word of
/// readiness or why there is none, and so are the metrics.
pub fn monitored(
    method: &Method,
    path: &str,
    ready: Result<&str, &str>,
    written: impl FnOnce() -> Result<String, &'static str>,
) -> Option<Answer> {
    if !matches!(path, "/livez" | "/readyz" | "/metrics") {
        return None;
    }
    if method != Method::GET && method != Method::HEAD {
        return Some(only_get());
    }
    let answered = match path {
        "/livez" => Ok(text(StatusCode::OK, "ok")),
        "/readyz" => ready.map(|ready| text(StatusCode::OK, ready)),
        _ => written().map(metrics),
    };
    Some(answered.unwrap_or_else(|why| text(StatusCode::SERVICE_UNAVAILABLE, why)))
}

/// The answer to a method that asks for a change.
pub fn only_get() -> Answer {
    text(StatusCode::METHOD_NOT_ALLOWED, "only GET")
}

/// The answer where monitoring alone is served, for another path.
pub fn not_monitored() -> Answer {
    text(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics")
}

/// An answer with JSON.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn json(status: StatusCode, value: &impl Serialize) -> serde_json::Result<Answer> {
    Ok(answer(status, JSON, serde_json::to_vec(value)?))
}

fn answer(status: StatusCode, content: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
    response
}

/// Answers a connection's requests until it closes; after `stop` only the current one.
async fn serve<I, F, R, B>(io: I, service: F, stop: impl Future<Output = ()>)
where
    I: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error = Infallible> + 'static,
{
    let service = service_fn(move |request| {
        let response = service(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(error = %chain(&error), "a connection broke");
    }
}
