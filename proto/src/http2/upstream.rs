//! An HTTP/2 connection on which we call: a link, or a driver's socket.
//!
//! It uses h2 directly. hyper's client would take each call through a queue and two more tasks, a
//! third of the cost of a call (`docs/performance.md`). It also writes the headers before it has
//! the body.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response};
use http_body::Frame;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::http2::batch::Batched;
use crate::http2::limits::{CLIENT_WINDOW, MAX_HEADERS, MAX_STREAMS, STREAM_WINDOW};

/// A connection to call on. A clone is the same connection; it ends when all are gone.
#[derive(Clone)]
pub struct Upstream {
    sender: SendRequest<Bytes>,
    closed: CancellationToken,
}

/// Begins to call over `io`. The second value drives the connection and ends with it: spawn it.
///
/// # Errors
/// The other side closed, or does not speak HTTP/2.
pub async fn connect<I>(
    io: I,
) -> Result<(Upstream, impl Future<Output = Result<(), h2::Error>> + Send + use<I>), h2::Error>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CLIENT_WINDOW)
        .initial_max_send_streams(MAX_STREAMS as usize)
        .max_header_list_size(MAX_HEADERS)
        .enable_push(false)
        .handshake(Batched::new(io))
        .await?;
    let closed = CancellationToken::new();
    let ended = closed.clone().drop_guard();
    let driving = async move {
        let _ended = ended;
        connection.await
    };
    Ok((Upstream { sender, closed }, driving))
}

impl Upstream {
    /// Whether the connection has ended, so that nothing more can be sent on it.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Sends a request and gives back the head of its answer. Dropping the future cancels the
    /// request.
    ///
    /// # Errors
    /// The connection or the stream broke. The request may have been received.
    pub fn send(
        &self,
        request: Request<()>,
        body: Bytes,
    ) -> impl Future<Output = Result<Response<Received>, h2::Error>> + Send + use<> {
        // A clone has sent nothing yet, so it is ready.
        let sent = self.sender.clone().send_request(request, body.is_empty());
        let sent = sent.map(|(response, mut stream)| {
            if !body.is_empty() {
                // h2 keeps it until the windows have room; it is one message, so 4 MiB at most. It
                // fails if the other side has answered without reading it: the caller gets that
                // answer.
                let _ = stream.send_data(body, true);
            }
            response
        });
        async { Ok(sent?.await?.map(Received)) }
    }
}

/// The body of an answer as it arrives.
pub struct Received(h2::RecvStream);

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.0.poll_data(cx)) {
            Some(Ok(data)) => {
                // The caller takes the data at once.
                let released = self.0.flow_control().release_capacity(data.len());
                Poll::Ready(Some(released.map(|()| Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => self
                .0
                .poll_trailers(cx)
                .map(|trailers| trailers.transpose().map(|t| t.map(Frame::trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
