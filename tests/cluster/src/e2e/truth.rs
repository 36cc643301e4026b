//! Drivers, persistent volumes and our store must have the same volumes. The checks wait, because
//! Kubernetes cleans up asynchronously.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use proto::csi::ListVolumesRequest;
use serde_json::Value;

use crate::stand::node::{Driver, Node};
use crate::stand::objects::{list, within};
use crate::stand::{Cluster, SHARES};
use harness::stand::channel;

/// How long it may take until all agree.
const SOON: Duration = Duration::from_secs(90);

/// A volume: its driver and its id.
type VolumeKey = (String, String);

/// Waits until all agree on all volumes, and no create's outcome is open.
///
/// # Errors
/// They do not in time; the error says who has what.
pub async fn agreed(cluster: &Cluster) -> anyhow::Result<()> {
    within("agreement of drivers, persistent volumes and our store", SOON, || agree(cluster)).await
}

async fn agree(cluster: &Cluster) -> anyhow::Result<()> {
    let held = held(cluster).await?;
    let claimed = claimed(cluster).await?;
    let stored = stored(cluster).await?;
    ensure!(held == stored, "the drivers hold {held:?}, our store says {stored:?}");
    ensure!(held == claimed, "the drivers hold {held:?}, persistent volumes say {claimed:?}");
    let open = cluster.cloud.shows(&cluster.ground, &["intents"]).await?;
    ensure!(open.is_empty(), "creates of unknown outcome: {open:?}");
    Ok(())
}

/// Waits until nothing of a namespace is left: no persistent volume, and no volume in our store.
///
/// # Errors
/// Something is left; the error says what.
pub async fn gone(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    let gone = || async {
        for volume in list(&Api::<PersistentVolume>::all(cluster.client.clone())).await? {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            let ours = claim.is_some_and(|claim| claim.namespace.as_deref() == Some(namespace));
            ensure!(!ours, "{:?} is {:?}", volume.metadata.name, volume.status);
        }
        for volume in cluster.cloud.shows(&cluster.ground, &["volumes"]).await? {
            ensure!(text(&volume, "claim_namespace") != namespace, "our store has {volume}");
        }
        Ok(())
    };
    within(&format!("end of all of {namespace}"), SOON, gone).await
}

async fn held(cluster: &Cluster) -> anyhow::Result<BTreeSet<VolumeKey>> {
    let mut held = BTreeSet::new();
    for node in &cluster.nodes {
        // One without a controller has no list, and its volumes are not ours.
        for driver in node.drivers.iter().filter(|driver| driver.name != SHARES) {
            let ids = held_at(node, driver.name).await?;
            held.extend(ids.into_iter().map(|id| (driver.name.to_owned(), id)));
        }
    }
    Ok(held)
}

/// The ids of a driver's volumes at a node, from the driver itself.
///
/// # Errors
/// The node has no such driver, or it does not answer.
pub async fn held_at(node: &Node, driver: &str) -> anyhow::Result<BTreeSet<String>> {
    let driver =
        node.drivers.iter().find(|one| one.name == driver).context("a node without the driver")?;
    listed(driver).await
}

/// The ids of the volumes that a driver lists itself.
///
/// # Errors
/// It does not answer.
pub async fn listed(driver: &Driver) -> anyhow::Result<BTreeSet<String>> {
    let socket = driver.socket()?;
    let socket = socket.to_str().context("a socket's path is no text")?;
    let mut client = ControllerClient::new(channel(socket).await?);
    let answer = client.list_volumes(ListVolumesRequest::default()).await?.into_inner();
    ensure!(answer.next_token.is_empty(), "{} lists in pages", driver.name);
    Ok(answer.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect())
}

async fn claimed(cluster: &Cluster) -> anyhow::Result<BTreeSet<VolumeKey>> {
    let volumes = list(&Api::<PersistentVolume>::all(cluster.client.clone())).await?;
    let csi = volumes.into_iter().filter_map(|volume| volume.spec?.csi);
    let csi = csi.filter(|csi| csi.driver != SHARES);
    Ok(csi.map(|csi| (csi.driver, csi.volume_handle)).collect())
}

async fn stored(cluster: &Cluster) -> anyhow::Result<BTreeSet<VolumeKey>> {
    let volumes = cluster.cloud.shows(&cluster.ground, &["volumes"]).await?;
    let odd = volumes.iter().find(|volume| text(volume, "state") != "ok");
    ensure!(odd.is_none(), "our store has {odd:?}");
    Ok(volumes
        .iter()
        .map(|volume| (text(volume, "driver").to_owned(), text(volume, "id").to_owned()))
        .collect())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}
