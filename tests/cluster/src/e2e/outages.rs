//! Outages, temporary or final: repeated restarts of csi-cloud, a node, the API server.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Event, Node as KubeNode, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use rustix::process::Pid;
use serde_json::json;
use tokio::time::Instant;

use super::exam::{explains, shows};
use super::faults::{at_node, told_of};
use super::pods::{READ, STAY};
use super::scene::{Scene, claim, pod};
use crate::stand::Cluster;
use crate::stand::objects::{list, within};
use crate::stand::program::Program;

/// How long a condition may take.
const SOON: Duration = Duration::from_secs(60);
/// How long external-provisioner may wait until it asks again (`--retry-interval-max`).
const RETRY: Duration = Duration::from_secs(30);
/// How often csi-cloud is restarted, and how many claims are made each time.
const RESTARTS: usize = 10;
const CLAIMS: usize = 4;
/// The log line of a sidecar for a lost call: the sidecar's connection ended, or the link did.
const LOST: [&str; 4] =
    ["code = Unavailable", "code = DeadlineExceeded", "code = Unknown", "Lost connection"];
/// The node's power is off: Kubernetes may take its volumes away without asking its kubelet.
const FENCED: &str = "node.kubernetes.io/out-of-service";

/// Whether outages have a realistic length: with `LONG=1` in the environment.
pub(super) fn is_long() -> bool {
    std::env::var_os("LONG").is_some_and(|value| value == "1")
}

/// csi-cloud is restarted ten times while claims are made and deleted, every other time killed. No
/// sidecar ends, and none sees a call that failed.
pub(super) async fn ten_restarts(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let before = sidecars(cluster).await?;
    let logged: Vec<_> = cluster.cloud.sidecars.iter().map(|one| one.log().len()).collect();
    let cloud = &cluster.cloud.program;
    for turn in 0..RESTARTS {
        let claims: String =
            (0..CLAIMS).map(|number| claim(&format!("c{turn}-{number}"), "now")).collect();
        scene.apply(&claims).await?;
        if turn.is_multiple_of(2) {
            cloud.stop().await?
        } else {
            cloud.kill().await?
        }
        cloud.run().await?;
        let ready = || async { cluster.cloud.shows(&cluster.ground, &["calls"]).await.map(drop) };
        within("csi-cloud", SOON, ready).await?;
    }
    for turn in 0..RESTARTS {
        for number in 0..CLAIMS {
            scene.bound(&format!("c{turn}-{number}")).await?;
        }
    }
    ensure!(sidecars(cluster).await? == before, "a sidecar has ended meanwhile");
    lost_calls(cluster, &logged)
}

/// Fails if a sidecar logged a lost call since its log had this length.
pub(super) fn lost_calls(cluster: &Cluster, logged: &[usize]) -> anyhow::Result<()> {
    let sidecars = &cluster.cloud.sidecars;
    ensure!(!logged.is_empty() && sidecars.len() == logged.len(), "{} sidecars", sidecars.len());
    for (sidecar, from) in sidecars.iter().zip(logged) {
        let log = sidecar.log();
        let new = log.get(*from..).context("a log is shorter than it was")?;
        let lost = new.lines().find(|line| LOST.iter().any(|word| line.contains(word)));
        ensure!(lost.is_none(), "{} has lost a call: {lost:?}", sidecar.name());
    }
    Ok(())
}

/// The processes that have connections to the front's sockets, and the front itself.
pub(super) async fn sidecars(cluster: &Cluster) -> anyhow::Result<Vec<(Pid, u32)>> {
    let mut found = Vec::new();
    for program in cluster.cloud.sidecars.iter().chain([&cluster.cloud.front]) {
        found.push((program.pid().await?, program.restarts().await?));
    }
    Ok(found)
}

/// A node is away while pods with claims wait for it, and Events on the claims say so. When it is
/// back, all are bound within a minute of external-provisioner's next try.
pub(super) async fn edge_away(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n3")?;
    let away = Duration::from_secs(if is_long() { 600 } else { 20 });
    let names = ["a", "b", "c"];
    node.relay.cut();
    let cut = Instant::now();
    let texts: String = names.iter().map(|name| at_node(name, node)).collect();
    scene.apply(&texts).await?;
    told_of(scene, "a", "EdgeAway").await?;
    tokio::time::sleep_until(cut + away).await;
    for name in names {
        let found =
            scene.api::<k8s_openapi::api::core::v1::PersistentVolumeClaim>().get(name).await?;
        let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
        ensure!(phase == "Pending", "the claim {name} is {phase} while its node is away");
    }
    node.relay.mend();
    let back = Instant::now();
    for name in names {
        scene.bound(name).await?;
    }
    let took = back.elapsed();
    println!(
        "{:24} {:8.1}  s from the node's return to three claims bound",
        "",
        took.as_secs_f64()
    );
    ensure!(took < RETRY + SOON, "it took {took:?} until all claims were bound");
    scene.ready(&names).await.map(drop)
}

