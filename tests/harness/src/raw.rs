//! A client that sees bytes: it decodes neither request nor answer, so that a test can compare
//! them.

use std::io::ErrorKind;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use proto::csi::frame;
use proto::host::tasks::Tasks;
use proto::http2::body::Received;
use proto::http2::forward;
use proto::http2::forward::{Unanswered, Upstream};
use proto::link::Io;
use tokio::net::UnixStream;
use tonic::{Code, Status};

/// One HTTP/2 connection to a CSI socket.
#[derive(Clone)]
pub struct RawClient {
    sender: Upstream,
    authority: String,
    _tasks: Tasks,
}

/// An answer, unchanged.
#[derive(Clone, Debug)]
pub struct RawAnswer {
    /// The response headers.
    pub headers: HeaderMap,
    /// The whole body, gRPC's prefixes included.
    pub body: Bytes,
    /// The trailers; empty if there were none.
    pub trailers: HeaderMap,
}

impl RawAnswer {
    /// The gRPC status, from the trailers or, without them, the headers.
    pub fn status(&self) -> Status {
        let status = Status::from_header_map(&self.trailers)
            .or_else(|| Status::from_header_map(&self.headers));
        status.unwrap_or_else(|| Status::new(Code::Internal, "the answer has no gRPC status"))
    }

    /// The gRPC code.
    pub fn code(&self) -> Code {
        self.status().code()
    }

    /// The one message of the answer, if there is one.
    pub fn message(&self) -> Option<Bytes> {
        frame::message(&self.body).ok()
    }
}

/// Whether a call failed because its connection broke, as when the other end was killed.
pub fn connection_broke(error: &anyhow::Error) -> bool {
    let source = match error.downcast_ref::<Unanswered>() {
        Some(Unanswered::Unprocessed(source)) => Some(source),
        Some(Unanswered::InDoubt(source)) => source.downcast_ref::<h2::Error>(),
        None => error.downcast_ref::<h2::Error>(),
    };
    let io = source.and_then(h2::Error::get_io);
    io.is_some_and(|io| matches!(io.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

impl RawClient {
    /// Connects to a unix socket.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn connect(socket: &str) -> anyhow::Result<Self> {
        Self::over(Box::new(UnixStream::connect(socket).await?), "localhost").await
    }

    /// Calls this authority over a byte stream, as csi-cloud does over a link.
    ///
    /// # Errors
    /// The other side closed it.
    pub async fn over(io: Io, authority: &str) -> anyhow::Result<Self> {
        let (sender, connection) = forward::connect(io).await?;
        let tasks = Tasks::default();
        tasks.spawn("connection", async move { drop(connection.await) });
        Ok(Self { sender, authority: authority.to_owned(), _tasks: tasks })
    }

    /// Calls with a message, framed here, and gRPC's usual headers.
    ///
    /// # Errors
    /// The connection broke, or the answer ended without a gRPC status.
    pub async fn call(&self, path: &str, message: &[u8]) -> anyhow::Result<RawAnswer> {
        self.send(path, frame::frame(message), &[]).await
    }

    /// Calls with an unchanged body and further headers.
    ///
    /// # Errors
    /// As for [`RawClient::call`].
    pub async fn send(
        &self,
        path: &str,
        body: Bytes,
        more: &[(&str, &str)],
    ) -> anyhow::Result<RawAnswer> {
        let (parts, body) = self.begin(path, body, more).await?.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        Ok(RawAnswer { headers: parts.headers, body: body.to_bytes(), trailers })
    }

    /// The same, and returns the answer before its body has ended.
    ///
    /// # Errors
    /// As for [`RawClient::call`].
    pub async fn begin(
        &self,
        path: &str,
        body: Bytes,
        more: &[(&str, &str)],
    ) -> anyhow::Result<Response<Received>> {
        let path: PathAndQuery = path.parse()?;
        let mut request = Request::post(format!("http://{}{path}", self.authority)).body(())?;
        let headers = request.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
        for (name, value) in more {
            headers.append(HeaderName::try_from(*name)?, HeaderValue::try_from(*value)?);
        }
        Ok(self.sender.send(request, body).await?)
    }
}
