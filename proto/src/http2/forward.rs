//! Copies one HTTP/2 exchange: request headers and body to an upstream, its answer back, untouched.
//!
//! Nothing is decoded here, but what was compressed unasked. Only authority and deadline are set
//! anew, because in gRPC they belong to each hop. An answer that breaks off, or is not gRPC, ends
//! with UNAVAILABLE in its trailers: the caller must not take the outcome for known.

use std::future::{Future, poll_fn};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use h2::client::{ResponseFuture, SendRequest};
use http::uri::Authority;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header, request,
};
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use crate::csi::frame::{self, FrameError, MAX_MESSAGE, PREFIX};
use crate::csi::status::ToStatus;
use crate::http2::batch::Batched;
pub use crate::http2::body::STATUS;
use crate::http2::body::{Body, Received, tidy};
use crate::http2::compressed::uncompressed;
pub use crate::http2::deadline::{
    DeadlinePassed, TIMEOUT, deadline, deadline_in, timeout_value, until,
};
use crate::http2::limits::{CLIENT_WINDOW, MAX_HEADERS, MAX_STREAMS, STREAM_WINDOW};
pub use crate::http2::unanswered::Unanswered;

/// The id of a caller's call on the link to an edge, a UUIDv7; kept when the call is sent again.
pub static CALL_ID: HeaderName = HeaderName::from_static("edge-csi-call");
/// The epoch of the csi-cloud that sends a call to an edge, if it has one. Only csi-cloud may set
/// it, so fronts remove it from callers' requests.
pub static LEADER_EPOCH: HeaderName = HeaderName::from_static("edge-csi-leader-epoch");
/// How long after its arrival at an edge a call of a shared driver may begin at the driver, written
/// as `grpc-timeout` is. Only csi-cloud may set it, and only to an edge whose hello says
/// `begins_within`: afterwards the call may go to another node.
pub static BEGIN_WITHIN: HeaderName = HeaderName::from_static("edge-csi-begin-within");
/// How far csi-cloud's store was when it sent a create. Only csi-cloud may set it.
pub static WATERMARK: HeaderName = HeaderName::from_static("edge-csi-watermark");
/// In an edge's refusal, with the value `1`: no byte of the call went to the driver. Only an edge
/// may set it, so the edge removes it from drivers' answers.
pub static NOT_DISPATCHED: HeaderName = HeaderName::from_static("edge-csi-not-dispatched");

/// The most informational answers (1xx) to a call. gRPC has none.
const MAX_INFORMATIONAL: u32 = 8;
/// The message encodings that a caller of gRPC can read.
static ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Removes the headers of a caller's request that only csi-cloud may set.
pub fn remove_csi_clouds(headers: &mut HeaderMap) {
    headers.remove(&LEADER_EPOCH);
    headers.remove(&BEGIN_WITHIN);
    headers.remove(&WATERMARK);
}

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
        // Each hop compresses by itself, and this one reads no compressed message.
        headers.remove(&ACCEPT_ENCODING);
        match deadline {
            Some(deadline) => headers.insert(&TIMEOUT, timeout_value(deadline)),
            None => headers.remove(&TIMEOUT),
        };
        (request, self.body.clone())
    }
}

/// An HTTP/2 connection to call on: a link, or a driver's socket.
///
/// It uses h2 directly. hyper's client would take each call through a queue and two more tasks, a
/// third of the cost of a call (`tests/bench/README.md`). It also writes the headers before the
/// body is there.
///
/// A clone is the same connection, which ends when all are gone.
#[derive(Clone)]
pub struct Upstream {
    sender: SendRequest<Bytes>,
    closed: CancellationToken,
    /// Cancelled when the other side did what no server of gRPC does.
    violated: CancellationToken,
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
    let (upstream, connection) = handshake(io).await?;
    Ok((upstream.0, driving(upstream.1, connection)))
}

/// The same over the byte stream of a link, whose other side takes any number of questions for a
/// sign of life. A driver's server ends connections that ask often (grpc's `too_many_pings`).
///
/// # Errors
/// As for [`connect`].
pub async fn connect_asking<I>(
    io: I,
) -> Result<
    (Upstream, h2::PingPong, impl Future<Output = Result<(), h2::Error>> + Send + use<I>),
    h2::Error,
