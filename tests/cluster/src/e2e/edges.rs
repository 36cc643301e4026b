//! Faults that users must not notice: csi-edge and csi-cloud restarted and killed, and nodes cut
//! off for a while.

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;

use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, pod};
use crate::stand::node::Node;
use crate::stand::objects::within;

/// How long csi-edge may take to run another binary.
const UPGRADED: Duration = Duration::from_secs(10);
/// How long a claim is watched that must not be bound.
const QUIET: Duration = Duration::from_secs(5);

/// csi-edge is restarted and killed under a running pod, which notices nothing; the kubelet's calls
/// succeed after.
pub(super) async fn killed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = writer(scene).await?;
    node.edge.restart().await?;
    scene.ready(&["writer"]).await?;
    node.edge.kill().await?;
    node.edge.run().await?;
    unnoticed(scene).await
}

/// csi-edge becomes another binary under a running pod, and the old one again.
pub(super) async fn upgraded(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = writer(scene).await?;
    let ground = &scene.cluster.ground;
    let old = ground.program("csi-edge");
    let new = ground.dir().join("csi-edge-upgraded");
    tokio::fs::copy(&old, &new).await?;
    node.edge.replace(&new).await?;
    node.edge.restart().await?;
    let pid = node.edge.pid().await?.as_raw_nonzero();
    // At first it is the program that enters the node's namespaces.
    let upgraded = || async {
        let runs = tokio::fs::read_link(format!("/proc/{pid}/exe")).await?;
        ensure!(runs == new, "it runs {}", runs.display());
        Ok(())
    };
    within("csi-edge to run the other binary", UPGRADED, upgraded).await?;
    scene.ready(&["writer"]).await?;
    node.edge.replace(&old).await?;
    node.edge.restart().await?;
    unnoticed(scene).await
}

/// Starts a pod that writes to its volume, and returns its node.
async fn writer<'a>(scene: &'a Scene<'_>) -> anyhow::Result<&'a Node> {
    scene.apply(&(claim("data", "late") + &pod("writer", "data", WRITE, READ))).await?;
    let nodes = scene.ready(&["writer"]).await?;
    scene.cluster.node(nodes.first().map_or("", String::as_str))
}

/// The pod has run on, and the next one finds its data.
async fn unnoticed(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.ready(&["writer"]).await?;
    ensure!(scene.restarts("writer").await? == 0, "the container was started again");
    scene.delete::<Pod>("writer").await?;
    scene.apply(&pod("reader", "data", STAY, READ)).await?;
    scene.ready(&["reader"]).await.map(drop)
}

/// A node is cut off while a pod with a claim waits for it. When it is back, the pod starts within
/// a minute.
pub(super) async fn cut_off(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n3")?;
    node.relay.cut();
    let placed =
        pod("writer", "data", WRITE, READ) + "  nodeSelector: {kubernetes.io/hostname: n3}\n";
    scene.apply(&(claim("data", "late") + &placed)).await?;
    let waited = tokio::time::timeout(QUIET, scene.bound("data")).await;
    node.relay.mend();
    ensure!(waited.is_err(), "the claim was bound at a node that was away");
    scene.ready(&["writer"]).await.map(drop)
}
