//! Copies one HTTP/2 exchange: request headers and body to an upstream, its answer back, untouched.
//!
//! Nothing is decoded here. Only authority and deadline are set anew, because in gRPC they belong
//! to each hop. An answer that breaks off, or is not gRPC, ends with UNAVAILABLE in its trailers:
//! the caller must not take the outcome for known.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header, request};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tonic::Status;

use crate::csi::frame;
use crate::csi::frame::{FrameError, MAX_MESSAGE, PREFIX};
use crate::csi::status::ToStatus;
use crate::http2::deadline::timeout_value;
pub use crate::http2::deadline::{DeadlinePassed, TIMEOUT, deadline, until};
use crate::http2::upstream::{Received, Upstream};

/// The id of a caller's call on the link to an edge, a UUIDv7; kept when the call is sent again.
pub const CALL_ID: &str = "edge-csi-call";
const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";
/// CSI: "details MUST be empty". A driver's details are dropped.
const DETAILS: &str = "grpc-status-details-bin";
/// The longest status message passed on, in bytes on the wire: callers' header lists are bounded.
const MAX_STATUS_MESSAGE: usize = 4096;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One unary or server-streaming call: its headers, and its request message as it came.
#[derive(Clone)]
pub struct Call {
    /// The caller's headers; those that belong to the hop are replaced.
    pub headers: HeaderMap,
    /// The request path, for example `/csi.v1.Controller/CreateVolume`.
    pub path: http::uri::PathAndQuery,
    /// The framed request message.
    pub body: Bytes,
}

impl Call {
    /// A call from the parts of a request and its collected body.
    pub fn new(parts: request::Parts, body: Bytes) -> Self {
        let path = parts.uri.path_and_query().cloned();
        let path = path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        Self { headers: parts.headers, path, body }
    }

    /// The request for an upstream.
    ///
    /// `authority` names the driver (to an edge) or is `localhost` (to a driver). The timeout is
    /// the time left until `deadline`.
    fn request(&self, authority: &Authority, deadline: Option<Instant>) -> (Request<()>, Bytes) {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(http::uri::Scheme::HTTP);
        uri.authority = Some(authority.clone());
        uri.path_and_query = Some(self.path.clone());
        let mut request = Request::new(());
        *request.method_mut() = http::Method::POST;
        // Scheme, authority and path are all there, so this cannot fail.
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        headers.remove(header::HOST);
        headers.remove(header::CONTENT_LENGTH);
        match deadline {
            Some(deadline) => headers.insert(TIMEOUT, timeout_value(deadline)),
            None => headers.remove(TIMEOUT),
        };
        (request, self.body.clone())
    }
}

/// Sends a call and gives back the head of the answer; its body is still in flight.
///
/// # Errors
/// The connection broke, or the answer is not gRPC. The call may have been carried out.
pub fn forward(
    upstream: &Upstream,
    call: &Call,
    authority: &Authority,
    deadline: Option<Instant>,
) -> impl Future<Output = Result<Response<Received>, BoxError>> + Send + use<> {
    let (request, body) = call.request(authority, deadline);
    let answer = upstream.send(request, body);
    async { is_grpc(answer.await?) }
}

fn is_grpc(response: Response<Received>) -> Result<Response<Received>, BoxError> {
    let content =
        response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if response.status() != StatusCode::OK || !content.starts_with(b"application/grpc") {
        return Err(format!("it answered HTTP {} and no gRPC", response.status()).into());
    }
    Ok(response)
}

/// A whole answer, which can be given to several callers.
#[derive(Clone)]
pub struct Answer {
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

impl Answer {
    /// Receives an answer to its end.
    ///
    /// # Errors
    /// It broke off, is larger than a message may be, or ended without a status.
    pub async fn collect(response: Response<Received>) -> Result<Self, BoxError> {
        let (mut parts, mut body) = response.into_parts();
        let mut whole = Bytes::new();
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) => whole = joined(whole, data)?,
                Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
            }
        }
        if !parts.headers.contains_key(STATUS)
            && !trailers.as_ref().is_some_and(|t| t.contains_key(STATUS))
        {
            return Err("its answer ended without a gRPC status".into());
        }
        tidy(&mut parts.headers);
        trailers.iter_mut().for_each(tidy);
        Ok(Self { headers: parts.headers, body: whole, trailers })
    }

    /// The answer as a response, body and trailers untouched.
    pub fn response(self) -> Response<Body> {
        let body = match (self.body.is_empty(), self.trailers) {
            (true, None) => Body::Empty,
            (_, trailers) => {
                Body::Whole { data: Some(self.body).filter(|data| !data.is_empty()), trailers }
            }
        };
        let mut response = Response::new(body);
        *response.headers_mut() = self.headers;
        response
    }

    /// An answer of OK with this framed message.
    pub fn of(body: Bytes) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let mut trailers = HeaderMap::new();
        trailers.insert(STATUS, HeaderValue::from_static("0"));
        Self { headers, body, trailers: Some(trailers) }
    }

    /// The same answer with another framed message.
    #[must_use]
    pub fn with(self, body: Bytes) -> Self {
        let mut headers = self.headers;
        headers.remove(header::CONTENT_LENGTH);
        Self { headers, body, ..self }
    }

    /// A copy with a buffer of its own, for callers that keep it. A received body is part of a
    /// larger buffer, and keeps all of it in memory.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { body: Bytes::copy_from_slice(&self.body), ..self.clone() }
    }

    /// The size of its message in bytes; headers do not count.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// The framed message, if the call succeeded.
    pub fn ok(&self) -> Option<&Bytes> {
        (self.status()?.get(STATUS)?.as_bytes() == b"0").then_some(&self.body)
    }

    /// The unframed message, if the call succeeded.
    pub fn message(&self) -> Option<Bytes> {
        frame::message(self.ok()?).ok()
    }

    /// The status, if the call did not succeed.
    pub fn failure(&self) -> Option<Status> {
        if self.ok().is_some() {
            return None;
        }
        Some(self.status().and_then(Status::from_header_map).unwrap_or_else(|| Status::unknown("")))
    }

    /// The headers that hold the status.
    fn status(&self) -> Option<&HeaderMap> {
        self.trailers.iter().chain([&self.headers]).find(|headers| headers.contains_key(STATUS))
    }
}