/// A node is removed. Its attachments go, so that Kubernetes can go on, and Events on claim and
/// volume say why. If it is admitted again, the data is there.
pub(super) async fn edge_removed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let removed = removed(scene).await;
    // The node is admitted again in any case, so that later rows have it.
    taint(cluster, "n3", &json!(null)).await?;
    let admitted = cluster.cloud.says(&cluster.ground, &["node", "admit", "n3"]).await;
    removed?;
    admitted?;
    let node = cluster.node("n3")?;
    node.worker.kubelet.run().await?;
    node.edge.run().await?;
    cluster.ready().await?;
    let again = pod("again", "c", STAY, READ) + "  nodeSelector: {kubernetes.io/hostname: n3}\n";
    scene.apply(&again).await?;
    scene.ready(&["again"]).await.map(drop)
}

async fn removed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = scene.cluster.node("n3")?;
    scene.apply(&at_node("c", node)).await?;
    scene.ready(&["c"]).await?;
    let volume = scene.bound("c").await?;
    ensure!(attachments(cluster, "n3").await?.contains(&volume), "{volume} is not attached");
    node.worker.kubelet.kill().await?;
    node.edge.kill().await?;
    taint(cluster, "n3", &json!([{"key": FENCED, "value": "nodeshutdown", "effect": "NoExecute"}]))
        .await?;
    let said = cluster.cloud.says(&cluster.ground, &["node", "remove", "n3", "--yes"]).await?;
    ensure!(said.contains("n3 is removed"), "csi-cloud says {said}");
    scene.api::<Pod>().delete("c", &DeleteParams::default().grace_period(0)).await?;
    within("end of the node's attachments", SOON, || async {
        let left = attachments(cluster, "n3").await?;
        ensure!(left.is_empty(), "there are those of {left:?}");
        Ok(())
    })
    .await?;
    let lost = format!("{}/c", scene.namespace());
    shows(scene, "node-removed", &["pvc", &lost], Some("n3")).await?;
    explains(scene, &["node", "n3"], "node-removed", Some("n3")).await?;
    within("an event at the persistent volume", SOON, || async {
        let events = list(&Api::<Event>::all(cluster.client.clone())).await?;
        let told = events.iter().any(|event| {
            let about = event.involved_object.name.as_deref();
            about == Some(&volume) && event.reason.as_deref() == Some("VolumeLost")
        });
        ensure!(told, "nothing is told of {volume}");
        Ok(())
    })
    .await
}

/// The persistent volumes that are attached to a node.
async fn attachments(cluster: &Cluster, node: &str) -> anyhow::Result<BTreeSet<String>> {
    let all = list(&Api::<VolumeAttachment>::all(cluster.client.clone())).await?;
    let of_node = all.into_iter().filter(|one| one.spec.node_name == node);
    Ok(of_node.filter_map(|one| one.spec.source.persistent_volume_name).collect())
}

async fn taint(cluster: &Cluster, node: &str, taints: &serde_json::Value) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    let nodes = Api::<KubeNode>::all(cluster.client.clone());
    nodes.patch(node, &PatchParams::default(), &patch).await.context("cannot taint the node")?;
    Ok(())
}

/// The API server is away. csi-cloud, the links and the sidecars stay, and work goes on when it is
/// back.
pub(super) async fn api_away(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    scene.apply(&at_node("first", cluster.node("n1")?)).await?;
    scene.ready(&["first"]).await?;
    let kept = || async {
        let mut pids = sidecars(cluster).await?;
        let ours: Vec<&Program> = cluster.nodes.iter().map(|node| &node.edge).collect();
        for program in ours.into_iter().chain([&cluster.cloud.program]) {
            pids.push((program.pid().await?, program.restarts().await?));
        }
        anyhow::Ok(pids)
    };
    let before = kept().await?;
    cluster.control.apiserver.kill().await?;
    let away = Duration::from_secs(if is_long() { 60 } else { 20 });
    let until = Instant::now() + away;
    while Instant::now() < until {
        let asked = Instant::now();
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        let linked = nodes.iter().filter(|node| node["state"] == "linked").count();
        ensure!(linked == cluster.nodes.len(), "without the API server the nodes are {nodes:?}");
        tokio::time::sleep_until(asked + Duration::from_secs(1)).await;
    }
    cluster.control.apiserver.run().await?;
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    within("the API server", SOON, || async { list(&volumes).await.map(drop) }).await?;
    scene.apply(&at_node("second", cluster.node("n2")?)).await?;
    scene.ready(&["first", "second"]).await?;
    ensure!(scene.restarts("first").await? == 0, "the container was started again");
    ensure!(kept().await? == before, "something ended while the API server was away");
    Ok(())
}
