//! Programs that die at the worst moment: while a create is on its way, at its driver, or answered
//! but not heard. A hostdir that stands still is how a create is kept at its driver for as long as
//! a row wants.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::DeleteParams;
use rustix::process::Signal;
use serde_json::Value;

use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod};
use super::truth;
use crate::stand::DRIVER;
use crate::stand::node::Node;
use crate::stand::objects::within;

/// The longest time for an action of our programs.
const SOON: Duration = Duration::from_secs(60);
/// The age of a call at its node after which the driver certainly has it, in milliseconds.
const ARRIVED: u64 = 1000;

/// A claim is deleted while the outcome of its create is unknown, because its node was cut off
/// during the create. When the node is back, its volume is found and deleted.
pub(super) async fn deleted_while_unknown(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = unknown(scene, "n2").await?;
    gone(scene).await?;
    ensure!(
        !truth::held_at(node, DRIVER).await?.is_empty(),
        "the node has deleted the volume while it was away"
    );
    node.relay.mend();
    settled(node).await
}

/// external-provisioner dies while the outcome of a create is unknown. After its restart it has
/// forgotten the create, but the claim makes it call again under the same name. So there is one
/// volume, and it is the claim's.
pub(super) async fn provisioner_killed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = unknown(scene, "n2").await?;
    let provisioner = scene.cluster.cloud.sidecar("csi-provisioner", DRIVER)?;
    provisioner.kill().await?;
    node.relay.mend();
    provisioner.run().await?;
    scene.ready(&["writer"]).await?;
    let held = truth::held_at(node, DRIVER).await?;
    ensure!(held.len() == 1, "for one claim the node has {held:?}");
    Ok(())
}

/// The same, and the claim is deleted before external-provisioner is back. Now only our store knows
/// of the volume. An operator sees the open create with its deleted claim and resolves it.
/// Kubernetes then gets a persistent volume to delete.
pub(super) async fn forgotten(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = unknown(scene, "n2").await?;
    let provisioner = cluster.cloud.sidecar("csi-provisioner", DRIVER)?;
    provisioner.kill().await?;
    gone(scene).await?;
    provisioner.run().await?;
    node.relay.mend();
    let held = truth::held_at(node, DRIVER).await?;
    let id = held.first().context("the node has no volume")?;
    let open = cluster.cloud.shows(&cluster.ground, &["intents"]).await?;
    let [intent] = open.as_slice() else { bail!("the open creates are {open:?}") };
    ensure!(
        intent["claim_name"] == "data" && intent["node"] == "n2",
        "the open create is {intent}"
    );
    let name = intent["name"].as_str().context("an intent without a name")?;
    cluster.cloud.says(&cluster.ground, &["intent", "resolve", DRIVER, name, "--made", id]).await?;
    scene.apply(&orphan(id)).await?;
    settled(node).await?;
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    within("end of the persistent volume", SOON, || async {
        ensure!(volumes.get_opt("orphan").await?.is_none(), "it is there");
        Ok(())
    })
    .await
}

/// csi-cloud is killed before a create is sent to a node, while the node runs it, and before
/// external-provisioner has its answer. Each claim is bound, to one volume.
pub(super) async fn cloud_killed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = scene.cluster.node("n2")?;
    let cloud = &cluster.cloud.program;
    let driver = hostdir(node)?;
    let provisioner = cluster.cloud.sidecar("csi-provisioner", DRIVER)?;

    node.relay.cut();
    scene.apply(&at_node("before", node)).await?;
    told_of(scene, "before", "Unavailable").await?;
    cloud.kill().await?;
    node.relay.mend();
    cloud.run().await?;
    scene.bound("before").await?;

    driver.signal(Signal::STOP).await?;
    scene.apply(&at_node("during", node)).await?;
    arrived(scene, node).await?;
    cloud.kill().await?;
    cloud.run().await?;
    driver.signal(Signal::CONT).await?;
    scene.bound("during").await?;

    driver.signal(Signal::STOP).await?;
    scene.apply(&at_node("after", node)).await?;
    arrived(scene, node).await?;
    provisioner.signal(Signal::STOP).await?;
    driver.signal(Signal::CONT).await?;
    within("a third volume in our store", SOON, || async {
        let volumes = cluster.cloud.shows(&cluster.ground, &["volumes"]).await?;
        ensure!(volumes.len() == 3, "it has {volumes:?}");
        Ok(())
    })
    .await?;
    cloud.kill().await?;
    cloud.run().await?;
    provisioner.signal(Signal::CONT).await?;
    scene.bound("after").await?;

    let held = truth::held_at(node, DRIVER).await?;
    ensure!(held.len() == 3, "for three claims the node has {held:?}");
    ensure!(provisioner.restarts().await? == 0, "external-provisioner has ended meanwhile");
    scene.ready(&["before", "during", "after"]).await.map(drop)
}

