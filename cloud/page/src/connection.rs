//! One connection of a browser or proxy: HTTP/2 if TLS agreed on it, else HTTP/1.
//!
//! Over HTTP/1 a browser has six connections to a host, so its seventh page that watches would
//! wait. Over HTTP/2 all pages of a browser share one. A connection on which nobody was let in is
//! closed after some time.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use proto::host::tasks::Tasks;
use proto::http2::paced::Paced;
use proto::link::Io;

/// The protocols in the TLS handshake, the preferred one first.
pub(crate) const ALPN: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// The protocol for which there is a server of its own.
pub(crate) const HTTP2: &[u8] = b"h2";
/// The time limit for a request's headers.
const HEADERS: Duration = Duration::from_secs(10);
/// The largest headers, in bytes.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Requests at a time on one connection; pages that watch count.
const STREAMS: u32 = 256;
/// A connection over HTTP/2 may be silent for so long before it is asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(20);
/// A connection on which nobody was let in is closed after so long. A browser opens another one.
const STRANGER: Duration = Duration::from_secs(30);

/// The far end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Its address; `None` at a unix socket.
    pub(crate) address: Option<IpAddr>,
    /// Whether it showed a certificate of the CA of clients.
    pub(crate) has_certificate: bool,
    /// Whether somebody was let in on this connection.
    pub(crate) was_let_in: Arc<AtomicBool>,
}

/// Starts hyper's tasks as ours.
#[derive(Clone)]
struct Spawn(Tasks);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawn {
    fn execute(&self, task: F) {
        self.0.spawn("page request", task);
    }
}

/// Answers requests until the connection closes; after the tasks are told to stop, or after some
/// time without anybody who is let in, only those that are there.
///
/// # Errors
/// The connection breaks, or the peer is too slow or does not speak HTTP.
pub(crate) async fn serve(
    io: Io,
    is_http2: bool,
    peer: Peer,
    router: Router,
    tasks: &Tasks,
) -> hyper::Result<()> {
    let was_let_in = peer.was_let_in.clone();
    let stranger = async {
        tokio::time::sleep(STRANGER).await;
        if was_let_in.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let over = async {
        tokio::select! {
            biased;
            () = tasks.stopped() => {}
            () = stranger => {}
        }
    };
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    if is_http2 {
        let mut builder = http2::Builder::new(Spawn(tasks.clone()));
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(HEADER_BYTES_MAX).unwrap_or(u32::MAX))
            .keep_alive_interval(SILENCE)
            .keep_alive_timeout(SILENCE);
        let io = TokioIo::new(Paced::serving(io));
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = over => connection.as_mut().graceful_shutdown(),
        }
        return last_answers(connection).await;
    }
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(HEADER_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = over => connection.as_mut().graceful_shutdown(),
    }
    last_answers(connection).await
}

/// Waits for the answers that are on their way. A peer that sends PINGs would stay for ever.
async fn last_answers(connection: impl Future<Output = hyper::Result<()>>) -> hyper::Result<()> {
    tokio::time::timeout(STRANGER, connection).await.unwrap_or(Ok(()))
}
