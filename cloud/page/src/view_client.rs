//! The page's end of csi-cloud's socket `view`: one question a connection, and the stream of the
//! fleet. It reads only, since the socket serves nothing else.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, TryStreamExt};
use http::StatusCode;
use http_body_util::BodyDataStream;
use proto::admin::client::{Client, ClientError};
use proto::admin::view::{FleetMessage, WATCH};
use proto::host::peer_log::{LogPeer, peer_warn};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

/// The time limit for an answer; those about claims ask Kubernetes.
const ANSWER: Duration = Duration::from_secs(25);
/// csi-cloud sends a line each second. After so long without one it hangs.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest line, in bytes: a hundred thousand nodes fit.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Asks csi-cloud at its socket.
#[derive(Clone)]
pub(crate) struct ViewClient(pub(crate) PathBuf);

/// The stream of the fleet.
pub(crate) struct FleetStream {
    lines: FramedRead<Box<dyn AsyncRead + Send + Unpin>, LinesCodec>,
    /// Held, so that the connection stays.
    _client: Client,
}

impl ViewClient {
    /// Asks one question.
    ///
    /// # Errors
    /// NOT_FOUND if csi-cloud does not know the thing, SERVICE_UNAVAILABLE if it does not answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        path: &'static str,
        asked: &impl Serialize,
    ) -> Result<T, StatusCode> {
        let asking = async {
            let mut client = Client::connect("csi-cloud", &self.0).await?;
            client.exchange(ANSWER, path, asked).await
        };
        asking.await.map_err(|error: ClientError| match error {
            ClientError::Refused(_) => StatusCode::NOT_FOUND,
            other => {
                peer_warn!(
                    LogPeer::Cloud, error = %proto::host::chain(&other), path,
                    "csi-cloud gives no answer"
                );
                StatusCode::SERVICE_UNAVAILABLE
            }
        })
    }

    /// Begins the stream.
    ///
    /// # Errors
    /// csi-cloud does not answer, or refuses.
    pub(crate) async fn watch(&self) -> anyhow::Result<FleetStream> {
        let mut client = Client::connect("csi-cloud", &self.0).await?;
        let body = BodyDataStream::new(client.stream(SILENCE, WATCH, &()).await?);
        let read = Box::new(StreamReader::new(body.map_err(io::Error::other)));
        let lines = LinesCodec::new_with_max_length(LINE_BYTES_MAX);
        Ok(FleetStream { lines: FramedRead::new(read, lines), _client: client })
    }
}

impl FleetStream {
    /// The next line.
    ///
    /// # Errors
    /// The stream ends, or csi-cloud sends nothing for long.
    pub(crate) async fn next(&mut self) -> anyhow::Result<FleetMessage> {
        let line = timeout(SILENCE, self.lines.next()).await.context("it is silent")?;
        let line = line.context("it ended the stream")??;
        serde_json::from_str(&line)
            .context("a line cannot be read; are csi-cloud and csi-page of one version?")
    }
}
