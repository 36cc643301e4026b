//! Two PersistentVolumes that users wrote with one handle, for volumes of two nodes. Kubernetes
//! deletes one of them, and the other one's data stays.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use harness::stand::channel;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::DeleteParams;
use proto::csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use proto::csi::{CreateVolumeRequest, VolumeCapability};

use super::exam::told;
use super::exam::volumes::copied;
use super::faults::hostdir;
use super::look::SOON;
use super::scene::Scene;
use super::truth::held_at;
use crate::stand::node::Node;
use crate::stand::objects::within;
use crate::stand::{Cluster, DRIVER};

/// A delete goes nowhere until an operator says which node has the volume.
pub(super) async fn deleted_in_turn(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let [first, second] = [cluster.node("n1")?, cluster.node("n2")?];
    let handle = made_by_hand(first).await?;
    hostdir(second)?.ended().await?;
    copied(&volume(first, &handle)?, &volume(second, &handle)?)?;
    hostdir(second)?.run().await?;
    let [of_first, of_second] = [named(first), named(second)];
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    scene.apply(&used(second, &handle)).await?;
    scene.apply(&unclaimed(first, &handle)).await?;
    told(scene, "PersistentVolume", &of_first, "VolumeFailedDelete").await?;
    for node in [first, second] {
        ensure!(has(node, &handle).await?, "{} has lost its volume", node.name);
    }
    adopt(cluster, &handle, first).await?;
    gone(&volumes, &of_first).await?;
    ensure!(!has(first, &handle).await?, "the deleted volume is still there");
    ensure!(has(second, &handle).await?, "the volume in use is deleted");
    // It is given up too.
    volumes.delete(&of_second, &DeleteParams::default()).await?;
    gone(&volumes, &of_second).await?;
    scene.apply(&unclaimed(second, &handle)).await?;
    adopt(cluster, &handle, second).await?;
    gone(&volumes, &of_second).await?;
    ensure!(!has(second, &handle).await?, "the deleted volume is still there");
    Ok(())
}

/// Makes a volume at a node's driver of which csi-cloud is not told. Returns its id.
async fn made_by_hand(node: &Node) -> anyhow::Result<String> {
    let driver = node.drivers.iter().find(|driver| driver.name == DRIVER).context("no driver")?;
    let socket = driver.socket()?;
    let mut client = ControllerClient::new(channel(&socket.display().to_string()).await?);
    let mode = access_mode::Mode::SingleNodeWriter.into();
    let capability = VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let request = CreateVolumeRequest {
        name: "by-hand".into(),
        volume_capabilities: vec![capability],
        ..Default::default()
    };
    let made = client.create_volume(request).await?.into_inner().volume;
    Ok(made.context("no volume")?.volume_id)
}

/// Where a node's driver has, or would have, a volume.
fn volume(node: &Node, handle: &str) -> anyhow::Result<PathBuf> {
    let driver = node.drivers.iter().find(|driver| driver.name == DRIVER).context("no driver")?;
    Ok(driver.state.join("volumes").join(handle))
}

async fn has(node: &Node, handle: &str) -> anyhow::Result<bool> {
    Ok(held_at(node, DRIVER).await?.contains(handle))
}

async fn adopt(cluster: &Cluster, handle: &str, node: &Node) -> anyhow::Result<()> {
    let adopt = ["volume", "adopt", DRIVER, handle, "--node", node.name];
    cluster.cloud.says(&cluster.ground, &adopt).await.map(drop)
}

async fn gone(volumes: &Api<PersistentVolume>, name: &str) -> anyhow::Result<()> {
    within(&format!("end of {name}"), SOON, || async {
        let found = volumes.get_opt(name).await?;
        ensure!(found.is_none(), "its status is {:?}", found.and_then(|found| found.status));
        Ok(())
    })
    .await
}

/// The name of a node's PersistentVolume.
fn named(node: &Node) -> String {
    format!("one-handle-{}", node.name)
}

/// A PersistentVolume that no claim has yet.
fn used(node: &Node, handle: &str) -> String {
    persistent_volume(node, handle, "Retain", "")
}

/// A PersistentVolume whose claim is gone, so Kubernetes deletes it.
fn unclaimed(node: &Node, handle: &str) -> String {
    let uid = "00000000-0000-0000-0000-000000000000";
    let claim = format!("  claimRef: {{namespace: default, name: gone, uid: {uid}}}\n");
    persistent_volume(node, handle, "Delete", &claim)
}

fn persistent_volume(node: &Node, handle: &str, policy: &str, claim: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata:
  name: {name}
  annotations: {{pv.kubernetes.io/provisioned-by: {DRIVER}}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 16Mi}}
  persistentVolumeReclaimPolicy: {policy}
  csi: {{driver: {DRIVER}, volumeHandle: {handle}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - {{key: {key}, operator: In, values: [{node}]}}
{claim}",
        name = named(node),
        key = drivers::hostdir::TOPOLOGY_KEY,
        node = node.name,
    )
}
