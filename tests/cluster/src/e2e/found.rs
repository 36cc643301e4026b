//! A driver that no configuration names: its registrar announces it in a directory of csi-edge.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use proto::host::publish::{Existing, publish};
use serde_json::Value;

use super::faults::at_node;
use super::joins::shown;
use super::pods::{READ, STAY};
use super::scene::{Scene, pod};
use super::texts::at;
use crate::stand::Cluster;
use crate::stand::node::{Driver, Node};
use crate::stand::objects::within;
use crate::stand::program::{Launch, Program};

/// How long csi-edge may take to link, and to find the driver.
const FOUND: Duration = Duration::from_secs(60);

/// csi-edge is started without its drivers, and the first of them announces itself. Its pods have
/// volumes as before; the volume made before is still readable. The row ends as it has begun.
pub(super) async fn by_registration(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let node = cluster.node("n3")?;
    scene.apply(&at_node("before", node)).await?;
    scene.ready(&["before"]).await?;
    let driver = node.drivers.first().context("the node has no driver")?;
    let directory = cluster.ground.dir().join(node.name).join("registry");
    let config = directory.with_extension("toml");
    let text = format!("[discovery]\ndirectory = {directory:?}\nallow = {:?}\n", driver.name);
    publish(&config, text.as_bytes(), 0o600, Existing::Replace)?;
    node.edge.stop().await?;
    let mut before = Vec::new();
    let named = ["--driver=", "--config="];
    let change = |args: &mut Vec<String>| {
        before.clone_from(args);
        args.retain(|arg| !named.iter().any(|flag| arg.starts_with(flag)));
        args.push(format!("--config={}", config.display()));
    };
    node.edge.reargue(change).await?;
    let done = announced(scene, node, driver, &directory).await;
    node.edge.stop().await?;
    node.edge.reargue(|args| *args = before).await?;
    node.edge.run().await?;
    linked(cluster, node).await?;
    done
}

async fn announced(
    scene: &Scene<'_>,
    node: &Node,
    driver: &Driver,
    directory: &std::path::Path,
) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    node.edge.run().await?;
    linked(cluster, node).await?;
    ensure!(drivers(scene, node).await?.is_empty(), "csi-edge has a driver already");
    let args = [
        format!("-driver={}", driver.name),
        format!("-endpoint={}", driver.socket()?.display()),
        format!("-listen={}", directory.join("found-reg.sock").display()),
    ];
    let launch = Launch::new(cluster.ground.tool("registrar"), args);
    let name = format!("{}-announces", node.name);
    let registrar =
        Program::within(&node.worker.space, &name, &cluster.ground.logs(), launch).await?;
    let used = used(scene, node, driver).await;
    registrar.stop().await?;
    used
}

async fn used(scene: &Scene<'_>, node: &Node, driver: &Driver) -> anyhow::Result<()> {
    within("the driver is found", FOUND, || async {
        let drivers = drivers(scene, node).await?;
        let found = drivers.first().context("csi-edge has found no driver")?;
        ensure!(found["name"] == driver.name && found["health"] == "up", "it shows {found}");
        Ok(())
    })
    .await?;
    scene.apply(&at_node("found", node)).await?;
    scene.ready(&["found"]).await?;
    scene.delete::<Pod>("before").await?;
    scene.apply(&at(&pod("reader", "before", STAY, READ), node.name)).await?;
    scene.ready(&["reader"]).await.map(drop)
}

/// What `csi-edge drivers` shows at a node.
async fn drivers(scene: &Scene<'_>, node: &Node) -> anyhow::Result<Vec<Value>> {
    let ground = &scene.cluster.ground;
    let program = ground.program("csi-edge").display().to_string();
    let admin = ground.dir().join(node.name).join("fronts/_admin.sock").display().to_string();
    let args = ["drivers", "-o", "json", "--admin", &admin];
    Ok(serde_json::from_str(&node.worker.space.run(&program, &args).await?)?)
}

/// Waits until csi-cloud shows the node as linked, for a minute at most.
pub(super) async fn linked(cluster: &Cluster, node: &Node) -> anyhow::Result<()> {
    within(&format!("a link of {}", node.name), FOUND, || async {
        let state = shown(cluster, node).await?["state"].clone();
        ensure!(state == "linked", "{} is {state}", node.name);
        Ok(())
    })
    .await
}
