//! Claims and pods: written, read, killed, made again, gone.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;

use super::scene::{Scene, claim, pod};

/// Writes a file once, and stays.
const WRITE: &str = "echo written at $(hostname) > /data/file && sync && exec sleep 2147483647";
/// Only stays.
const STAY: &str = "exec sleep 2147483647";
/// The file is there.
const READ: &str = "grep -q written /data/file";

/// A claim's pod writes and reads its file where it was scheduled, and nothing is left when both are deleted.
pub(super) async fn written_and_gone(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    scene.apply(&pod("writer", "data", WRITE, READ)).await?;
    let nodes = scene.ready(&["writer"]).await?;
    let volume = scene.bound("data").await?;
    let volumes = Api::<PersistentVolume>::all(scene.cluster.client.clone());
    let found = volumes.get(&volume).await?;
    let affinity = serde_json::to_string(&found.spec.and_then(|spec| spec.node_affinity))?;
    let node = nodes.first().map_or("", String::as_str);
    ensure!(affinity.contains(&format!("\"{node}\"")), "the pod is at {node}, its volume at {affinity}");
    scene.delete::<Pod>("writer").await?;
    scene.delete::<PersistentVolumeClaim>("data").await
}

/// A pod that was deleted and made again finds its data, at the volume's node.
pub(super) async fn made_again(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    scene.apply(&pod("first", "data", WRITE, READ)).await?;
    let first = scene.ready(&["first"]).await?;
    scene.delete::<Pod>("first").await?;
    scene.apply(&pod("second", "data", STAY, READ)).await?;
    let second = scene.ready(&["second"]).await?;
    ensure!(first == second, "the volume is at {first:?}, the pod at {second:?}");
    Ok(())
}
