//! HTTP/2 answers made by hand.
//!
//! The faults need answers that no gRPC library agrees to write, so they are put together frame by
//! frame.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};

use super::record::Ticket;

fn with_body(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A message in its gRPC frame.
fn frame(message: &Bytes) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}

/// The message of a body with one gRPC frame.
pub(super) fn unframe(body: &Bytes) -> Bytes {
    body.slice(body.len().min(5)..)
}

/// This message with these extra headers and trailers.
pub(super) fn raw(message: &Bytes, headers: HeaderMap, trailers: HeaderMap) -> Response<Body> {
    let mut ends = HeaderMap::new();
    ends.insert("grpc-status", HeaderValue::from_static("0"));
    ends.extend(trailers);
    let frames: [Result<_, Status>; 2] =
        [Ok(Frame::data(frame(message))), Ok(Frame::trailers(ends))];
    let mut response =
        with_body("application/grpc", Body::new(StreamBody::new(stream::iter(frames))));
    response.headers_mut().extend(headers);
    response
}

/// Marks an answer without a status, whose outcome the caller cannot know.
#[derive(Clone)]
struct Open;

/// The code of this answer. An error is headers only, and every other answer ends in trailers with
/// OK. None if it breaks off before that.
pub(super) fn code(response: &Response<Body>) -> Option<Code> {
    let status = || Status::from_header_map(response.headers());
    let open = response.extensions().get::<Open>().is_some();
    (!open).then(|| status().map_or(Code::Ok, |status| status.code()))
}

/// The answer of a web server without gRPC.
pub(super) fn not_grpc() -> Response<Body> {
    let mut response =
        with_body("text/plain", Body::new(Full::new(Bytes::from_static(b"404 page not found\n"))));
    *response.status_mut() = http::StatusCode::NOT_FOUND;
    response.extensions_mut().insert(Open);
    response
}

async fn data_of(body: Body) -> Bytes {
    body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default()
}

/// The same answer without its trailers.
pub(super) async fn without_status(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    head.headers.remove("grpc-status");
    head.extensions.insert(Open);
    let data = data_of(body).await;
    Response::from_parts(head, Body::new(Full::new(data)))
}

/// The same answer, whose connection breaks when half of the body is sent.
pub(super) async fn half_of(
    response: Response<Body>,
    connection: CancellationToken,
) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    head.extensions.insert(Open);
    let mut data = data_of(body).await;
    data.truncate(data.len() / 2);
    let body = Half { data: Some(data), connection };
    Response::from_parts(head, Body::new(body))
}

struct Half {
    data: Option<Bytes>,
    connection: CancellationToken,
}

impl HttpBody for Half {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(data) = self.data.take().filter(|data| !data.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        // The connection's task writes what it was given before it looks at this token, so the half
        // above goes out. After it nothing may wake this body: the task that polls it is dropped.
        self.connection.cancel();
        Poll::Pending
    }
}

/// A body that finishes its record when it was sent to its end.
pub(super) fn watched(response: Response<Body>, ticket: Ticket) -> Response<Body> {
    // An error is headers only. Wrapped, it would get an empty body, and some clients then miss its
    // status.
    if response.body().is_end_stream() {
        ticket.finish(Some(Code::Ok));
        return response;
    }
    response.map(|inner| Body::new(Watched { inner, ticket }))
}

struct Watched {
    inner: Body,
    ticket: Ticket,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.ticket.finish(Some(Code::Ok)),
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {
                self.ticket.finish(Some(Code::Ok))
            }
            _ => {}
        }
        polled
    }

    // `is_end_stream` stays false: hyper would otherwise not poll to the end and the ending be
    // missed.
    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
