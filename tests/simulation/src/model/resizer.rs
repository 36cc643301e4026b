//! external-resizer: expands until the size is there. It asks for the capabilities before each
//! attempt; some codes park the claim.

use std::sync::Arc;

use proto::csi;
use tonic::Code;

use super::pace;
use super::pace::Next;
use super::sidecar::Sidecar;
use harness::requests::capability;

/// Keeps a volume as large as its claim.
pub(super) async fn resize(sidecar: Arc<Sidecar>, at: usize) {
    pace::keep(&sidecar.world, || sidecar.resize(at), |api| api.claim(at).version).await;
}

impl Sidecar {
    async fn resize(&self, at: usize) -> Next {
        let api = &self.world.api;
        let claim = api.claim(at);
        if claim.deleted {
            return Next::Done;
        }
        let Some(volume) = claim.volume.filter(|volume| volume.size < claim.size) else {
            return Next::Idle;
        };
        let asked = csi::ControllerGetCapabilitiesRequest {};
        if self.call("ControllerGetCapabilities", "", &asked).await.code != Code::Ok {
            return Next::Retry;
        }
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: claim.size, limit_bytes: 0 }),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let reply = self.call("ControllerExpandVolume", &volume.id, &request).await;
        match reply.code {
            Code::Ok => {
                let answer =
                    reply.decode::<csi::ControllerExpandVolumeResponse>().unwrap_or_default();
                api.change(|objects| {
                    if let Some(volume) =
                        objects.claims.get_mut(at).and_then(|claim| claim.volume.as_mut())
                    {
                        volume.size = answer.capacity_bytes;
                    }
                });
                Next::Now
            }
            // Infeasible.
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Next::Slow,
            // In use: not again while a pod uses it.
            Code::FailedPrecondition if api.read(|objects| !objects.free(at)) => Next::Idle,
            _ => Next::Retry,
        }
    }
}
