//! One connection of a browser or proxy: HTTP/2 if TLS agreed on it, else HTTP/1.
//!
//! Over HTTP/1 a browser has six connections to a host, so its seventh page that watches would
//! wait. Over HTTP/2 all pages of a browser share one.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::host::tasks::Tasks;
use proto::link::Io;

use super::answer::Answer;

/// The protocols in the TLS handshake, the preferred one first.
pub(super) const ALPN: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// The protocol for which there is a server of its own.
pub(super) const HTTP2: &[u8] = b"h2";
/// How long a request's headers may take.
const HEADERS: Duration = Duration::from_secs(10);
/// The largest headers, in bytes.
const MAX_HEADERS: usize = 16 * 1024;
/// Requests at a time on one connection; pages that watch count.
const STREAMS: u32 = 256;
/// How long a connection over HTTP/2 may be silent before it is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(20);

/// Starts hyper's tasks as ours.
#[derive(Clone)]
struct Spawn(Tasks);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawn {
    fn execute(&self, task: F) {
        self.0.spawn("page request", task);
    }
}

/// Answers requests until the connection closes; after the tasks are told to stop, only those that
/// are there.
///
/// # Errors
/// The connection breaks, or the peer is too slow or does not speak HTTP.
pub(super) async fn serve<F, R>(
    io: Io,
    is_http2: bool,
    service: F,
    tasks: &Tasks,
) -> hyper::Result<()>
where
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Answer> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answering = Box::pin(service(request));
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let io = TokioIo::new(io);
    if is_http2 {
        let mut builder = http2::Builder::new(Spawn(tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(MAX_HEADERS).unwrap_or(u32::MAX))
            .keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE);
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = tasks.stopped() => connection.as_mut().graceful_shutdown(),
        }
        return connection.await;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(MAX_HEADERS);
    let mut connection = pin!(builder.serve_connection(io, service));
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = tasks.stopped() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
