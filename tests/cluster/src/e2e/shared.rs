//! Shared storage: volumes of a file server, made by the driver of one elected node and used at all
//! nodes at once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::look;
use super::look::reads;
use super::pods::STAY;
use super::resize::SIZE;
use super::scene::{Scene, claim, pod};
use super::snapshots::{SNAPSHOT, forget, restore, snapshot};
use super::texts::{at, sized};
use super::traces::Traces;
use crate::stand::node::{Driver, Node};
use crate::stand::objects::within;
use crate::stand::{Cluster, SHARED};

/// How long another node may take to be elected, and what was in doubt to be made there. A driver
/// counts as up again after 30 s without a failure.
const SOON: Duration = Duration::from_secs(90);
/// How many claims are made at once.
const CLAIMS: usize = 8;

/// A claim's volume is used by two pods at two nodes at once, and what one writes the other reads.
/// It grows under them. A snapshot of it is restored, and a pod at a third node has the data.
pub(super) async fn storage(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&many("data")).await?;
    for (node, name, other) in [("n1", "one", "two"), ("n2", "two", "one")] {
        let script = format!("echo {name} > /data/{name} && sync && {STAY}");
        let ready = format!("grep -q {other} /data/{other}");
        scene.apply(&at(&pod(name, "data", &script, &ready), node)).await?;
    }
    scene.ready(&["one", "two"]).await?;
    let traces = Traces::of(scene, "data").await?;
    for node in &scene.cluster.nodes {
        let mounts = traces.mounts(node)?;
        let wanted = usize::from(node.name != "n3");
        ensure!(mounts.len() == wanted, "at {}: {mounts:?}", node.name);
        ensure!(mounts.iter().all(|mount| mount.contains("fuse.sshfs")), "no server: {mounts:?}");
    }
    scene.apply(&sized(&many("data"), "32Mi")).await?;
    reads(scene, look::claim("data"), SIZE, "32Mi").await?;
    let taken = snapshot("today", "data").replace(": snapshots", ": shared-snapshots");
    scene.apply(&taken).await?;
    scene.becomes(SNAPSHOT, "VolumeSnapshot", "today", "/status/readyToUse", &json!(true)).await?;
    scene.apply(&sized(&restore("again", "shared", "today"), "32Mi")).await?;
    scene.apply(&at(&pod("three", "again", STAY, "grep -q two /data/two"), "n3")).await?;
    scene.ready(&["one", "two", "three"]).await?;
    forget(scene, SNAPSHOT, "VolumeSnapshot", "today").await?;
    for name in ["one", "two"] {
        scene.delete::<Pod>(name).await?;
    }
    scene.delete::<PersistentVolumeClaim>("data").await?;
    traces.gone(scene.cluster).await?;
    scene.ready(&["three"]).await.map(drop)
}

/// The elected node's link is cut while its driver has creates, which it carries out unheard.
/// Another node is elected, and each claim has one volume.
pub(super) async fn link_lost(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    scene.apply(&many("before")).await?;
    scene.bound("before").await?;
    let node = cluster.node(&elected(cluster).await?)?;
    let driver = &shared_driver(node)?.program;
    driver.signal(Signal::STOP).await?;
    let names = apply_many(scene, "during").await?;
    arrived(cluster, node).await?;
    node.relay.cut();
    driver.signal(Signal::CONT).await?;
    for name in &names {
        scene.bound(name).await?;
    }
    left(cluster, node).await?;
    once(cluster, 1 + names.len())?;
    node.relay.mend();
    linked(cluster).await?;
    let claims: Vec<_> = [&["before".to_owned()], names.as_slice()].concat();
    for name in &claims {
        scene.delete::<PersistentVolumeClaim>(name).await?;
    }
    within("end of all volumes", SOON, || async { once(cluster, 0) }).await
}

/// The elected node's driver dies while its link lives. A pod there keeps its volume. Another node
/// is elected after the grace, and the claims are made there; when the driver is back, it stays.
pub(super) async fn driver_dead(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    scene.apply(&many("data")).await?;
    scene.bound("data").await?;
    let node = cluster.node(&elected(cluster).await?)?;
    let driver = &shared_driver(node)?.program;
    let script = "while echo $(date +%s) > /data/now; do sleep 1; done";
    scene.apply(&at(&pod("user", "data", script, "test -s /data/now"), node.name)).await?;
    scene.ready(&["user"]).await?;
    driver.signal(Signal::STOP).await?;
    let names = apply_many(scene, "during").await?;
    arrived(cluster, node).await?;
    driver.kill().await?;
    for name in &names {
        scene.bound(name).await?;
    }
    let next = left(cluster, node).await?;
    linked(cluster).await?;
    once(cluster, 1 + names.len())?;
    scene.ready(&["user"]).await?;
    ensure!(scene.restarts("user").await? == 0, "the pod lost its volume with the driver");
    driver.run().await?;
    is_up(cluster, node).await?;
    ensure!(elected(cluster).await? == next, "the election went back without need");
    scene.delete::<Pod>("user").await?;
    scene.apply(&at(&pod("again", "data", STAY, "test -s /data/now"), node.name)).await?;
    scene.ready(&["again"]).await.map(drop)
}