/// A claim and its pod, both of this name, at a node.
pub(super) fn at_node(name: &str, node: &Node) -> String {
    let selector = format!("  nodeSelector: {{kubernetes.io/hostname: {}}}\n", node.name);
    claim(name, "late") + &pod(name, name, WRITE, READ) + &selector
}

/// Makes a create with an unknown outcome: the node was cut off while its driver ran it, and the
/// volume was made.
async fn unknown<'a>(scene: &'a Scene<'_>, name: &str) -> anyhow::Result<&'a Node> {
    let node = scene.cluster.node(name)?;
    let driver = hostdir(node)?;
    driver.signal(Signal::STOP).await?;
    let selector = format!("  nodeSelector: {{kubernetes.io/hostname: {name}}}\n");
    scene.apply(&(claim("data", "late") + &pod("writer", "data", WRITE, READ) + &selector)).await?;
    arrived(scene, node).await?;
    node.relay.cut();
    driver.signal(Signal::CONT).await?;
    let made = || async {
        ensure!(!truth::held_at(node, DRIVER).await?.is_empty(), "the driver has no volume");
        Ok(())
    };
    within("the volume at the node", SOON, made).await?;
    let open = scene.cluster.cloud.shows(&scene.cluster.ground, &["intents"]).await?;
    ensure!(open.len() == 1, "creates of unknown outcome: {open:?}");
    Ok(node)
}

/// Waits until a create has reached the node's driver, which is stopped.
async fn arrived(scene: &Scene<'_>, node: &Node) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let is_there = |call: &Value| {
        let rpc = call["rpc"].as_str().unwrap_or_default();
        let age = call["age_ms"].as_u64().unwrap_or_default();
        rpc.ends_with("CreateVolume")
            && call["node"] == node.name
            && call["stage"] == "sent"
            && age > ARRIVED
    };
    let there = || async {
        let calls = cluster.cloud.shows(&cluster.ground, &["calls"]).await?;
        ensure!(calls.iter().any(is_there), "the calls in flight are {calls:?}");
        Ok(())
    };
    within("a create at the driver", SOON, there).await
}

/// Deletes the pod and the claim, and waits for that.
async fn gone(scene: &Scene<'_>) -> anyhow::Result<()> {
    // It never ran, so there is nothing to wait for.
    let params = DeleteParams::default().grace_period(0);
    scene.api::<Pod>().delete("writer", &params).await?;
    scene.gone::<Pod>("writer").await?;
    scene.delete::<PersistentVolumeClaim>("data").await
}

/// Waits until a node's driver has no volume.
async fn settled(node: &Node) -> anyhow::Result<()> {
    within("end of the volume", SOON * 2, || async {
        let held = truth::held_at(node, DRIVER).await?;
        ensure!(held.is_empty(), "the driver has {held:?}");
        Ok(())
    })
    .await
}

/// Waits until an event about a claim holds a word.
pub(super) async fn told_of(scene: &Scene<'_>, claim: &str, word: &str) -> anyhow::Result<()> {
    let about = format!("PersistentVolumeClaim {claim}: ");
    within(&format!("an event of {claim} with {word}"), SOON, || async {
        let told = scene.told().await?;
        ensure!(
            told.lines().any(|line| line.contains(&about) && line.contains(word)),
            "there is\n{told}"
        );
        Ok(())
    })
    .await
}

pub(super) fn hostdir(node: &Node) -> anyhow::Result<&crate::stand::program::Program> {
    let driver = node.drivers.iter().find(|driver| driver.name == DRIVER);
    Ok(&driver.with_context(|| format!("{} has no {DRIVER}", node.name))?.program)
}

/// The persistent volume that an operator applies for a volume without a claim. Its claim does not
/// exist, so Kubernetes deletes it.
fn orphan(id: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata:
  name: orphan
  annotations: {{pv.kubernetes.io/provisioned-by: {DRIVER}}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 16Mi}}
  claimRef: {{namespace: default, name: gone, uid: 00000000-0000-0000-0000-000000000000}}
  persistentVolumeReclaimPolicy: Delete
  csi: {{driver: {DRIVER}, volumeHandle: {id}}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_applies_is_yaml() {
        let objects = crate::stand::objects::parse(&orphan("some-id")).unwrap();
        assert_eq!(objects[0]["spec"]["csi"]["volumeHandle"], "some-id");
    }
}
