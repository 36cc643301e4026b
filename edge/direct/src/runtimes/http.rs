//! One HTTP/1.1 exchange with a shim over its unix socket.
//!
//! A shim is a program of somebody else that may hang, die in the middle of its answer or send without end: each
//! exchange has its own connection, an end in time, and a bound on what is read.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// The most that is read of an answer, in bytes. A shim's statistics have some hundred.
pub const MAX_ANSWER: usize = 64 * 1024;

/// What a shim answered.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens.
    #[error("its socket takes no connection")]
    NotThere(#[source] std::io::Error),
    /// It took the request and closed the connection.
    #[error("it closed the connection and did not answer")]
    Closed(#[source] hyper::Error),
    /// The answer is no HTTP, or broke off.
    #[error("its answer broke off, or is no HTTP")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It answers more than anybody would.
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
    // The name is of no account on a unix socket; HTTP/1.1 wants one.
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
        // What had come before it ended is still read; why it ended, the request's own error says.
        _ = connection => answer.await,
    }
}

/// A shim whose handler fails closes the connection without a word; other trouble is told apart from that.
fn unanswered(error: hyper::Error) -> Failure {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        Failure::Closed(error)
    } else {
        Failure::Broken(error.into())
    }
}
