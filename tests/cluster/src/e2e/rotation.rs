//! Another CA takes over while claims are made, as an operator does it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use serde::Deserialize;

use super::faults::at_node;
use super::joins::{failed_calls, joined, shown};
use super::outages::lost_calls;
use super::scene::Scene;
use crate::stand::Cluster;
use crate::stand::ask::admin;
use crate::stand::objects::within;

/// How many claims are made at least.
const CLAIMS: usize = 100;
/// How many of them at once.
const AT_ONCE: usize = 10;
/// How long all nodes may take to renew.
const RENEWED: Duration = Duration::from_secs(90);

/// What `csi-cloud ca rotate status` prints.
#[derive(Deserialize)]
struct RotationStatus {
    rotating: bool,
    ca_hash: String,
    nodes: Vec<NodeCa>,
}

#[derive(Debug, Deserialize)]
struct NodeCa {
    node: String,
    linked: bool,
    ca: String,
}

/// A new CA takes over from start to finish while 100 claims are made. No call fails, and no node
/// is locked out.
pub(super) async fn under_load(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    for node in &cluster.nodes {
        joined(scene, node).await?;
    }
    let names: Vec<_> = cluster.nodes.iter().map(|node| node.name).collect();
    let pods: String = cluster.nodes.iter().map(|node| at_node(node.name, node)).collect();
    scene.apply(&pods).await?;
    scene.ready(&names).await?;
    let logged: Vec<_> = cluster.cloud.sidecars.iter().map(|one| one.log().len()).collect();
    let failed = failed_calls(cluster).await?;
    let before = status(cluster).await?.ca_hash;

    let is_over = AtomicBool::new(false);
    let rotating = async {
        let rotated = rotated(cluster).await;
        is_over.store(true, Ordering::Relaxed);
        rotated
    };
    let (hash, made) = tokio::try_join!(rotating, claimed(scene, &is_over))?;
    println!("{:24} {made:>8}  claims made and deleted while the CA was rotated", "");
    ensure!(hash != before, "the CA is the same");
    lost_calls(cluster, &logged)?;
    let after = failed_calls(cluster).await?;
    ensure!(after == failed, "calls failed meanwhile: {after:?}, before {failed:?}");
    scene.ready(&names).await?;
    for node in &cluster.nodes {
        let state = shown(cluster, node).await?["state"].clone();
        ensure!(state == "linked", "{} is {state}", node.name);
        ensure!(scene.restarts(node.name).await? == 0, "a container was started again");
    }
    Ok(())
}

/// Lets a new CA take over; returns its hash.
async fn rotated(cluster: &Cluster) -> anyhow::Result<String> {
    let ground = &cluster.ground;
    let new = ground.at("pki-next");
    admin(ground, &["ca", "init", "--host", "127.0.0.1", "--dir", &new]).await?;
    let cert = format!("--cert={new}/ca.crt");
    let key = format!("--key={new}/ca.key");
    cluster.cloud.says(ground, &["ca", "rotate", "start", &cert, &key]).await?;
    current(cluster).await?;
    cluster.cloud.says(ground, &["ca", "rotate", "finish"]).await?;
    current(cluster).await?;
    let status = status(cluster).await?;
    ensure!(!status.rotating, "it is not finished");
    Ok(status.ca_hash)
}

/// Waits until all nodes are linked and have the CA that issues.
async fn current(cluster: &Cluster) -> anyhow::Result<()> {
    within("the CA at all nodes", RENEWED, || async {
        let nodes = status(cluster).await?.nodes;
        let is_current = |node: &NodeCa| node.linked && node.ca == "current";
        let known = |name: &str| nodes.iter().any(|node| node.node == name && is_current(node));
        ensure!(cluster.nodes.iter().all(|node| known(node.name)), "{nodes:?}");
        Ok(())
    })
    .await
}

async fn status(cluster: &Cluster) -> anyhow::Result<RotationStatus> {
    let args = ["ca", "rotate", "status", "-o", "json"];
    Ok(serde_json::from_str(&cluster.cloud.says(&cluster.ground, &args).await?)?)
}

/// Makes claims and deletes them, at least so many, and until `is_over`; returns how many.
async fn claimed(scene: &Scene<'_>, is_over: &AtomicBool) -> anyhow::Result<usize> {
    let mut made = 0;
    while made < CLAIMS || !is_over.load(Ordering::Relaxed) {
        let names: Vec<_> = (made..made + AT_ONCE).map(|number| format!("c{number}")).collect();
        scene.claim_and_delete(&names).await?;
        made += AT_ONCE;
    }
    Ok(made)
}