/// A claim that pods of several nodes may use at once.
pub(super) fn many(name: &str) -> String {
    claim(name, "shared").replace("ReadWriteOnce", "ReadWriteMany")
}

/// Makes claims, and says their names.
async fn apply_many(scene: &Scene<'_>, prefix: &str) -> anyhow::Result<Vec<String>> {
    let names: Vec<_> = (0..CLAIMS).map(|number| format!("{prefix}-{number}")).collect();
    scene.apply(&names.iter().map(|name| many(name)).collect::<String>()).await?;
    Ok(names)
}

fn shared_driver(node: &Node) -> anyhow::Result<&Driver> {
    let driver = node.drivers.iter().find(|driver| driver.name == SHARED);
    driver.with_context(|| format!("{} has no {SHARED}", node.name))
}

/// The node that carries out the driver's calls.
async fn elected(cluster: &Cluster) -> anyhow::Result<String> {
    let drivers = cluster.cloud.shows(&cluster.ground, &["drivers"]).await?;
    let driver = drivers.iter().find(|driver| driver["name"] == SHARED);
    let elected = driver.and_then(|driver| driver["elected"].as_str());
    elected.map(str::to_owned).with_context(|| format!("nobody is elected: {driver:?}"))
}

/// Waits until another node is elected, and says which.
async fn left(cluster: &Cluster, node: &Node) -> anyhow::Result<String> {
    within(&format!("the election to leave {}", node.name), SOON, || async {
        let elected = elected(cluster).await?;
        ensure!(elected != node.name, "it is elected");
        Ok(elected)
    })
    .await
}

/// Waits until creates have been sent to the node, whose driver is stopped.
async fn arrived(cluster: &Cluster, node: &Node) -> anyhow::Result<()> {
    let is_there = |call: &&Value| {
        let rpc = call["rpc"].as_str().unwrap_or_default();
        rpc.ends_with("CreateVolume") && call["node"] == node.name && call["stage"] == "sent"
    };
    within("creates at the elected node", SOON, || async {
        let calls = cluster.cloud.shows(&cluster.ground, &["calls"]).await?;
        let sent = calls.iter().filter(is_there).count();
        ensure!(sent == CLAIMS, "{sent} of {CLAIMS} are there");
        Ok(())
    })
    .await
}

/// Waits until all nodes are linked.
async fn linked(cluster: &Cluster) -> anyhow::Result<()> {
    within("all links", SOON, || async {
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let linked = nodes.iter().filter(|node| node["state"] == "linked").count();
        ensure!(linked == cluster.nodes.len(), "the nodes are {nodes:?}");
        Ok(())
    })
    .await
}

/// Waits until csi-cloud shows the node's driver as up.
async fn is_up(cluster: &Cluster, node: &Node) -> anyhow::Result<()> {
    within(&format!("{SHARED} up at {}", node.name), SOON, || async {
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let shown = nodes.iter().find(|shown| shown["name"] == node.name);
        let health = &shown.context("the node is not known")?["health"][SHARED];
        ensure!(health["state"] == "up", "it is {health}");
        Ok(())
    })
    .await
}

/// The server has so many volumes, each under a name of its own, and nothing half-made.
fn once(cluster: &Cluster, wanted: usize) -> anyhow::Result<()> {
    let files = cluster.files.as_ref().context("there is no file server")?;
    let mut names = BTreeSet::new();
    let mut count = 0;
    for entry in std::fs::read_dir(files.dir.join("volumes"))? {
        let path = entry?.path();
        let record = std::fs::read(path.join("record.json"));
        let record = record.with_context(|| format!("half-made: {}", path.display()))?;
        let record: Value = serde_json::from_slice(&record)?;
        names.insert(record["name"].as_str().unwrap_or_default().to_owned());
        count += 1;
    }
    ensure!(names.len() == count, "of {count} volumes some have one name: {names:?}");
    ensure!(count == wanted, "there are {count} volumes, not {wanted}: {names:?}");
    Ok(())
}
