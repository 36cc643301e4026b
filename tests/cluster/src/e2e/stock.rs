//! A node whose VM runtime is configured as a stock installation of Kata's Go runtime: it shares
//! the directory of a direct volume. Nothing reaches the node's disk, everybody is told, and when
//! the configuration is mended the same claim works.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use guest::wrapper::{CONFIGURATION, RUNTIMES};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use proto::host::publish::{Existing, publish};
use serde_json::Value;

use super::direct;
use super::direct::{FILL, FILLED, FOUND, UNWRITABLE};
use super::exam::shows;
use super::look::{SOON, running};
use super::scene::Scene;
use super::tables;
use super::traces::Traces;
use crate::stand::node::Node;
use crate::stand::objects;
use crate::stand::objects::within;

const NOTICE: &str = "EDGE-CSI-THIS-IS-NOT-YOUR-VOLUME";
/// The node of this row: no other row has a direct volume there.
const NODE: &str = "n3";

pub(super) async fn shared_and_mended(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node(NODE)?;
    configure(node, true)?;
    scene.apply(&direct::disk("320Mi")).await?;
    let notice = format!("grep -q not.your.volume /data/{NOTICE}");
    scene.apply(&direct::guest("stock", NODE, UNWRITABLE, &notice)).await?;
    scene.ready(&["stock"]).await?;
    let traces = Traces::of(scene, "disk").await?;
    tables::mounted_nowhere(&traces.handle)?;
    let target = target(scene, node, "stock", &traces).await?;
    told(scene, node, "stock").await?;
    let pod = format!("{}/stock", scene.namespace());
    shows(scene, "not-taken", &["pod", &pod], Some(NODE)).await?;
    ensure!(names(&target)? == [NOTICE], "at the node there is {:?}", names(&target)?);
    checked(scene, node, "set it to false").await?;
    scene.delete::<Pod>("stock").await?;
    let left = node.worker.sees(&scene.cluster.ground.at(&format!("{NODE}/kubelet")));
    let left = left.join("plugins/edge-csi.io/left-by-pods");
    ensure!(!target.exists() && !left.exists(), "the pod has left something at its node");

    configure(node, false)?;
    scene.apply(&direct::guest("writer", NODE, FILL, FILLED)).await?;
    scene.ready(&["writer"]).await?;
    direct::within_container(&traces)?;
    checked(scene, node, "kata-go   ok").await?;
    counted(scene, 0).await?;
    scene.delete::<Pod>("writer").await?;
    scene.apply(&direct::guest("reader", NODE, FOUND, FILLED)).await?;
    running(scene, "reader").await?;
    scene.delete::<Pod>("reader").await?;
    scene.delete::<PersistentVolumeClaim>("disk").await?;
    traces.gone(scene.cluster).await?;
    std::fs::remove_file(node.worker.sees(CONFIGURATION))?;
    within("end of what the runtime had", SOON, || async {
        direct::nothing_left(scene, node, &traces)
    })
    .await
}

/// Writes the configuration that the node's runtime has, and csi-edge's check reads.
fn configure(node: &Node, disabled: bool) -> anyhow::Result<()> {
    let path = node.worker.sees(CONFIGURATION);
    std::fs::create_dir_all(path.parent().context("a file without a directory")?)?;
    let text = format!("[hypervisor.qemu]\ndisable_block_device_use = {disabled}\n");
    Ok(publish(&path, text.as_bytes(), 0o600, Existing::Replace)?)
}

/// The directory of a pod's volume, as it is at the node.
async fn target(
    scene: &Scene<'_>,
    node: &Node,
    pod: &str,
    traces: &Traces,
) -> anyhow::Result<PathBuf> {
    let uid = scene.api::<Pod>().get(pod).await?.metadata.uid.context("a pod without a uid")?;
    let kubelet = scene.cluster.ground.at(&format!("{}/kubelet", node.name));
    let volume = &traces.name;
    Ok(node.worker.sees(&format!("{kubelet}/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount")))
}

fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let names = std::fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Waits until the pod has its Event, once; csi-cloud counts the volume, and csi-edge shows it.
async fn told(scene: &Scene<'_>, node: &Node, pod: &str) -> anyhow::Result<()> {
    within("the pod's Event", SOON, || async {
        let events = objects::list(&scene.api::<Event>()).await?;
        let is_it = |event: &&Event| {
            event.reason.as_deref() == Some("DirectVolumeNotTaken")
                && event.involved_object.name.as_deref() == Some(pod)
        };
        let found: Vec<_> = events.iter().filter(is_it).collect();
        ensure!(found.len() == 1, "it was told {} times", found.len());
        let text = found.first().and_then(|event| event.message.as_deref()).unwrap_or_default();
        ensure!(text.contains("csi-edge direct check"), "it says {text}");
        Ok(())
    })
    .await?;
    counted(scene, 1).await?;
    let shown = direct::listed(scene, node).await?;
    let standing = shown.pointer("/0/standing").and_then(Value::as_str);
    ensure!(standing == Some("not taken"), "csi-edge shows {shown}");
    ensure!(node.edge.log().contains("not taken"), "csi-edge's log does not say it");
    Ok(())
}

/// Waits until csi-cloud counts so many volumes of the node.
async fn counted(scene: &Scene<'_>, expected: u64) -> anyhow::Result<()> {
    within("csi-cloud's count", SOON, || async {
        let cluster = scene.cluster;
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let found = nodes.iter().find(|shown| shown["name"] == NODE).context("no such node")?;
        ensure!(found["not_taken"] == expected, "csi-cloud shows {found}");
        // Other rows have volumes that were not taken, too.
        let metrics = cluster.cloud.metrics().await?;
        let value =
            metrics.lines().find_map(|line| line.strip_prefix("edge_csi_direct_not_taken "));
        let value: u64 = value.context("there is no such metric")?.trim().parse()?;
        ensure!(value >= expected, "the metric is {value}");
        Ok(())
    })
    .await
}

/// What `csi-edge direct check` says at the node.
async fn checked(scene: &Scene<'_>, node: &Node, word: &str) -> anyhow::Result<()> {
    let program = scene.cluster.ground.program("csi-edge").display().to_string();
    let script = format!("{program} direct check --root {RUNTIMES} || true");
    let said = node.worker.space.run("sh", &["-c", &script]).await?;
    ensure!(said.contains(word), "csi-edge direct check says {said}");
    Ok(())
}
