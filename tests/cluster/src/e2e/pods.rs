//! Claims and pods: written, read, deleted and made again, raw, ephemeral, gone.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::Instant;

use super::scene::{Scene, claim, pod, pod_with};
use super::texts::{READ_RAW, WRITE_RAW, raw_claim, raw_pod};
use super::traces::Traces;

/// Writes a file once, and stays.
pub(super) const WRITE: &str =
    "echo written at $(hostname) > /data/file && sync && exec sleep 2147483647";
/// Only stays.
pub(super) const STAY: &str = "exec sleep 2147483647";
/// The file is there.
pub(super) const READ: &str = "grep -q written /data/file";

/// The pods that share a volume.
const PODS: usize = 20;
/// The time in which they end, on a machine that does other work too.
const TOGETHER: Duration = Duration::from_secs(60);

/// A claim's pod writes and reads its file where it was scheduled, and nothing is left when both
/// are deleted.
pub(super) async fn written_and_gone(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    scene.apply(&pod("writer", "data", WRITE, READ)).await?;
    let nodes = scene.ready(&["writer"]).await?;
    let traces = Traces::of(scene, "data").await?;
    let volumes = Api::<PersistentVolume>::all(scene.cluster.client.clone());
    let found = volumes.get(&traces.name).await?;
    let affinity = serde_json::to_string(&found.spec.and_then(|spec| spec.node_affinity))?;
    let node = nodes.first().map_or("", String::as_str);
    ensure!(
        affinity.contains(&format!("\"{node}\"")),
        "the pod is at {node}, its volume at {affinity}"
    );
    let home = traces.home(scene.cluster)?;
    ensure!(home.name == node, "the pod is at {node}, its volume at {}", home.name);
    // Staged and published: what is looked for in the end is there now.
    let mounts = traces.mounts(home)?;
    ensure!(mounts.len() >= 2, "at {node} there is only {mounts:?}");
    ensure!(traces.attachments(scene.cluster).await?.len() == 1, "it is not attached once");
    shown(scene, &traces).await?;
    scene.delete::<Pod>("writer").await?;
    scene.delete::<PersistentVolumeClaim>("data").await?;
    traces.gone(scene.cluster).await
}

/// An operator sees which claim a volume is for.
async fn shown(scene: &Scene<'_>, traces: &Traces) -> anyhow::Result<()> {
    let all = scene.cluster.cloud.shows(&scene.cluster.ground, &["volumes"]).await?;
    let ours = all.iter().find(|one| one.get("id") == Some(&json!(traces.handle)));
    let ours = ours.with_context(|| format!("csi-cloud does not show {}", traces.handle))?;
    let of = |key: &str| ours.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
    let said = [of("claim_namespace"), of("claim_name"), of("persistent_volume")];
    ensure!(said == [scene.namespace(), "data", &traces.name], "csi-cloud shows {ours}");
    Ok(())
}

/// A pod that was killed and made again finds its data, at the volume's node.
pub(super) async fn made_again(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    scene.apply(&pod("first", "data", WRITE, READ)).await?;
    let first = scene.ready(&["first"]).await?;
    // As with `kubectl delete --force`, the next pod starts while the kubelet still ends this one.
    scene.api::<Pod>().delete("first", &DeleteParams::default().grace_period(0)).await?;
    scene.apply(&pod("second", "data", STAY, READ)).await?;
    let second = scene.ready(&["second"]).await?;
    ensure!(first == second, "the volume is at {first:?}, the pod at {second:?}");
    Ok(())
}

/// Twenty pods of one volume that are deleted together end together: their kubelet unmounts them in
/// parallel, and its back-off after a refusal would add up to minutes.
pub(super) async fn end_together(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    let names: Vec<_> = (0..PODS).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        scene.apply(&pod(name, "data", STAY, "test -d /data")).await?;
    }
    let nodes = scene.ready(&names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    ensure!(nodes.iter().all(|node| Some(node) == nodes.first()), "they are at {nodes:?}");
    let traces = Traces::of(scene, "data").await?;
    let begun = Instant::now();
    for name in &names {
        scene.api::<Pod>().delete(name, &DeleteParams::default()).await?;
    }
    for name in &names {
        scene.gone::<Pod>(name).await?;
    }
    let took = begun.elapsed();
    ensure!(took < TOGETHER, "the last of {PODS} pods was gone after {took:?}");
    scene.delete::<PersistentVolumeClaim>("data").await?;
    traces.gone(scene.cluster).await
}

/// A raw volume is a device in a pod, keeps what is written to it, and leaves neither mount nor
/// loop device.
pub(super) async fn raw(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&raw_claim("disk", "late")).await?;
    scene.apply(&raw_pod("first", "disk", WRITE_RAW, READ_RAW)).await?;
    let first = scene.ready(&["first"]).await?;
    let traces = Traces::of(scene, "disk").await?;
    scene.delete::<Pod>("first").await?;
    scene.apply(&raw_pod("second", "disk", STAY, READ_RAW)).await?;
    let second = scene.ready(&["second"]).await?;
    ensure!(first == second, "the volume is at {first:?}, the pod at {second:?}");
    scene.delete::<Pod>("second").await?;
    scene.delete::<PersistentVolumeClaim>("disk").await?;
    traces.gone(scene.cluster).await
}

/// A volume that a pod brings along is there as long as the pod.
pub(super) async fn ephemeral(scene: &Scene<'_>) -> anyhow::Result<()> {
    let volumes = "[{name: data, ephemeral: {volumeClaimTemplate: {spec: {accessModes: \
                   [ReadWriteOnce], \
                    storageClassName: late, resources: {requests: {storage: 16Mi}}}}}}]";
    let mounts = "volumeMounts: [{name: data, mountPath: /data}]";
    scene.apply(&pod_with("brief", mounts, volumes, WRITE, READ)).await?;
    scene.ready(&["brief"]).await?;
    let traces = Traces::of(scene, "brief-data").await?;
    scene.delete::<Pod>("brief").await?;
    scene.gone::<PersistentVolumeClaim>("brief-data").await?;
    traces.gone(scene.cluster).await
}
