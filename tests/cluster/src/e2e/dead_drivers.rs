//! A driver dies at a node whose link lives, or is started anew.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::Value;
use tokio::time::sleep;

use super::faults::{at_node, hostdir, told_of};
use super::scene::{Scene, claim};
use super::traces::Traces;
use crate::stand::DRIVER;
use crate::stand::objects::within;

/// How long csi-edge may take to notice it: three attempts, and 30 s without a failure to be up.
const SOON: Duration = Duration::from_secs(90);
const NODE: &str = "n2";
/// From one start of a driver to the next.
const BETWEEN: Duration = Duration::from_secs(10);

/// The driver of one node is dead. Claims that any node may have are made elsewhere, and no name
/// stays at that node. The claim that only this node may have is told why it waits, and is bound
/// when the driver is back.
pub(super) async fn creates_go_elsewhere(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = cluster.node(NODE)?;
    let driver = hostdir(node)?;
    driver.kill().await?;
    scene.apply(&at_node("waits", node)).await?;
    health(scene, "gone").await?;
    told_of(scene, "waits", "DriverDown").await?;
    let names = ["a", "b", "c", "d", "e", "f"];
    let claims: String = names.iter().map(|name| claim(name, "now")).collect();
    scene.apply(&claims).await?;
    for name in names {
        scene.bound(name).await?;
        let home = Traces::of(scene, name).await?.home(cluster)?.name;
        ensure!(home != NODE, "{name} is at {NODE}, whose driver is dead");
    }
    let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
    let linked = nodes.iter().filter(|node| node["state"] == "linked").count();
    ensure!(linked == cluster.nodes.len(), "a link was lost too: {nodes:?}");
    driver.run().await?;
    health(scene, "up").await?;
    scene.bound("waits").await?;
    scene.ready(&["waits"]).await?;
    let open = cluster.cloud.shows(&cluster.ground, &["intents"]).await?;
    ensure!(open.is_empty(), "creates of unknown outcome: {open:?}");
    Ok(())
}

/// A driver is started anew again and again while pods with claims start and end at its node, as in
/// a rolling update. All of them start and end, none is started twice, and no volume is left.
pub(super) async fn updated(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = cluster.node(NODE)?;
    let driver = hostdir(node)?;
    let load = async {
        for name in ["a", "b", "c", "d"] {
            scene.apply(&at_node(name, node)).await?;
            scene.ready(&[name]).await?;
            let traces = Traces::of(scene, name).await?;
            ensure!(scene.restarts(name).await? == 0, "{name} was started again");
            scene.delete::<Pod>(name).await?;
            scene.delete::<PersistentVolumeClaim>(name).await?;
            traces.gone(cluster).await?;
        }
        anyhow::Ok(())
    };
    let updates = async {
        loop {
            sleep(BETWEEN).await;
            if let Err(error) = driver.restart().await {
                return error;
            }
        }
    };
    tokio::select! {
        biased;
        loaded = load => loaded?,
        error = updates => return Err(error),
    }
    health(scene, "up").await?;
    let open = cluster.cloud.shows(&cluster.ground, &["intents"]).await?;
    ensure!(open.is_empty(), "creates of unknown outcome: {open:?}");
    Ok(())
}

/// Waits until csi-cloud shows the node's driver so.
async fn health(scene: &Scene<'_>, state: &str) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    within(&format!("{DRIVER} {state} at {NODE}"), SOON, || async {
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let node = nodes.iter().find(|node| node["name"] == NODE);
        let health: &Value = &node.context("the node is not known")?["health"][DRIVER];
        ensure!(health["state"] == state, "it is {health}");
        Ok(())
    })
    .await
}
