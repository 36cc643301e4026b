//! How nodes get, renew and lose their certificates: tokens of operators and of ServiceAccounts,
//! renewal under load, revocation.
//!
//! These rows come last: a node keeps the identity that it got, of the shortest life.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

use super::accounts::{self, Carrier};
use super::exam::{explains, shows};
use super::faults::at_node;
use super::outages::lost_calls;
use super::pods::{READ, STAY};
use super::scene::{Scene, pod};
use super::texts::at;
use crate::stand::objects::within;
use crate::stand::{Cluster, node::Node};

/// How long a node may take to link with another certificate. csi-edge looks at its files every
/// 10 s.
const LINKED: Duration = Duration::from_secs(60);
/// The life of the certificates that csi-cloud issues here.
const LIFE: Duration = Duration::from_secs(120);
/// How often each node renews while claims are made.
const RENEWALS: usize = 2;
/// How long that may take: a certificate is renewed before two thirds of its life.
const RENEWED: Duration = Duration::from_secs(220);
/// How many claims are made at once during renewals.
const CLAIMS: usize = 6;

/// What `csi-cloud token create` prints.
#[derive(Deserialize)]
struct Created {
    token: String,
    cloud: String,
    ca_hash: String,
    command: String,
}

/// The command that `csi-cloud token create` prints joins a node, whose claims then work.
pub(super) async fn by_token(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n1")?;
    joined(scene, node).await?;
    scene.apply(&at_node("data", node)).await?;
    scene.ready(&["data"]).await.map(drop)
}

/// A node joins with the projected token of a pod there. Tokens that are unbound, for another
/// audience or of another ServiceAccount are refused, and that of another node's pod gives the
/// other node's name only.
pub(super) async fn by_account(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = cluster.node("n2")?;
    let carrier = Carrier::start(cluster, node).await?;
    let other = Carrier::start(cluster, cluster.node("n1")?).await?;
    let done = with_carriers(scene, node, &carrier, &other).await;
    carrier.end(cluster).await?;
    other.end(cluster).await?;
    done
}

async fn with_carriers(
    scene: &Scene<'_>,
    node: &Node,
    carrier: &Carrier,
    other: &Carrier,
) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let door = created(cluster, node).await?;
    let nothing = Created { token: "eyJ.no.token".into(), ..created(cluster, node).await? };
    refused(scene, node, &nothing, "does not authenticate").await?;
    for (account, audience, why) in [
        ("csi-edge", accounts::AUDIENCE, "not bound to a pod"),
        ("csi-edge", "another", "does not authenticate"),
        ("csi-cloud", accounts::AUDIENCE, "not of the ServiceAccount edge-csi/csi-edge"),
    ] {
        let token = accounts::unbound(cluster, account, audience).await?;
        let shown = Created { token, ..created(cluster, node).await? };
        refused(scene, node, &shown, why).await?;
    }
    let stray = Created { token: other.token()?, ..created(cluster, node).await? };
    let said = join(scene, node, &stray, "stray").await?;
    ensure!(said.contains("joined as node n1"), "with the token of n1's pod: {said}");

    let more = [
        format!("--ca-hash={}", door.ca_hash),
        format!("--token-file={}", carrier.file().display()),
    ];
    serve(scene, node, &more).await?;
    scene.apply(&at_node("data", node)).await?;
    scene.ready(&["data"]).await.map(drop)
}

/// All nodes renew twice while claims are made and deleted; no call fails.
pub(super) async fn renewed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    for node in &cluster.nodes {
        joined(scene, node).await?;
    }
    let pods: String = cluster.nodes.iter().map(|node| at_node(node.name, node)).collect();
    scene.apply(&pods).await?;
    scene.ready(&["n1", "n2", "n3"]).await?;
    let from = cluster.cloud.program.log().len();
    let logged: Vec<_> = cluster.cloud.sidecars.iter().map(|one| one.log().len()).collect();
    let failed = failed_calls(cluster).await?;
    let begun = tokio::time::Instant::now();
    let mut round = 0;
    while cluster.nodes.iter().any(|node| renewals(cluster, node, from) < RENEWALS) {
        ensure!(begun.elapsed() < RENEWED, "not each node has renewed {RENEWALS} times");
        let names: Vec<_> = (0..CLAIMS).map(|number| format!("c{round}-{number}")).collect();
        scene.claim_and_delete(&names).await?;
        round += 1;
    }
    println!("{:24} {:>8}  claims made and deleted during renewals", "", round * CLAIMS);
    lost_calls(cluster, &logged)?;
    let after = failed_calls(cluster).await?;
    ensure!(after == failed, "calls failed meanwhile: {after:?}, before {failed:?}");
    scene.ready(&["n1", "n2", "n3"]).await?;
    for node in &cluster.nodes {
        ensure!(scene.restarts(node.name).await? == 0, "a container was started again");
    }
    Ok(())
}

