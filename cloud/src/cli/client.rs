//! The commands' end of the admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use proto::host::tasks::Tasks;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::admin::refused::ErrorBody;

/// The timeout of a command.
const PATIENCE: Duration = Duration::from_secs(600);

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody serves the socket.
    #[error(
        "csi-cloud does not answer at {}; is `csi-cloud serve` running, and is that its admin \
         socket (--admin, or --config with its configuration)?", path.display()
    )]
    NotThere {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// csi-cloud went away, or it is another program.
    #[error("csi-cloud broke off; its log may say why")]
    Broken(#[source] hyper::Error),
    /// There was no answer in time.
    #[error("csi-cloud did not answer within {PATIENCE:?}")]
    TimedOut,
    /// csi-cloud refuses the command.
    #[error("{0}")]
    Refused(String),
    /// The answer is of another version, say.
    #[error("what csi-cloud answered cannot be read; are both of one version?")]
    Unreadable(#[source] serde_json::Error),
}

/// A connection to the admin socket.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    tasks: Tasks,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Nobody serves the socket.
    pub async fn connect(path: &Path) -> Result<Self, ClientError> {
        let connected = UnixStream::connect(path).await;
        let stream =
            connected.map_err(|source| ClientError::NotThere { path: path.to_owned(), source })?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(ClientError::Broken)?;
        let tasks = Tasks::default();
        // A request reports how the connection ended.
        tasks.spawn_until_stop("admin", async move { drop(connection.await) });
        Ok(Self { sender, tasks })
    }

    /// Sends a command, and waits for the answer.
    ///
    /// # Errors
    /// csi-cloud refuses, goes away, or its answer cannot be read.
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
        headers.insert(header::HOST, HeaderValue::from_static("csi-cloud"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let asked = async {
            self.sender.ready().await?;
            let (parts, body) = self.sender.send_request(request).await?.into_parts();
            Ok((parts.status, body.collect().await?.to_bytes()))
        };
        let answered =
            tokio::time::timeout(PATIENCE, asked).await.map_err(|_| ClientError::TimedOut)?;
        let (status, body) = answered.map_err(ClientError::Broken)?;
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