>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (upstream, mut connection) = handshake(io).await?;
    // It is taken once only, here.
    let pings = connection.ping_pong().ok_or(h2::Reason::INTERNAL_ERROR)?;
    Ok((upstream.0, pings, driving(upstream.1, connection)))
}

type Handshake<I> = ((Upstream, DropGuard), h2::client::Connection<Batched<I>, Bytes>);

async fn handshake<I>(io: I) -> Result<Handshake<I>, h2::Error>
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
    let (closed, violated) = (CancellationToken::new(), CancellationToken::new());
    let ended = closed.clone().drop_guard();
    Ok(((Upstream { sender, closed, violated }, ended), connection))
}

async fn driving<I: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    ended: DropGuard,
    connection: h2::client::Connection<Batched<I>, Bytes>,
) -> Result<(), h2::Error> {
    let _ended = ended;
    connection.await
}

impl Upstream {
    /// True if the connection has ended, so that nothing more can be sent on it.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Ends with the connection, which it does not keep open.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.closed.clone().cancelled_owned()
    }

    /// Ends when the other side sent so many informational answers that it means harm.
    pub fn violated(&self) -> impl Future<Output = ()> + Send + use<> {
        self.violated.clone().cancelled_owned()
    }

    /// The most streams that the other side takes at a time.
    pub fn max_streams(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// True if the other side said that it takes no more requests (GOAWAY).
    pub fn was_told_to_leave(&self) -> bool {
        let ready = self.sender.clone().ready().now_or_never();
        let refused = ready.and_then(Result::err);
        refused.is_some_and(|error| error.is_go_away() && error.is_remote())
    }

    /// Sends a request and gives back the head of its answer. Dropping the future cancels the
    /// request.
    ///
    /// # Errors
    /// The connection or the stream broke.
    pub fn send(
        &self,
        request: Request<()>,
        body: Bytes,
    ) -> impl Future<Output = Result<Response<Received>, Unanswered>> + Send + use<> {
        // A clone has sent nothing yet, so it is ready.
        let sent = self.sender.clone().send_request(request, body.is_empty());
        let sent = sent.map(|(response, mut stream)| {
            if !body.is_empty() {
                // h2 keeps its one message until the windows have room. It fails if the other side
                // has answered without reading it: the caller gets that answer.
                let _ = stream.send_data(body, true);
            }
            response
        });
        let violated = self.violated.clone();
        async move {
            // Nothing of it was written if there is no stream for it.
            let answer = sent.map_err(Unanswered::Unprocessed)?;
            Ok(head(answer, &violated).await?.map(Received))
        }
    }
}

/// The head of the answer, after at most [`MAX_INFORMATIONAL`] answers before it. Nothing uses
/// those, and each takes time and memory here.
async fn head(
    mut answer: ResponseFuture,
    violated: &CancellationToken,
) -> Result<Response<h2::RecvStream>, Unanswered> {
    let mut informational = 0;
    poll_fn(|cx| {
        while let Poll::Ready(Some(before)) = answer.poll_informational(cx) {
            before.map_err(Unanswered::of)?;
            informational += 1;
            if informational > MAX_INFORMATIONAL {
                violated.cancel();
                let why = format!("it sent more than {MAX_INFORMATIONAL} informational answers");
                return Poll::Ready(Err(Unanswered::InDoubt(why.into())));
            }
        }
        answer.poll_unpin(cx).map_err(Unanswered::of)
    })
    .await
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
    let answer = attempt(upstream, call, authority, deadline);
    async { answer.await.map_err(Unanswered::into_source) }
}

