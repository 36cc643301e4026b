//! HTTP/1 as the admin socket and the health server use it.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::host::chain;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{debug, warn};

/// How long a request's headers may take.
const HEADERS: Duration = Duration::from_secs(10);
/// The wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The accepted connection; waits a little if there is none.
pub(super) async fn accepted<S>(accepted: io::Result<S>) -> Option<S> {
    match accepted {
        Ok(stream) => Some(stream),
        Err(error) => {
            // For want of file descriptors, say; open connections go on.
            warn!(%error, "cannot accept a connection");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

/// Answers a connection's requests until it closes; after `stop` only the current one.
pub(super) async fn serve<I, F, R>(io: I, service: F, stop: impl Future<Output = ()>)
where
    I: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Response<Full<Bytes>>>,
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
