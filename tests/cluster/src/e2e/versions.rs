//! Two versions at once, for `make skew`: csi-cloud and the edges are upgraded, and rolled back,
//! while claims are made and a pod runs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, pod};
use super::texts::at;
use crate::stand::Cluster;
use crate::stand::objects::within;
use crate::stand::program::Program;

/// How long a program may take to serve again, and a node to link.
const SOON: Duration = Duration::from_secs(60);
/// How many claims are made at each step.
const CLAIMS: usize = 4;

/// The builds of a product.
struct Builds {
    cloud: std::path::PathBuf,
    edge: std::path::PathBuf,
}

/// From the older version to this one: csi-cloud first, and then node after node.
pub(super) async fn upgraded(scene: &Scene<'_>) -> anyhow::Result<()> {
    let older = older(scene.cluster)?;
    let newest = newest(scene.cluster);
    let done = changed(scene, &older, &newest).await;
    done.and(put(scene.cluster, &newest).await)
}

/// From this version back to the older one, in the same order.
pub(super) async fn rolled_back(scene: &Scene<'_>) -> anyhow::Result<()> {
    let older = older(scene.cluster)?;
    let newest = newest(scene.cluster);
    let done = changed(scene, &newest, &older).await;
    done.and(put(scene.cluster, &newest).await)
}

fn older(cluster: &Cluster) -> anyhow::Result<Builds> {
    let older = cluster.ground.older().context("there is no older version; use `make skew`")?;
    Ok(Builds { cloud: older.join("csi-cloud"), edge: older.join("csi-edge") })
}

fn newest(cluster: &Cluster) -> Builds {
    let of = |name| cluster.ground.newest(name);
    Builds { cloud: of("csi-cloud"), edge: of("csi-edge") }
}

/// Has all run these builds.
async fn put(cluster: &Cluster, builds: &Builds) -> anyhow::Result<()> {
    replaced(&cluster.cloud.program, &builds.cloud).await?;
    for node in &cluster.nodes {
        replaced(&node.edge, &builds.edge).await?;
    }
    all_linked(cluster).await
}

/// From the older version's manifests, with its programs, to the chart's: volumes, pods and links
/// stay.
pub(super) async fn deployed_upgraded(scene: &Scene<'_>) -> anyhow::Result<()> {
    older(scene.cluster)?;
    let kept = kept(scene).await?;
    let load = load(scene, "moved").await?;
    scene.cluster.upgrade_deployed().await?;
    for name in &load {
        scene.bound(name).await?;
        scene.delete::<PersistentVolumeClaim>(name).await?;
    }
    found_by_the_next(scene, &kept).await
}

/// A claim and its pod at each node, by their names, with what the pod wrote.
async fn kept(scene: &Scene<'_>) -> anyhow::Result<Vec<String>> {
    let mut claims = Vec::new();
    for node in &scene.cluster.nodes {
        let name = format!("kept-{}", node.name);
        scene
            .apply(&(claim(&name, "late") + &at(&pod(&name, &name, WRITE, READ), node.name)))
            .await?;
        scene.ready(&[&name]).await?;
        claims.push(name);
    }
    Ok(claims)
}

/// What was made before goes on, and is found by the next pod.
async fn found_by_the_next(scene: &Scene<'_>, kept: &[String]) -> anyhow::Result<()> {
    for (name, node) in kept.iter().zip(&scene.cluster.nodes) {
        ensure!(scene.restarts(name).await? == 0, "{name} was started again");
        scene.ready(&[name]).await?;
        scene.delete::<Pod>(name).await?;
        let next = format!("next-{}", node.name);
        scene.apply(&at(&pod(&next, name, STAY, READ), node.name)).await?;
        scene.ready(&[&next]).await?;
    }
    Ok(())
}

/// Begins with one build everywhere, and changes to the other under load.
async fn changed(scene: &Scene<'_>, from: &Builds, to: &Builds) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    put(cluster, from).await?;
    let kept = kept(scene).await?;
    let mut load = load(scene, "cloud").await?;
    replaced(&cluster.cloud.program, &to.cloud).await?;
    serves(cluster).await?;
    all_linked(cluster).await?;
    for node in &cluster.nodes {
        load.extend(self::load(scene, node.name).await?);
        replaced(&node.edge, &to.edge).await?;
        all_linked(cluster).await?;
    }
    for name in &load {
        scene.bound(name).await?;
    }
    found_by_the_next(scene, &kept).await?;
    for name in &load {
        scene.delete::<PersistentVolumeClaim>(name).await?;
    }
    Ok(())
}

/// Makes claims, and does not wait for them.
async fn load(scene: &Scene<'_>, name: &str) -> anyhow::Result<Vec<String>> {
    let names: Vec<_> = (0..CLAIMS).map(|number| format!("{name}-{number}")).collect();
    let texts: String = names.iter().map(|name| claim(name, "now")).collect();
    scene.apply(&texts).await?;
    Ok(names)
}

async fn replaced(program: &Program, build: &Path) -> anyhow::Result<()> {
    program.replace(build).await?;
    program.restart().await
}

async fn serves(cluster: &Cluster) -> anyhow::Result<()> {
    let asked = || async { cluster.cloud.shows(&cluster.ground, &["calls"]).await.map(drop) };
    within("csi-cloud", SOON, asked).await
}

async fn all_linked(cluster: &Cluster) -> anyhow::Result<()> {
    within("all links", SOON, || async {
        let nodes = cluster.cloud.shows(&cluster.ground, &["nodes"]).await?;
        for of in &cluster.nodes {
            let node = nodes.iter().find(|node| node["name"] == of.name);
            ensure!(node.is_some_and(|node| node["state"] == "linked"), "{}: {node:?}", of.name);
        }
        Ok(())
    })
    .await
}
