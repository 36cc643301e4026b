//! A driver dies at a node whose link lives, is started anew, or hangs with one mount.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::hostdir::PUBLISH_WAITS;
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::faults::{at_node, hostdir, told_of};
use super::pods::{READ, STAY};
use super::scene::{Scene, claim, pod};
use super::traces::Traces;
use crate::stand::DRIVER;
use crate::stand::objects::within;

/// How long csi-edge may take to notice it: three attempts, and 30 s without a failure to be up.
const SOON: Duration = Duration::from_secs(90);
const NODE: &str = "n2";
/// The time in which the pods beside a hung mount end. That mount ends only after it, so this may
/// be long: a kubelet tries again after up to 16 s, and other stands use the machine.
const BESIDE: Duration = Duration::from_secs(60);
/// The time in which a mount is begun.
const HANGS: Duration = Duration::from_secs(2);
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

/// A node is drained while one of its mounts hangs. All other pods end at once, also one that has
/// the same driver's volume; the pod whose mount hangs ends with it. Nothing is left.
pub(super) async fn drained(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node(NODE)?;
    let others = ["a", "b", "c"];
    for name in others.into_iter().chain(["hangs"]) {
        scene.apply(&at_node(name, node)).await?;
    }
    scene.ready(&["a", "b", "c", "hangs"]).await?;
    let traces = Traces::of(scene, "hangs").await?;
    scene.delete::<Pod>("hangs").await?;
    let driver = node.drivers.iter().find(|driver| driver.name == DRIVER).context("no driver")?;
    let pipe = driver.state.join(format!("{PUBLISH_WAITS}{}", traces.handle));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let drained = drain(scene, &others, &traces).await;
    cordon(scene, false).await?;
    // Whoever waits for a writer goes on, and nobody waits any more.
    let writer = File::options().read(true).write(true).open(&pipe)?;
    std::fs::remove_file(&pipe)?;
    drained?;
    scene.gone::<Pod>("hangs").await?;
    drop(writer);
    for name in others.into_iter().chain(["hangs"]) {
        let traces = Traces::of(scene, name).await?;
        scene.delete::<PersistentVolumeClaim>(name).await?;
        traces.gone(scene.cluster).await?;
    }
    Ok(())
}

/// Deletes all pods of the node, of which one is being started with a mount that hangs.
async fn drain(scene: &Scene<'_>, others: &[&str], traces: &Traces) -> anyhow::Result<()> {
    let node = scene.cluster.node(NODE)?;
    let pod = pod("hangs", "hangs", STAY, READ);
    scene.apply(&(pod + &format!("  nodeName: {NODE}\n"))).await?;
    within("a mount that hangs", SOON, || async {
        let mounts = traces.mounts(node)?;
        ensure!(mounts.len() == 1, "it is to be staged, and not published: {mounts:?}");
        Ok(())
    })
    .await?;
    // Its publish follows at once.
    sleep(HANGS).await;
    cordon(scene, true).await?;
    let begun = Instant::now();
    for name in others.iter().chain(&["hangs"]) {
        scene.api::<Pod>().delete(name, &DeleteParams::default()).await?;
    }
    let gone_after = async |name: &&str| {
        scene.gone::<Pod>(name).await?;
        anyhow::Ok(begun.elapsed())
    };
    let times = try_join_all(others.iter().map(gone_after)).await?;
    tracing::info!(?times, "the other pods were gone");
    let kubelet = node.worker.kubelet.log_tail();
    ensure!(
        times.iter().all(|time| *time < BESIDE),
        "the other pods were gone after {times:?}; the kubelet's log ends:\n{kubelet}"
    );
    Ok(())
}

/// Lets the scheduler choose the node no more, or again.
async fn cordon(scene: &Scene<'_>, is_cordoned: bool) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(scene.cluster.client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": is_cordoned}}));
    nodes.patch(NODE, &PatchParams::default(), &patch).await?;
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