/// The same as [`forward`], and tells whether a call that has no answer was processed.
///
/// # Errors
/// [`Unanswered`]; an answer that is not gRPC is in doubt.
pub fn attempt(
    upstream: &Upstream,
    call: &Call,
    authority: &Authority,
    deadline: Option<Instant>,
) -> impl Future<Output = Result<Response<Received>, Unanswered>> + Send + use<> {
    let (request, body) = call.request(authority, deadline);
    let answer = upstream.send(request, body);
    async { is_grpc(answer.await?).map_err(Unanswered::InDoubt) }
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
        if !parts.headers.contains_key(&STATUS)
            && !trailers.as_ref().is_some_and(|t| t.contains_key(&STATUS))
        {
            return Err("its answer ended without a gRPC status".into());
        }
        tidy(&mut parts.headers);
        trailers.iter_mut().for_each(tidy);
        let body = uncompressed(&mut parts.headers, whole)?;
        Ok(Self { headers: parts.headers, body, trailers })
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
        trailers.insert(&STATUS, HeaderValue::from_static("0"));
        Self { headers, body, trailers: Some(trailers) }
    }

    /// The same answer with another framed message.
    #[must_use]
    pub fn with(self, body: Bytes) -> Self {
        let mut headers = self.headers;
        headers.remove(header::CONTENT_LENGTH);
        Self { headers, body, ..self }
    }

    /// Takes the mark of an edge out, wherever it stands. True if this is a refusal that has it.
    pub fn take_not_dispatched(&mut self) -> bool {
        let is_marked = self.headers.remove(&NOT_DISPATCHED).is_some_and(|mark| mark == "1");
        if let Some(trailers) = &mut self.trailers {
            trailers.remove(&NOT_DISPATCHED);
        }
        // An edge refuses in headers alone, and without a message.
        is_marked && self.headers.contains_key(&STATUS) && self.ok().is_none()
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
        let status = self.status_headers().find_map(|headers| headers.get(&STATUS))?;
        (status.as_bytes() == b"0").then_some(&self.body)
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
        let status = self.status_headers().find_map(Status::from_header_map);
        Some(status.unwrap_or_else(|| Status::unknown("")))
    }

    /// The headers that may hold the status, in the order in which it counts.
    fn status_headers(&self) -> impl Iterator<Item = &HeaderMap> {
        self.trailers.iter().chain([&self.headers])
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
    room: impl Send + Sync + 'static,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let has_status = parts.headers.contains_key(&STATUS);
    tidy(&mut parts.headers);
    parts.headers.remove(&NOT_DISPATCHED);
    parts.extensions = http::Extensions::new();
    let broken = (!has_status).then(|| Box::new(broken.status()));
    Response::from_parts(parts, Body::Passing { body, broken, room: Box::new(room) })
}

/// The status that a caller gets; none if the answer has yet to arrive.
pub fn status(response: &Response<Body>) -> Option<Status> {
    let trailers = response.body().trailers().into_iter();
    trailers.chain([response.headers()]).find_map(Status::from_header_map)
}

/// The answer that carries a failure of our own to the caller.
pub fn failure(error: &impl ToStatus) -> Response<Body> {
    error.status().into_http()
}

