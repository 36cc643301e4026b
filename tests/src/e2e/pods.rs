//! Claims and pods: written, read, killed, made again, gone.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;

use super::scene::{Scene, claim, claim_of, pod, pod_with};

/// Writes a file once, and stays.
pub(super) const WRITE: &str = "echo written at $(hostname) > /data/file && sync && exec sleep 2147483647";
/// Only stays.
pub(super) const STAY: &str = "exec sleep 2147483647";
/// The file is there.
pub(super) const READ: &str = "grep -q written /data/file";

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

/// A raw block volume: what is written to the device is read from it.
pub(super) async fn raw_block(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim_of("disk", "late", "16Mi", "  volumeMode: Block")).await?;
    let device = "volumeDevices: [{name: disk, devicePath: /dev/xvda}]";
    let volumes = "[{name: disk, persistentVolumeClaim: {claimName: disk}}]";
    let write = "echo written | dd of=/dev/xvda conv=sync && exec sleep 2147483647";
    scene.apply(&pod_with("block", device, volumes, write, "head -c 7 /dev/xvda | grep -q written")).await?;
    scene.ready(&["block"]).await?;
    scene.delete::<Pod>("block").await
}

/// An Immediate claim is bound before there is a pod, and the pod goes where the volume is.
pub(super) async fn bound_first(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "now")).await?;
    scene.bound("data").await?;
    scene.apply(&pod("writer", "data", WRITE, READ)).await?;
    scene.ready(&["writer"]).await.map(drop)
}

/// Volumes of two drivers in one pod, one of which only some nodes have.
pub(super) async fn two_drivers(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&(claim("one", "late") + &claim("two", "second"))).await?;
    let mounts = "volumeMounts: [{name: one, mountPath: /data}, {name: two, mountPath: /two}]";
    let volumes = "[{name: one, persistentVolumeClaim: {claimName: one}}, \
                    {name: two, persistentVolumeClaim: {claimName: two}}]";
    let write = "echo written > /data/file && cp /data/file /two/file && exec sleep 2147483647";
    scene.apply(&pod_with("both", mounts, volumes, write, "cmp /data/file /two/file")).await?;
    let nodes = scene.ready(&["both"]).await?;
    ensure!(nodes != ["n3"], "n3 has no second driver");
    Ok(())
}

/// A generic ephemeral volume comes and goes with its pod.
pub(super) async fn ephemeral(scene: &Scene<'_>) -> anyhow::Result<()> {
    let volumes = "[{name: data, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], \
                    storageClassName: late, resources: {requests: {storage: 16Mi}}}}}}]";
    let mounts = "volumeMounts: [{name: data, mountPath: /data}]";
    scene.apply(&pod_with("short", mounts, volumes, WRITE, READ)).await?;
    scene.ready(&["short"]).await?;
    scene.delete::<Pod>("short").await?;
    scene.gone::<PersistentVolumeClaim>("short-data").await
}
