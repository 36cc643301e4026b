//! What KubeEdge needs, as far as a stand without KubeEdge has it. The stand's kubelet publishes
//! its CSINode once, when drivers are registered. When that is deleted, csi-cloud alone publishes
//! the node, as it does where edged is.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::identity_client::IdentityClient;
use drivers::grpc::node_client::NodeClient;
use harness::stand::channel;
use harness::wait::START;
use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume};
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use proto::csi;
use proto::csi::plugin_capability;
use proto::csi::plugin_capability::service;
use serde_json::{Value, json};
use tokio::process::Command;

use super::faults::{at_node, hostdir};
use super::scene::Scene;
use crate::stand::DRIVER;
use crate::stand::cloud::ADMIN;
use crate::stand::node::Node;
use crate::stand::objects::within;

/// The longest time for an action of our programs.
const SOON: Duration = Duration::from_secs(60);
/// The label of KubeEdge's nodes.
pub(super) const ROLE: &str = "node-role.kubernetes.io/edge";

/// Where csi-cloud alone publishes a node, the node's front shows no topology, also after a restart
/// without cloud and driver. Volumes are made there by strict topology all the same.
pub(super) async fn offline_front(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n2")?;
    shows_topology(scene, node, true).await?;
    label(scene, node, json!("")).await?;
    forget_csinode(scene, node).await?;
    let done = published_by_us(scene, node).await;
    published_by_kubelet(scene, node).await?;
    done
}

/// Lets a node's kubelet publish it again, for the rows that follow.
pub(super) async fn published_by_kubelet(scene: &Scene<'_>, node: &Node) -> anyhow::Result<()> {
    label(scene, node, Value::Null).await?;
    for driver in &node.drivers {
        driver.registrar.stop().await?;
    }
    forget_csinode(scene, node).await?;
    shows_topology(scene, node, true).await?;
    for driver in &node.drivers {
        driver.registrar.run().await?;
    }
    scene.cluster.ready().await
}

async fn published_by_us(scene: &Scene<'_>, node: &Node) -> anyhow::Result<()> {
    shows_topology(scene, node, false).await?;
    scene.apply(&at_node("data", node)).await?;
    scene.ready(&["data"]).await?;
    let volume = scene.bound("data").await?;
    let volume = Api::<PersistentVolume>::all(scene.cluster.client.clone()).get(&volume).await?;
    let affinity = volume.spec.and_then(|spec| spec.node_affinity);
    ensure!(affinity.is_some(), "the volume may be used anywhere");
    // As after a power cut: the node's programs start without the cloud, csi-edge first.
    let driver = hostdir(node)?;
    node.relay.cut();
    node.edge.kill().await?;
    driver.kill().await?;
    node.edge.run().await?;
    shows_topology(scene, node, false).await?;
    driver.run().await?;
    shows_topology(scene, node, false).await?;
    node.relay.mend();
    scene.ready(&["data"]).await.map(drop)
}

pub(super) async fn label(scene: &Scene<'_>, node: &Node, value: Value) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {ROLE: value}}}));
    let nodes = Api::<KubeNode>::all(scene.cluster.client.clone());
    nodes.patch(node.name, &PatchParams::default(), &patch).await?;
    Ok(())
}

pub(super) async fn forget_csinode(scene: &Scene<'_>, node: &Node) -> anyhow::Result<()> {
    let csinodes = Api::<CSINode>::all(scene.cluster.client.clone());
    csinodes.delete(node.name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the node's front shows topology, or none at all.
async fn shows_topology(scene: &Scene<'_>, node: &Node, expected: bool) -> anyhow::Result<()> {
    let socket = format!("{}/fronts/{DRIVER}.sock", scene.cluster.ground.at(node.name));
    within(&format!("topology at the front: {expected}"), SOON, || async {
        let channel = channel(&socket).await?;
        let mut front = NodeClient::new(channel.clone());
        let info = front.node_get_info(csi::NodeGetInfoRequest {}).await?.into_inner();
        let mut identity = IdentityClient::new(channel);
        let said = identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await?;
        let said = said.into_inner().capabilities.iter().any(is_constraints);
        let shown = (info.accessible_topology.is_some(), said);
        ensure!(shown == (expected, expected), "{shown:?}");
        Ok(())
    })
    .await
}

fn is_constraints(capability: &csi::PluginCapability) -> bool {
    let Some(plugin_capability::Type::Service(service)) = &capability.r#type else { return false };
    service.r#type() == service::Type::VolumeAccessibilityConstraints
}

/// Waits until the doctor says this of a check; of several objects the worst counts.
pub(super) async fn says(scene: &Scene<'_>, check: &str, verdict: &str) -> anyhow::Result<()> {
    within(&format!("{check}: {verdict}"), SOON, || async {
        let said = verdicts(scene).await?;
        ensure!(said.get(check).map(String::as_str) == Some(verdict), "{said:?}");
        Ok(())
    })
    .await
}

/// What the doctor says, by check, and by check and object. Its exit code says whether all is well.
async fn verdicts(scene: &Scene<'_>) -> anyhow::Result<BTreeMap<String, String>> {
    let ground = &scene.cluster.ground;
    let mut command = Command::new(ground.program("csi-cloud"));
    command.args(["doctor", "kubeedge", "-o", "json", "--admin", &ground.at(ADMIN)]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(START, output).await.context("it does not end")??;
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    ensure!(!findings.is_empty(), "the doctor finds nothing: {}", output.status);
    let mut worst = BTreeMap::<String, String>::new();
    for finding in &findings {
        let word = |key: &str| finding[key].as_str().context("a finding without a word");
        let verdict = word("verdict")?;
        worst.insert(format!("{} of {}", word("check")?, word("about")?), verdict.to_owned());
        let entry = worst.entry(word("check")?.to_owned()).or_default();
        let rank = |verdict: &str| ["", "ok", "unknown", "fault"].map(|one| one == verdict);
        // Later words are worse.
        if rank(verdict) < rank(entry) {
            verdict.clone_into(entry);
        }
    }
    let is_well = worst.values().all(|verdict| verdict == "ok");
    ensure!(output.status.success() == is_well, "it ends with {}: {worst:?}", output.status);
    Ok(worst)
}
