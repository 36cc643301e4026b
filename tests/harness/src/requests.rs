//! Requests as sidecars make them, encoded, and what their answers hold.

use anyhow::Context;
use prost::Message;
use proto::csi;
use proto::csi::volume_capability;

use crate::raw::{RawAnswer, RawClient};

/// The path of an RPC of the controller.
pub fn controller(method: &str) -> String {
    format!("/csi.v1.Controller/{method}")
}

/// A CreateVolume request for a volume of this name, somewhere.
pub fn create(name: &str) -> Vec<u8> {
    let volume_capabilities = vec![capability()];
    csi::CreateVolumeRequest { name: name.into(), volume_capabilities, ..Default::default() }
        .encode_to_vec()
}

/// A DeleteVolume request.
pub fn delete(volume_id: &str) -> Vec<u8> {
    csi::DeleteVolumeRequest { volume_id: volume_id.into(), ..Default::default() }.encode_to_vec()
}

/// The volume in an answer to CreateVolume.
///
/// # Errors
/// The answer holds none.
pub fn created(answer: &RawAnswer) -> anyhow::Result<csi::Volume> {
    let message = answer.message().with_context(|| answer.status().to_string())?;
    csi::CreateVolumeResponse::decode(message)?.volume.context("no volume")
}

/// Makes a volume and two snapshots, and returns requests for both streams with answers of several
/// messages.
///
/// # Errors
/// The driver does not make them.
pub async fn snapshot_requests(direct: &RawClient) -> anyhow::Result<[Vec<u8>; 2]> {
    let made = direct.call(&controller("CreateVolume"), &create("source")).await?;
    let source_volume_id = created(&made)?.volume_id;
    let mut ids: Vec<String> = Vec::new();
    for name in ["s1", "s2"] {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: source_volume_id.clone(),
            name: name.into(),
            ..Default::default()
        };
        let made = direct.call(&controller("CreateSnapshot"), &request.encode_to_vec()).await?;
        let message = made.message().ok_or_else(|| anyhow::anyhow!("{}", made.status()))?;
        ids.push(
            csi::CreateSnapshotResponse::decode(message)?.snapshot.unwrap_or_default().snapshot_id,
        );
    }
    let allocated = csi::GetMetadataAllocatedRequest {
        snapshot_id: ids[0].clone(),
        max_results: 1,
        ..Default::default()
    };
    let delta = csi::GetMetadataDeltaRequest {
        base_snapshot_id: ids[0].clone(),
        target_snapshot_id: ids[1].clone(),
        max_results: 1,
        ..Default::default()
    };
    Ok([allocated.encode_to_vec(), delta.encode_to_vec()])
}

/// A mounted volume that one node writes.
pub fn capability() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(volume_capability::AccessMode {
            mode: volume_capability::access_mode::Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(volume_capability::AccessType::Mount(
            volume_capability::MountVolume::default(),
        )),
    }
}
