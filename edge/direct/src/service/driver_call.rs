//! Calls the driver on behalf of a call of the node's front.

use edge_calls::executor::Executor;
use http::HeaderMap;
use http::uri::PathAndQuery;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::csi::frame;
use proto::http2::forward::{Answer, Call};
use proto::names::DriverName;
use tokio::time::Instant;

use crate::error::Error;
use crate::records::published::Published;

/// The result of a call about a direct volume.
pub(super) type CallResult = Result<Answer, Error>;

/// A call of the front, and the request for the driver.
pub(super) struct DriverCall<'a> {
    pub(super) executor: &'a Executor,
    pub(super) driver: &'a DriverName,
    pub(super) method: Method,
    pub(super) headers: &'a HeaderMap,
    /// The deadline of the front's caller. The driver's calls end then, and not our own work.
    pub(super) deadline: Option<Instant>,
}

impl DriverCall<'_> {
    /// Sends the driver this message of the call's own method.
    ///
    /// # Errors
    /// The call was not carried out, or its outcome is not known. A failure that the driver answers
    /// is no error.
    pub(super) async fn send(&self, message: &[u8]) -> CallResult {
        self.send_as(self.method, message).await
    }

    /// Has the driver unpublish the volume from its private path.
    ///
    /// # Errors
    /// As for [`Self::send`].
    pub(super) async fn unpublish(&self, record: &Published) -> CallResult {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: record.volume_id.clone(),
            target_path: record.private_path.display().to_string(),
        };
        self.send_as(Method::NodeUnpublishVolume, &request.encode_to_vec()).await
    }

    async fn send_as(&self, method: Method, message: &[u8]) -> CallResult {
        let path = PathAndQuery::from_static(method.path());
        let call = Call { headers: self.headers.clone(), path, body: frame::frame(message) };
        Ok(self.executor.ask(self.driver.as_str(), call, self.deadline).await?)
    }
}