/// An edge's failure answer that says: no byte of the call went to the driver.
pub fn refusal(error: &impl ToStatus) -> Response<Body> {
    let mut response = failure(error);
    response.headers_mut().insert(&NOT_DISPATCHED, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tasks::Tasks;

    fn answer(
        headers: &[(&HeaderName, &'static str)],
        trailers: &[(&HeaderName, &'static str)],
    ) -> Answer {
        let map = |pairs: &[(&HeaderName, &'static str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| ((*name).clone(), HeaderValue::from_static(value)));
            pairs.collect::<HeaderMap>()
        };
        let trailers = Some(map(trailers)).filter(|trailers| !trailers.is_empty());
        Answer { headers: map(headers), body: Bytes::new(), trailers }
    }

    /// What a call gets from a server that does this with its connection.
    async fn served<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(tokio::io::DuplexStream) -> F,
    ) -> Unanswered {
        served_once(serve).await.1
    }

    /// The same, and the connection.
    async fn served_once<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(tokio::io::DuplexStream) -> F,
    ) -> (Upstream, Unanswered) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let tasks = Tasks::default();
        tasks.spawn("server", serve(far));
        let (upstream, driving) = connect(near).await.unwrap();
        tasks.spawn("client", async move { drop(driving.await) });
        let call = Call {
            headers: HeaderMap::new(),
            path: http::uri::PathAndQuery::from_static("/csi.v1.Node/X"),
            body: frame::frame(&[]),
        };
        let answered = attempt(&upstream, &call, &Authority::from_static("localhost"), None).await;
        (upstream, answered.err().unwrap())
    }

    /// Sends so many answers of 103 to a call, and then one that is not gRPC.
    async fn inform(io: tokio::io::DuplexStream, times: u32) {
        let mut connection = h2::server::handshake(io).await.unwrap();
        while let Some(request) = connection.accept().await {
            let (_, mut respond) = request.unwrap();
            for _ in 0..times {
                let early = Response::builder().status(StatusCode::EARLY_HINTS).body(()).unwrap();
                respond.send_informational(early).unwrap();
            }
            respond.send_response(Response::new(()), true).unwrap();
        }
    }

    #[tokio::test]
    async fn informational_answers_end_a_call_if_they_are_many() {
        let (upstream, few) = served_once(|io| inform(io, MAX_INFORMATIONAL)).await;
        assert!(few.to_string().contains("no gRPC"), "{few}");
        assert!(upstream.violated().now_or_never().is_none());
        let (upstream, many) = served_once(|io| inform(io, MAX_INFORMATIONAL + 1)).await;
        assert!(upstream.violated().now_or_never().is_some());
        assert!(many.to_string().contains("more than 8 informational answers"), "{many}");
    }

    async fn reset_with(io: tokio::io::DuplexStream, reason: h2::Reason) {
        let mut connection = h2::server::handshake(io).await.unwrap();
        while let Some(request) = connection.accept().await {
            let (_, mut respond) = request.unwrap();
            respond.send_reset(reason);
        }
    }

    #[tokio::test]
    async fn only_what_the_peer_says_that_it_did_not_process_may_be_sent_again() {
        let refused = served(|io| reset_with(io, h2::Reason::REFUSED_STREAM)).await;
        assert!(matches!(refused, Unanswered::Unprocessed(_)), "{refused}");
        let reset = served(|io| reset_with(io, h2::Reason::INTERNAL_ERROR)).await;
        assert!(matches!(reset, Unanswered::InDoubt(_)), "{reset}");
        let left = served(|io| async move {
            let mut connection = h2::server::handshake(io).await.unwrap();
            // The request has been read; then everything is closed.
            let request = connection.accept().await;
            drop((request, connection));
        });
        let left = left.await;
        assert!(matches!(left, Unanswered::InDoubt(_)), "{left}");
        // h2 ends the connection itself, with a GOAWAY of its own.
        let broken = served(|mut io| async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut read = [0; 64];
            let _ = io.read(&mut read).await;
            // Empty SETTINGS, and then a frame of SETTINGS with a length that none has.
            io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            io.write_all(&[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]).await.unwrap();
            std::future::pending().await
        });
        let broken = broken.await;
        assert!(matches!(broken, Unanswered::InDoubt(_)), "{broken}");
    }

    #[test]
    fn only_a_refusal_in_headers_alone_has_an_edges_mark() {
        let mark = (&NOT_DISPATCHED, "1");
        for (headers, trailers, is_marked) in [
            (&[(&STATUS, "14"), mark][..], &[][..], true),
            (&[(&STATUS, "14")], &[], false),
            (&[(&STATUS, "14"), (&NOT_DISPATCHED, "0")], &[], false),
            (&[(&STATUS, "0"), mark], &[], false),
            (&[mark], &[(&STATUS, "14")], false),
            (&[], &[(&STATUS, "14"), mark], false),
        ] {
            let mut answer = answer(headers, trailers);
            assert_eq!(answer.take_not_dispatched(), is_marked, "{headers:?} {trailers:?}");
            assert!(!answer.headers.contains_key(&NOT_DISPATCHED));
            assert!(!answer.trailers.is_some_and(|all| all.contains_key(&NOT_DISPATCHED)));
        }
        let refusal = refusal(&DeadlinePassed("too soon"));
        assert_eq!(refusal.headers()[&NOT_DISPATCHED], "1");
        assert_eq!(refusal.headers()[&STATUS], "4");
    }

    #[test]
    fn the_status_of_an_answer_is_in_its_trailers_or_in_its_headers() {
        let code = |response: &Response<Body>| status(response).map(|status| status.code());
        assert_eq!(code(&Answer::of(Bytes::new()).response()), Some(tonic::Code::Ok));
        let late = failure(&DeadlinePassed("too soon"));
        assert_eq!(code(&late), Some(tonic::Code::DeadlineExceeded));
        let refused = answer(&[], &[(&STATUS, "5")]).response();
        assert_eq!(code(&refused), Some(tonic::Code::NotFound));
        assert_eq!(code(&answer(&[], &[]).response()), None);
    }
}
