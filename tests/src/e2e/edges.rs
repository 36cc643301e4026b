//! What users must not notice: csi-edge and csi-cloud restarted and killed, and nodes that are cut off for a while.

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;

use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, pod};
use crate::cluster::objects::within;

/// How long a claim is watched that must not be bound.
const QUIET: Duration = Duration::from_secs(5);

/// csi-edge is restarted and killed under a running pod, which notices nothing; the kubelet's calls succeed after.
pub(super) async fn killed(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&(claim("data", "late") + &pod("writer", "data", WRITE, READ))).await?;
    let nodes = scene.ready(&["writer"]).await?;
    let node = scene.cluster.node(nodes.first().map_or("", String::as_str))?;
    node.edge.restart().await?;
    node.edge.kill().await?;
    node.edge.run().await?;
    scene.ready(&["writer"]).await?;
    ensure!(scene.restarts("writer").await? == 0, "the container was started again");
    scene.delete::<Pod>("writer").await?;
    scene.apply(&pod("reader", "data", STAY, READ)).await?;
    scene.ready(&["reader"]).await.map(drop)
}

/// A node is cut off while a pod with a claim waits for it; when it is back, the pod comes up within a minute.
pub(super) async fn cut_off(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n3")?;
    node.relay.cut();
    let placed = pod("writer", "data", WRITE, READ) + "  nodeSelector: {kubernetes.io/hostname: n3}\n";
    scene.apply(&(claim("data", "late") + &placed)).await?;
    let waited = tokio::time::timeout(QUIET, scene.bound("data")).await;
    node.relay.mend();
    ensure!(waited.is_err(), "the claim was bound at a node that was away");
    scene.ready(&["writer"]).await.map(drop)
}

/// csi-cloud is killed; the sidecars come back by themselves, and all goes on.
pub(super) async fn cloud_killed(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&(claim("data", "late") + &pod("writer", "data", WRITE, READ))).await?;
    scene.cluster.cloud.program.kill().await?;
    scene.cluster.cloud.program.run().await?;
    scene.ready(&["writer"]).await?;
    scene.delete::<Pod>("writer").await?;
    scene.cluster.cloud.program.kill().await?;
    scene.cluster.cloud.program.run().await?;
    let ready = || async { scene.cluster.cloud.shows(&scene.cluster.ground, &["volumes"]).await };
    let volumes = within("csi-cloud's volumes", Duration::from_secs(30), ready).await?;
    ensure!(volumes.len() == 1, "csi-cloud has {volumes:?}");
    Ok(())
}
