//! Volumes of volumes: snapshots, what is restored of them, clones; and volumes that grow.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, claim_of, pod};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";

/// A snapshot of a written volume is restored into a claim, at the volume's node.
pub(super) async fn snapshot_and_restore(scene: &Scene<'_>) -> anyhow::Result<()> {
    let first = written(scene).await?;
    let snapshot = "{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: taken}, \
                     spec: {volumeSnapshotClassName: snapshots, source: {persistentVolumeClaimName: data}}}";
    scene.apply(snapshot).await?;
    scene.becomes(SNAPSHOTS, "VolumeSnapshot", "taken", "/status/readyToUse", &json!(true)).await?;
    let source = "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: taken}";
    copied(scene, source, &first).await
}

/// A clone of a written volume has its data, at the volume's node.
pub(super) async fn cloned(scene: &Scene<'_>) -> anyhow::Result<()> {
    let first = written(scene).await?;
    copied(scene, "  dataSource: {kind: PersistentVolumeClaim, name: data}", &first).await
}

/// Writes into a new volume and gives back where it is.
async fn written(scene: &Scene<'_>) -> anyhow::Result<Vec<String>> {
    scene.apply(&(claim("data", "now") + &pod("writer", "data", WRITE, READ))).await?;
    scene.ready(&["writer"]).await
}

async fn copied(scene: &Scene<'_>, source: &str, first: &[String]) -> anyhow::Result<()> {
    let copy = claim_of("copy", "now", "16Mi", source);
    scene.apply(&(copy + &pod("reader", "copy", STAY, READ))).await?;
    let second = scene.ready(&["reader"]).await?;
    ensure!(first == second, "the source is at {first:?}, the copy at {second:?}");
    Ok(())
}

/// A claim grows while a pod uses it, and again while none does.
pub(super) async fn expanded(scene: &Scene<'_>) -> anyhow::Result<()> {
    written(scene).await?;
    scene.apply(&claim_of("data", "now", "32Mi", "")).await?;
    grown(scene, "32Mi").await?;
    scene.delete::<Pod>("writer").await?;
    scene.apply(&claim_of("data", "now", "64Mi", "")).await?;
    scene.apply(&pod("reader", "data", STAY, READ)).await?;
    scene.ready(&["reader"]).await?;
    grown(scene, "64Mi").await
}

async fn grown(scene: &Scene<'_>, size: &str) -> anyhow::Result<()> {
    scene.becomes("v1", "PersistentVolumeClaim", "data", "/status/capacity/storage", &json!(size)).await
}