/// A node is revoked: its link ends, and neither its ServiceAccount nor an older token lets it
/// join. A later token does, and its volume has its data.
pub(super) async fn revoked(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = cluster.node("n3")?;
    joined(scene, node).await?;
    scene.apply(&at_node("data", node)).await?;
    scene.ready(&["data"]).await?;
    let older = created(cluster, node).await?;
    let carrier = Carrier::start(cluster, node).await?;
    let done = shut_out(scene, node, &carrier, &older).await;
    carrier.end(cluster).await?;
    done?;

    let later = created(cluster, node).await?;
    let said = join(scene, node, &later, "identity").await?;
    ensure!(said.contains("joined as node n3"), "csi-edge says {said}");
    linked(cluster, node).await?;
    scene.delete::<Pod>("data").await?;
    scene.apply(&at(&pod("reader", "data", STAY, READ), node.name)).await?;
    scene.ready(&["reader"]).await.map(drop)
}

async fn shut_out(
    scene: &Scene<'_>,
    node: &Node,
    carrier: &Carrier,
    older: &Created,
) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    cluster.cloud.says(&cluster.ground, &["node", "revoke", node.name]).await?;
    within("the end of the link", LINKED, || async {
        let state = shown(cluster, node).await?["state"].clone();
        ensure!(state == "revoked", "{} is {state}", node.name);
        Ok(())
    })
    .await?;
    scene.apply(&at_node("waits", node)).await?;
    let waits = format!("{}/waits", scene.namespace());
    shows(scene, "node-revoked", &["pod", &waits], Some(node.name)).await?;
    explains(scene, &["node", node.name], "node-revoked", Some(node.name)).await?;
    refused(scene, node, older, "was revoked after this token was made").await?;
    let token = carrier.token()?;
    let account = Created { token, ..created(cluster, node).await? };
    refused(scene, node, &account, "its ServiceAccount does not let it join").await
}

/// Joins a node by an operator's token, and lets csi-edge serve with that identity.
pub(super) async fn joined(scene: &Scene<'_>, node: &Node) -> anyhow::Result<()> {
    let created = created(scene.cluster, node).await?;
    // As it is printed, for the node's shell.
    let said = piped(scene, node, &created.command).await?;
    ensure!(said.contains(&format!("joined as node {}", node.name)), "csi-edge says {said}");
    serve(scene, node, &[]).await
}

/// Runs the command that `csi-cloud token create` printed in the node's shell, and returns what
/// csi-edge says.
pub(super) async fn piped(scene: &Scene<'_>, node: &Node, printed: &str) -> anyhow::Result<String> {
    let is_it = |line: &&str| line.contains(" | csi-edge join ");
    let line = printed.lines().map(str::trim).find(is_it);
    let line = line.with_context(|| format!("no command is printed: {printed}"))?;
    let dir = identity(scene, node, "identity").display().to_string();
    let program = scene.cluster.ground.program("csi-edge").display().to_string();
    let line = line.replace("| csi-edge", &format!("| {program}"));
    node.worker.space.run("sh", &["-c", &format!("{line} --identity {dir}")]).await
}

/// A new token for a node.
async fn created(cluster: &Cluster, node: &Node) -> anyhow::Result<Created> {
    let [wss, _] = &cluster.cloud.urls;
    let args = ["token", "create", node.name, "--cloud", wss, "-o", "json"];
    let said = cluster.cloud.says(&cluster.ground, &args).await?;
    serde_json::from_str(&said).with_context(|| format!("csi-cloud token create says {said}"))
}

