//! external-attacher: publishes until the answer is OK, unpublishes until the answer is OK. It has
//! no final codes.

use std::sync::Arc;
use std::time::Duration;

use proto::csi;
use tonic::Code;

use super::pace;
use super::pace::Next;
use super::sidecar::Sidecar;
use crate::keys::name;
use harness::requests::capability;

/// How long a change takes until its event arrives.
const EVENT: Duration = Duration::from_millis(5);

/// Keeps an attachment as it should be.
pub(super) async fn attach(sidecar: Arc<Sidecar>, at: usize) {
    pace::keep(&sidecar.world, || sidecar.attach(at), |api| api.attachment(at).version).await;
}

impl Sidecar {
    async fn attach(&self, at: usize) -> Next {
        let api = &self.world.api;
        let attachment = api.attachment(at);
        let Some(volume) = api.claim(attachment.claim).volume.filter(|_| !attachment.gone) else {
            return Next::Done;
        };
        let node_id = name(volume.node).to_owned();
        let volume_id = volume.id.clone();
        if attachment.deleting {
            // The volume is detached whatever the attach attempts returned.
            let request =
                csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
            let reply = self.call("ControllerUnpublishVolume", &volume.id, &request).await;
            if reply.code == Code::Ok {
                api.change_attachment(at, |of| (of.gone, of.attached) = (true, false));
                return Next::Done;
            }
            return self.failed(at, reply.text).await;
        }
        if attachment.attached {
            return Next::Idle;
        }
        let request = csi::ControllerPublishVolumeRequest {
            volume_id,
            node_id,
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let reply = self.call("ControllerPublishVolume", &volume.id, &request).await;
        if reply.code == Code::Ok {
            api.change_attachment(at, |of| of.attached = true);
            return Next::Idle;
        }
        self.failed(at, reply.text).await
    }

    /// The error goes into the status; if that changes it, the change is an event, and the next
    /// attempt is at once.
    async fn failed(&self, at: usize, error: String) -> Next {
        if self.world.api.attachment(at).error == error {
            return Next::Retry;
        }
        self.world.api.change_attachment(at, |of| of.error = error);
        tokio::time::sleep(EVENT).await;
        Next::Now
    }
}
