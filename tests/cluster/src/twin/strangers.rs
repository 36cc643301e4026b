//! Scenarios of what nobody made here: a snapshot that a user wrote down, a volume that was deleted
//! before, a volume that no node has.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::scene::ClaimScene;

/// The API of snapshots.
const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";

/// The seconds until a claim is bound to a volume that has what a static snapshot of the second
/// node has. The scheduler does not know where a snapshot is, so it may choose another node;
/// without us a user has to choose the right one.
pub(super) async fn restored(scene: &mut ClaimScene) -> anyhow::Result<f64> {
    scene.add_sidecar("csi-snapshotter", "n2").await?;
    let snapshot = write_snapshot(scene, "static@n2").await?;
    let chosen = if scene.is_behind_us() { "n1" } else { "n2" };
    let begun = Instant::now();
    scene.restore("restored", chosen, &snapshot).await?;
    let volumes = scene.bound(&["restored"]).await?;
    let took = begun.elapsed().as_secs_f64();
    let misplaced = scene.misplaced(&volumes)?;
    ensure!(misplaced.is_empty(), "{misplaced:?}");
    let volume = volumes.first().context("no volume")?;
    let made = scene.who_did("CreateVolume", &volume.name_any())?;
    ensure!(made == ["n2"], "the snapshot is at n2, and it was restored at {made:?}");
    Ok(took)
}

/// Writes a snapshot that the driver is said to have, and returns its name once it is ready.
async fn write_snapshot(scene: &ClaimScene, handle: &str) -> anyhow::Result<String> {
    let name = scene.object("by-hand");
    let content = json!({
        "apiVersion": SNAPSHOTS,
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {
            "deletionPolicy": "Retain",
            "driver": scene.driver(),
            "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": name, "namespace": "default"},
        },
    });
    scene.apply(&content).await?;
    let snapshot = json!({
        "apiVersion": SNAPSHOTS,
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {"source": {"volumeSnapshotContentName": name}},
    });
    scene.apply(&snapshot).await?;
    scene
        .until(&snapshot, "a ready snapshot", |found| {
            found.is_some_and(|found| found["status"]["readyToUse"] == true)
        })
        .await?;
    Ok(name)
}

/// The seconds until a volume is gone that was deleted before: its PersistentVolume came back, as
/// of an older copy of Kubernetes' store.
pub(super) async fn deleted_again(scene: &ClaimScene) -> anyhow::Result<f64> {
    scene.claim("claim", Some("n2")).await?;
    let volumes = scene.bound(&["claim"]).await?;
    let volume = volumes.first().context("no volume")?;
    scene.delete("claim").await?;
    scene.gone(&volume.name_any()).await?;
    let begun = Instant::now();
    scene.apply(&copy(volume)?).await?;
    scene.gone(&volume.name_any()).await?;
    let took = begun.elapsed().as_secs_f64();
    let deleted = scene.who_did("DeleteVolume", &volume.name_any())?;
    ensure!(deleted == ["n2"], "it was deleted at {deleted:?}");
    Ok(took)
}

/// A PersistentVolume without what the API server alone writes.
fn copy(volume: &PersistentVolume) -> anyhow::Result<Value> {
    let metadata = json!({"name": volume.name_any(), "annotations": volume.annotations()});
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata,
        "spec": serde_json::to_value(&volume.spec)?,
    }))
}

/// The seconds until a volume that no node has is detached from the second node. It is not told
/// where it is, and another node is away, or cannot be asked.
pub(super) async fn unknown_detach(scene: &mut ClaimScene) -> anyhow::Result<f64> {
    scene.add_sidecar("csi-attacher", "n2").await?;
    scene.take_away("n3").await?;
    let (name, handle) = (scene.object("lost"), "lost@nowhere");
    scene.apply(&scene.volume_object(&name, handle, "Retain")).await?;
    let attachment = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": scene.driver(),
            "nodeName": "n2",
            "source": {"persistentVolumeName": name},
        },
    });
    scene.apply(&attachment).await?;
    scene
        .until(&attachment, "a failed attach", |found| {
            found.is_some_and(|found| found["status"]["attachError"].is_object())
        })
        .await?;
    let begun = Instant::now();
    scene.remove(&attachment).await?;
    scene.until(&attachment, "the end of the attachment", |found| found.is_none()).await?;
    let took = begun.elapsed().as_secs_f64();
    let told = scene.who_did("ControllerUnpublishVolume", handle)?;
    ensure!(told == ["n2"], "it was detached at {told:?}");
    Ok(took)
}
