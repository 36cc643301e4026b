//! One HTTP/1.1 exchange with a shim over its unix socket.
//!
//! A shim may hang, die in the middle of its answer, or send without end. So each exchange has its
//! own connection, a time limit and a size limit.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// The largest answer, in bytes. A shim's statistics have some hundred.
pub const MAX_ANSWER: usize = 64 * 1024;

/// The answer of a shim.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens.
    #[error("its socket takes no connection")]
    NotThere(#[source] std::io::Error),
    /// It took the request and closed the connection.
    #[error("it closed the connection and did not answer")]
    Closed(#[source] hyper::Error),
    /// The answer broke off, or is no HTTP.
    #[error("its answer broke off, or is no HTTP")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is longer than any valid one.
    #[error("its answer is longer than {MAX_ANSWER} bytes")]
    TooLong,
    /// It did not answer in time.
    #[error("it did not answer within {0:?}")]
    Late(Duration),
}

/// Sends a request to the shim at `socket` and reads its whole answer. A `body` is JSON.
///
/// # Errors
/// There is no whole answer within `patience`.
pub async fn exchange(
    socket: &Path,
    (method, target): (Method, &str),
    body: Option<Vec<u8>>,
    patience: Duration,
) -> Result<Reply, Failure> {
    let broken = |error: http::Error| Failure::Broken(error.into());
    let mut request = Request::builder().method(method).uri(target);
    // HTTP/1.1 requires a host; on a unix socket its name does not matter.
    request = request.header(header::HOST, "shim");
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let request = request.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(broken)?;
    tokio::time::timeout(patience, converse(socket, request))
        .await
        .map_err(|_| Failure::Late(patience))?
}

async fn converse(socket: &Path, request: Request<Full<Bytes>>) -> Result<Reply, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(Failure::NotThere)?;
    let connecting = http1::Builder::new().max_buf_size(MAX_ANSWER).handshake(TokioIo::new(stream));
    let (mut sender, connection) = connecting.await.map_err(Failure::Closed)?;
    let mut answer = std::pin::pin!(async move {
        let (head, body) = sender.send_request(request).await.map_err(unanswered)?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() { Failure::TooLong } else { Failure::Broken(error) }
        })?;
        Ok(Reply { status: head.status, body: body.to_bytes() })
    });
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The bytes received before the end are still read. The request's own error says why it
        // ended.
        _ = connection => answer.await,
    }
}

/// A shim whose handler fails closes the connection without an answer; other faults are distinct.
fn unanswered(error: hyper::Error) -> Failure {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        Failure::Closed(error)
    } else {
        Failure::Broken(error.into())
    }
}
