//! The page's end of csi-cloud's socket `view`: one question a connection, and the stream of the
//! fleet. It reads only, since the socket serves nothing else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use proto::admin::client::{Client, ClientError};
use proto::admin::view::{FleetMessage, WATCH};
use proto::host::tasks::Tasks;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::warn;

/// The time limit for an answer; those about claims ask Kubernetes.
const ANSWER: Duration = Duration::from_secs(25);
/// csi-cloud sends a line each second. After so long without one it hangs.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest line, in bytes: a hundred thousand nodes fit.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The reason for no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// csi-cloud does not know the thing.
    Unknown,
    /// csi-cloud does not answer.
    Away,
}

/// Asks csi-cloud.
#[derive(Clone)]
pub(crate) struct ViewClient(PathBuf);

/// The stream of the fleet.
pub(crate) struct FleetStream {
    body: Incoming,
    read: BytesMut,
    /// The bytes of `read` that have no line end.
    looked: usize,
    /// Held, so that the connection stays.
    _sender: SendRequest<Full<Bytes>>,
    tasks: Tasks,
}

impl ViewClient {
    /// The client of this socket.
    pub(crate) fn new(view: PathBuf) -> Self {
        Self(view)
    }

    /// Returns the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Asks one question.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        path: &'static str,
        asked: &impl Serialize,
    ) -> Result<T, NoAnswer> {
        let asking = async {
            let mut client = Client::connect("csi-cloud", &self.0).await?;
            client.exchange(ANSWER, path, asked).await
        };
        asking.await.map_err(|error: ClientError| match error {
            ClientError::Refused(_) => NoAnswer::Unknown,
            other => {
                warn!(error = %proto::host::chain(&other), path, "csi-cloud gives no answer");
                NoAnswer::Away
            }
        })
    }

    /// Begins the stream.
    ///
    /// # Errors
    /// csi-cloud does not answer, or refuses.
    pub(crate) async fn watch(&self) -> anyhow::Result<FleetStream> {
        let stream = UnixStream::connect(&self.0).await?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        let tasks = Tasks::default();
        tasks.spawn_until_stop("view", async move { drop(connection.await) });
        let mut request = Request::post(WATCH).body(Full::from(Bytes::from_static(b"null")))?;
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("csi-cloud"));
        let asked = timeout(SILENCE, sender.send_request(request)).await;
        let answer = asked.context("it did not answer in time")??;
        if answer.status() != StatusCode::OK {
            bail!(
                "it refuses with {}; are csi-cloud and csi-page of one version?",
                answer.status()
            );
        }
        let body = answer.into_body();
        Ok(FleetStream { body, read: BytesMut::new(), looked: 0, _sender: sender, tasks })
    }
}

impl FleetStream {
    /// The next line.
    ///
    /// # Errors
    /// The stream ends, or csi-cloud sends nothing for long.
    pub(crate) async fn next(&mut self) -> anyhow::Result<FleetMessage> {
        loop {
            let unread = self.read.get(self.looked..).unwrap_or_default();
            if let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(self.looked + end + 1);
                self.looked = 0;
                return serde_json::from_slice(&line)
                    .context("a line cannot be read; are csi-cloud and csi-page of one version?");
            }
            self.looked = self.read.len();
            if self.looked > LINE_BYTES_MAX {
                bail!("a line is longer than {LINE_BYTES_MAX} bytes");
            }
            let frame = timeout(SILENCE, self.body.frame()).await.context("it is silent")?;
            let frame = frame.context("it ended the stream")??;
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}

impl Drop for FleetStream {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}
