//! Nodes where a pod does not get its volume. Another node has the direct volume, or csi-edge never
//! ran there. The kubelet does not have the driver, the volume cannot be attached or mounted, or
//! the operator has left the node out.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::DeleteParams;

use super::check::{explains, shows};
use super::volumes::{configured, volume};
use crate::e2e::direct::{FILL, FILLED, guest};
use crate::e2e::faults::at_node;
use crate::e2e::pods::{READ, WRITE};
use crate::e2e::scene::{Scene, claim, claim_of, pod};
use crate::e2e::texts::{at, with};
use crate::e2e::traces::Traces;
use crate::stand::objects::within;
use crate::stand::{DRIVER, objects};

/// How long a kubelet may take to forget a driver.
const SOON: Duration = Duration::from_secs(60);
/// A node of the cluster that never had csi-edge.
const WITHOUT_EDGE: &str = "n9";

/// Its volumes are attached with a Secret that is nowhere.
const WITHOUT_SECRET: &str = "---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: without-secret
provisioner: hostdir.edge-csi.io
volumeBindingMode: WaitForFirstConsumer
parameters:
  csi.storage.k8s.io/controller-publish-secret-name: nowhere
  csi.storage.k8s.io/controller-publish-secret-namespace: default
";

/// Six states, one after another.
pub(in crate::e2e) async fn broken(scene: &Scene<'_>) -> anyhow::Result<()> {
    owned(scene).await?;
    unknown(scene).await?;
    unregistered(scene).await?;
    unattached(scene).await?;
    unmounted(scene).await?;
    apart(scene).await
}

/// A pod asks for a direct volume at another node than the one that has it. The scheduler would
/// not put it there, but a `nodeName` passes it by.
async fn owned(scene: &Scene<'_>) -> anyhow::Result<()> {
    let disk = claim_of("disk", "direct-once", "64Mi", "");
    scene.apply(&(disk + &guest("owner", "n1", FILL, FILLED))).await?;
    scene.ready(&["owner"]).await?;
    let other = with(&pod("other", "disk", WRITE, READ), &["nodeName: n3"]);
    scene.apply(&other).await?;
    let subject = format!("{}/other", scene.namespace());
    shows(scene, "owned-elsewhere", &["pod", &subject], Some("n1")).await?;
    scene.delete::<Pod>("other").await?;
    scene.delete::<Pod>("owner").await
}

/// A pod is at a node without csi-edge, where no scheduler would put it.
async fn unknown(scene: &Scene<'_>) -> anyhow::Result<()> {
    let client = &scene.cluster.client;
    // As a kubelet marks its node, so that Kubernetes attaches volumes there.
    let managed = "volumes.kubernetes.io/controller-managed-attach-detach: \"true\"";
    let metadata = format!("{{name: {WITHOUT_EDGE}, annotations: {{{managed}}}}}");
    let node = format!("{{apiVersion: v1, kind: Node, metadata: {metadata}}}");
    objects::apply(client, "default", &node).await?;
    let there = format!("nodeName: {WITHOUT_EDGE}");
    let examined = async {
        scene.apply(&at_node("home", scene.cluster.node("n1")?)).await?;
        scene.ready(&["home"]).await?;
        scene.apply(&with(&pod("stray", "home", WRITE, READ), &[&there])).await?;
        let subject = format!("{}/stray", scene.namespace());
        shows(scene, "edge-missing", &["pod", &subject], Some(WITHOUT_EDGE)).await?;
        // No kubelet ends it.
        let at_once = DeleteParams::default().grace_period(0);
        scene.api::<Pod>().delete("stray", &at_once).await?;
        Ok(())
    };
    let examined = examined.await;
    objects::delete(client, "default", &node).await?;
    examined
}

/// The registrar of a node has ended, so its kubelet does not know the driver.
async fn unregistered(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n2")?;
    let driver = node.drivers.iter().find(|driver| driver.name == DRIVER);
    let driver = driver.context("the node has no such driver")?;
    scene.apply(&at_node("data", node)).await?;
    scene.ready(&["data"]).await?;
    scene.delete::<Pod>("data").await?;
    driver.registrar.stop().await?;
    let examined = async {
        registered(scene, node.name, false).await?;
        scene.apply(&at(&pod("again", "data", WRITE, READ), node.name)).await?;
        let subject = format!("{}/again", scene.namespace());
        shows(scene, "not-registered", &["pod", &subject], Some(node.name)).await
    };
    let examined = examined.await;
    // Later rows need it, whatever was found.
    driver.registrar.run().await?;
    registered(scene, node.name, true).await?;
    examined?;
    scene.ready(&["again"]).await?;
    let subject = format!("{}/again", scene.namespace());
    explains(scene, &["pod", &subject], "fine", None).await
}

/// Waits until a node's CSINode has the driver, or has it no more.
async fn registered(scene: &Scene<'_>, node: &str, expected: bool) -> anyhow::Result<()> {
    let nodes = Api::<CSINode>::all(scene.cluster.client.clone());
    within(&format!("CSINode {node} has the driver: {expected}"), SOON, || async {
        let drivers = nodes.get(node).await?.spec.drivers;
        let has = drivers.iter().any(|driver| driver.name == DRIVER);
        ensure!(has == expected, "it has {drivers:?}");
        Ok(())
    })
    .await
}

/// external-attacher cannot read the Secret that the class names, so csi-cloud gets no call.
async fn unattached(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n2")?;
    scene.apply(WITHOUT_SECRET).await?;
    let examined = async {
        scene.apply(&claim("locked", "without-secret")).await?;
        scene.apply(&at(&pod("locked", "locked", WRITE, READ), node.name)).await?;
        let subject = format!("{}/locked", scene.namespace());
        shows(scene, "not-attached", &["pod", &subject], Some(node.name)).await?;
        scene.delete::<Pod>("locked").await
    };
    let examined = examined.await;
    objects::delete(&scene.cluster.client, "default", WITHOUT_SECRET).await?;
    examined
}

/// A file stands where the driver has the directory of a volume.
async fn unmounted(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n2")?;
    scene.apply(&at_node("spoilt", node)).await?;
    scene.ready(&["spoilt"]).await?;
    let data = volume(node, &Traces::of(scene, "spoilt").await?)?.join("data");
    let kept = data.with_extension("kept");
    scene.delete::<Pod>("spoilt").await?;
    std::fs::rename(&data, &kept)?;
    std::fs::File::create(&data)?;
    let examined = async {
        scene.apply(&at(&pod("mounts", "spoilt", WRITE, READ), node.name)).await?;
        let subject = format!("{}/mounts", scene.namespace());
        shows(scene, "not-mounted", &["pod", &subject], Some(node.name)).await
    };
    let examined = examined.await;
    std::fs::remove_file(&data)?;
    std::fs::rename(&kept, &data)?;
    examined?;
    scene.ready(&["mounts"]).await.map(drop)
}

/// The operator's list of a driver's nodes lacks one.
async fn apart(scene: &Scene<'_>) -> anyhow::Result<()> {
    let section = format!("[driver.\"{DRIVER}\"]\n");
    let listed = format!("{section}nodes = [\"n1\", \"n2\"]\n");
    let change = |before: &str| before.replace(&section, &listed);
    let examined = shows(scene, "set-apart", &["node", "n3"], Some("n3"));
    configured(scene.cluster, change, examined).await?;
    explains(scene, &["node", "n3"], "fine", None).await
}
