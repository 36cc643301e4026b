//! What there is in the committed store, made in this order, so that a driver of the tests gives
//! the same ids again.

use std::path::{Path, PathBuf};

use anyhow::Context;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, created};
use prost::Message;
use proto::csi;
use proto::csi::volume_content_source::{SnapshotSource, Type};

use super::super::routing::create_at;

/// The driver of scope `shared` whose volume is handed over directly.
pub(super) const SHARED: &str = "hostdir.edge-csi.io";
/// The name of the volume that is at the first node, and its claim.
pub(super) const FIRST: &str = "pvc-first";
/// The name of the volume that is at the removed node.
pub(super) const REMOVED: &str = "pvc-removed";
/// The name of a create whose outcome is not known.
pub(super) const OPEN: &str = "pvc-open";
/// The name of a create that an older csi-cloud did not count: its driver may have got it.
pub(super) const UNCOUNTED: &str = "pvc-uncounted";
/// The name of the volume that is handed over directly.
pub(super) const DIRECT: &str = "pvc-direct";
/// The pod that has it.
pub(super) const POD: &str = "6e5c1f5a-2f3d-4ce5-9b53-2b1f0f8e4d11";
/// A direct volume that a node has by its word alone.
pub(super) const UNPROVEN: &str = "lease-by-word";
/// A direct volume that two nodes claim, and nobody has.
pub(super) const CLAIMED: &str = "lease-claimed";
/// The node that may join with the token.
pub(super) const TOKEN_NODE: &str = "n4";
/// The node whose certificates are revoked.
pub(super) const REVOKED_NODE: &str = "n5";

/// The ids at the first node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub(super) volume: String,
    pub(super) snapshot: String,
    pub(super) group: String,
    pub(super) clone: String,
}

/// A create at a node, as external-provisioner sends it for a claim of this name.
pub(super) fn claimed(name: &str, node: &str) -> anyhow::Result<csi::CreateVolumeRequest> {
    let mut request = create_at(name, &[node])?;
    for (key, value) in [("pvc/name", name), ("pvc/namespace", "shop"), ("pv/name", name)] {
        request.parameters.insert(format!("csi.storage.k8s.io/{key}"), value.into());
    }
    Ok(request)
}

/// Makes all of it at the first node, by the cloud's front or at the driver.
pub(super) async fn make(client: &RawClient) -> anyhow::Result<Ids> {
    let path = controller("CreateVolume");
    let made = client.call(&path, &claimed(FIRST, "n1")?.encode_to_vec()).await?;
    let volume = created(&made)?.volume_id;
    let request = csi::CreateSnapshotRequest {
        source_volume_id: volume.clone(),
        name: "snapshot".into(),
        ..Default::default()
    };
    let made = client.call(&controller("CreateSnapshot"), &request.encode_to_vec()).await?;
    let made = csi::CreateSnapshotResponse::decode(message(&made)?)?;
    let snapshot = made.snapshot.context("no snapshot")?.snapshot_id;
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "group".into(),
        source_volume_ids: vec![volume.clone()],
        ..Default::default()
    };
    let path = "/csi.v1.GroupController/CreateVolumeGroupSnapshot";
    let made = client.call(path, &request.encode_to_vec()).await?;
    let made = csi::CreateVolumeGroupSnapshotResponse::decode(message(&made)?)?;
    let group = made.group_snapshot.context("no group")?.group_snapshot_id;
    let clone = created(&client.call(&controller("CreateVolume"), &restored(&snapshot)?).await?)?;
    Ok(Ids { volume, snapshot, group, clone: clone.volume_id })
}

/// A create of the volume that is restored from the snapshot.
pub(super) fn restored(snapshot: &str) -> anyhow::Result<Vec<u8>> {
    let mut request = claimed("pvc-clone", "n1")?;
    let source = SnapshotSource { snapshot_id: snapshot.into() };
    request.volume_content_source =
        Some(csi::VolumeContentSource { r#type: Some(Type::Snapshot(source)) });
    Ok(request.encode_to_vec())
}

fn message(answer: &RawAnswer) -> anyhow::Result<bytes::Bytes> {
    answer.message().with_context(|| answer.status().to_string())
}

/// The oldest version whose store and state directory are read. It does not link any more.
pub(super) const OLDEST: &str = "0.1.0";

/// A file that this version wrote.
pub(super) fn committed(version: &str, file: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats");
    formats.join(version).join(file)
}
