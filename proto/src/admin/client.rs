//! The commands' end of the admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use crate::host::tasks::Tasks;

/// The timeout of a command.
const PATIENCE: Duration = Duration::from_secs(600);

/// The body of an answer that refuses a command.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For an operator.
    pub error: String,
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error(
        "{program} does not answer at {}; is `{program} serve` running, and is that its admin \
         socket (--admin, or --config with its configuration)?", path.display()
    )]
    NotThere {
        /// The program.
        program: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The program went away, or it is another one.
    #[error("{program} broke off; its log may say why")]
    Broken {
        /// The program.
        program: &'static str,
        /// What broke.
        #[source]
        source: hyper::Error,
    },
    /// There was no answer in time.
    #[error("{0} did not answer within {PATIENCE:?}")]
    TimedOut(&'static str),
    /// The program refuses the command.
    #[error("{0}")]
    Refused(String),
    /// The answer is of another version, say.
    #[error("the answer cannot be read; are both programs of one version?")]
    Unreadable(#[source] serde_json::Error),
}

/// A connection to the admin socket.
pub struct Client {
    program: &'static str,
    sender: SendRequest<Full<Bytes>>,
    tasks: Tasks,
}

impl Client {
    /// Connects to this program.
    ///
    /// # Errors
    /// Nobody serves the socket.
    pub async fn connect(program: &'static str, path: &Path) -> Result<Self, ClientError> {
        let not_there = |source| ClientError::NotThere { program, path: path.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(not_there)?;
        let connected = handshake(TokioIo::new(stream)).await;
        let (sender, connection) =
            connected.map_err(|source| ClientError::Broken { program, source })?;
        let tasks = Tasks::default();
        // A request reports how the connection ended.
        tasks.spawn_until_stop("admin", async move { drop(connection.await) });
        Ok(Self { program, sender, tasks })
    }

    /// Sends a command, and waits for the answer.
    ///
    /// # Errors
    /// The program refuses, goes away, or its answer cannot be read.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &'static str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(parameters).map_err(ClientError::Unreadable)?;
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::from_static(self.program));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let asked = async {
            self.sender.ready().await?;
            let (parts, body) = self.sender.send_request(request).await?.into_parts();
            Ok((parts.status, body.collect().await?.to_bytes()))
        };
        let program = self.program;
        let answered = tokio::time::timeout(PATIENCE, asked).await;
        let answered = answered.map_err(|_| ClientError::TimedOut(program))?;
        let (status, body) = answered.map_err(|source| ClientError::Broken { program, source })?;
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(ClientError::Unreadable);
        }
        let refusal: ErrorBody = serde_json::from_slice(&body).map_err(ClientError::Unreadable)?;
        Err(ClientError::Refused(refusal.error))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}