/// Joins with a token into a directory of the row, whatever is there, and returns what csi-edge
/// says.
async fn join(
    scene: &Scene<'_>,
    node: &Node,
    shown: &Created,
    directory: &str,
) -> anyhow::Result<String> {
    let program = scene.cluster.ground.program("csi-edge").display().to_string();
    let dir = identity(scene, node, directory).display().to_string();
    let Created { token, cloud, ca_hash, .. } = shown;
    let args = ["join", "--cloud", cloud, "--ca-hash", ca_hash, "--token", token];
    let args = [&args[..], &["--identity", &dir, "--replace"]].concat();
    node.worker.space.run(&program, &args).await
}

/// Expects that a token lets nobody join, for a reason with these words.
async fn refused(scene: &Scene<'_>, node: &Node, shown: &Created, why: &str) -> anyhow::Result<()> {
    match join(scene, node, shown, "refused").await {
        Ok(said) => anyhow::bail!("expected {why:?}, and csi-edge says {said}"),
        Err(error) => {
            let told = format!("{error:#}");
            ensure!(told.contains(why), "expected {why:?}, and csi-edge says {told}");
            Ok(())
        }
    }
}

pub(super) fn identity(scene: &Scene<'_>, node: &Node, directory: &str) -> PathBuf {
    let name = format!("{directory}-{}", scene.namespace());
    scene.cluster.ground.dir().join(node.name).join(name)
}

/// Starts csi-edge again with the row's identity in place of files, and waits for its link.
pub(super) async fn serve(scene: &Scene<'_>, node: &Node, more: &[String]) -> anyhow::Result<()> {
    let dir = identity(scene, node, "identity");
    let replaced = ["--ca=", "--cert=", "--key=", "--identity=", "--ca-hash=", "--token-file="];
    node.edge.stop().await?;
    let change = |args: &mut Vec<String>| {
        args.retain(|arg| !replaced.iter().any(|flag| arg.starts_with(flag)));
        args.push(format!("--identity={}", dir.display()));
        args.extend_from_slice(more);
    };
    node.edge.reargue(change).await?;
    node.edge.run().await?;
    linked(scene.cluster, node).await
}

/// Waits until a node is linked with a certificate of the short life.
async fn linked(cluster: &Cluster, node: &Node) -> anyhow::Result<()> {
    within(&format!("a link of {}", node.name), LINKED, || async {
        let shown = shown(cluster, node).await?;
        ensure!(shown["state"] == "linked", "it is {}", shown["state"]);
        let end = shown["not_after_ms"].as_u64().context("a link without an end")?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let left = Duration::from_millis(end).saturating_sub(now);
        ensure!(left <= LIFE, "its certificate ends in {left:?}");
        Ok(())
    })
    .await
}

/// A node as csi-cloud shows it.
pub(super) async fn shown(cluster: &Cluster, node: &Node) -> anyhow::Result<serde_json::Value> {
    let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
    let found = nodes.into_iter().find(|one| one["name"] == node.name);
    found.with_context(|| format!("csi-cloud does not show {}", node.name))
}

/// How often a node has renewed since csi-cloud's log had this length.
fn renewals(cluster: &Cluster, node: &Node, from: usize) -> usize {
    let log = cluster.cloud.program.log();
    let new = log.get(from..).unwrap_or_default();
    let of_node = format!("node={}", node.name);
    let is_one = |line: &&str| {
        line.contains("renewed the certificate of a node")
            && line.split_whitespace().any(|word| word == of_node)
    };
    new.lines().filter(is_one).count()
}

/// The lines of csi-cloud's metrics about calls that failed.
pub(super) async fn failed_calls(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let metrics = cluster.cloud.metrics().await?;
    let calls = metrics.lines().filter(|line| line.starts_with("edge_csi_calls_total{"));
    // A provisioner asks NodeGetInfo at its start, and gives up if no edge has linked yet.
    let is_failed =
        |line: &&str| !line.contains("code=\"OK\"") && !line.contains("rpc=\"NodeGetInfo\"");
    let failed: Vec<_> = calls.clone().filter(is_failed).collect();
    ensure!(calls.count() > failed.len(), "csi-cloud counts no calls that succeeded");
    Ok(failed.into_iter().map(str::to_owned).collect())
}