/// Appends a chunk to a body. A body that comes in one piece is not copied.
fn joined(whole: Bytes, next: Bytes) -> Result<Bytes, FrameError> {
    if whole.len() + next.len() > MAX_MESSAGE + PREFIX {
        return Err(FrameError::TooLarge);
    }
    if whole.is_empty() {
        return Ok(next);
    }
    let mut whole = whole.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
    whole.extend_from_slice(&next);
    Ok(whole.freeze())
}

/// The response for a caller from an upstream's, passed on as it arrives.
///
/// The caller gets `broken` as its status if the upstream breaks off; `room` is released at the
/// end.
pub fn pass(
    response: Response<Received>,
    broken: &impl ToStatus,
    room: OwnedSemaphorePermit,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let has_status = parts.headers.contains_key(STATUS);
    tidy(&mut parts.headers);
    parts.extensions = http::Extensions::new();
    let broken = (!has_status).then(|| Box::new(broken.status()));
    Response::from_parts(parts, Body::Passing { body, broken, room })
}

/// The answer that carries a failure of our own to the caller.
pub fn failure(error: &impl ToStatus) -> Response<Body> {
    error.status().into_http()
}

/// The body of an answer of ours.
#[derive(Default)]
pub enum Body {
    /// Nothing, not even trailers.
    #[default]
    Empty,
    /// One chunk and then the trailers.
    Whole {
        /// The rest to send.
        data: Option<Bytes>,
        /// Sent after the data.
        trailers: Option<HeaderMap>,
    },
    /// An upstream's answer as it arrives.
    Passing {
        /// The upstream's body.
        body: Received,
        /// The status if the body ends without one; none once a status was sent.
        broken: Option<Box<Status>>,
        /// Its part of a limit, released on drop.
        room: OwnedSemaphorePermit,
    },
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Whole { data, trailers } => {
                let frame =
                    data.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
            Self::Passing { body, broken, .. } => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(pass_frame(frame, broken).map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Self::Passing { body, broken, .. } => broken.is_none() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |d| d.len() as u64))
            }
            Self::Passing { .. } => SizeHint::default(),
        }
    }
}

/// One frame of a passing body; if the body ends without a status, that is `broken`.
fn pass_frame(
    frame: Option<Result<Frame<Bytes>, h2::Error>>,
    broken: &mut Option<Box<Status>>,
) -> Option<Frame<Bytes>> {
    match frame {
        Some(Ok(mut frame)) => {
            if let Some(trailers) = frame.trailers_mut() {
                if trailers.contains_key(STATUS) {
                    *broken = None;
                }
                tidy(trailers);
            }
            Some(frame)
        }
        Some(Err(_)) | None => {
            let status = broken.take()?;
            let mut trailers = HeaderMap::new();
            // Fails only for metadata that is not a header; ours has none.
            let _ = status.add_header(&mut trailers);
            Some(Frame::trailers(trailers))
        }
    }
}

/// Removes details, which CSI forbids, and cuts a message that no caller could receive.
fn tidy(headers: &mut HeaderMap) {
    headers.remove(DETAILS);
    if let Some(message) = headers.get_mut(MESSAGE)
        && message.len() > MAX_STATUS_MESSAGE
    {
        let cut = message.as_bytes().get(..MAX_STATUS_MESSAGE).unwrap_or_default();
        // A percent-encoded byte is three characters long, and is not cut.
        let whole = cut
            .iter()
            .rposition(|b| *b == b'%')
            .filter(|at| at + 3 > cut.len())
            .unwrap_or(cut.len());
        if let Ok(short) = HeaderValue::from_bytes(cut.get(..whole).unwrap_or_default()) {
            *message = short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_status_message_is_cut_between_encoded_bytes() {
        for shift in 0..3 {
            let mut headers = HeaderMap::new();
            let text = format!("{}{}", "x".repeat(shift), "%E2%82%AC".repeat(1000));
            headers.insert(MESSAGE, HeaderValue::try_from(text).unwrap());
            headers.insert(DETAILS, HeaderValue::from_static("AAAA"));
            tidy(&mut headers);
            let message = headers.get(MESSAGE).unwrap().to_str().unwrap();
            assert!(message.len() <= MAX_STATUS_MESSAGE && message.len() > MAX_STATUS_MESSAGE - 3);
            assert_eq!((message.len() - shift) % 3, 0);
            assert!(!headers.contains_key(DETAILS));
        }
    }
}
