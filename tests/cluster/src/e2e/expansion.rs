//! csi-edge expands volumes at its node in the place of the kubelet, and is killed meanwhile.

use std::time::Duration;

use anyhow::{Context, ensure};
use proto::host::publish::{Existing, publish};

use super::look;
use super::look::reads;
use super::resize::{LARGE, SIZE, grown};
use super::scene::Scene;
use super::texts::{READ_RAW, WRITE_RAW, at, raw_claim, raw_pod, sized};
use crate::stand::node::Node;
use crate::stand::objects::within;

/// The node of this row.
const NODE: &str = "n3";
/// How often csi-edge is killed during the expansion, and how long it runs between.
const KILLS: usize = 4;
const BETWEEN: Duration = Duration::from_millis(300);

/// A raw volume grows under its pod while csi-edge is killed, and another one that nobody uses when
/// the next pod has it staged. The kubelet is not asked for either.
pub(super) async fn by_edge(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node(NODE)?;
    let config = scene.cluster.ground.dir().join(NODE).join("csi-edge.toml");
    let before = std::fs::read(&config)?;
    let with = [b"node_expansion = \"edge\"\n", before.as_slice()].concat();
    publish(&config, &with, 0o600, Existing::Replace)?;
    let done = expanded(scene, node).await;
    // In any case, so that later rows have the node as it was.
    publish(&config, &before, 0o600, Existing::Replace)?;
    node.edge.restart().await?;
    done
}

async fn expanded(scene: &Scene<'_>, node: &Node) -> anyhow::Result<()> {
    node.edge.restart().await?;
    let claims = ["used", "unused"].map(|name| raw_claim(name, "late"));
    scene.apply(&claims.join("---\n")).await?;
    scene.apply(&at(&raw_pod("user", "used", WRITE_RAW, READ_RAW), NODE)).await?;
    scene.apply(&at(&raw_pod("first", "unused", WRITE_RAW, READ_RAW), NODE)).await?;
    scene.ready(&["user", "first"]).await?;
    scene.delete::<k8s_openapi::api::core::v1::Pod>("first").await?;
    scene.apply(&claims.map(|claim| sized(&claim, "32Mi")).join("---\n")).await?;
    for _ in 0..KILLS {
        tokio::time::sleep(BETWEEN).await;
        node.edge.kill().await?;
        node.edge.run().await?;
    }
    for claim in ["used", "unused"] {
        reads(scene, look::claim(claim), SIZE, "32Mi").await?;
        grown(scene, claim).await?;
    }
    let large = format!("{READ_RAW} && {LARGE}");
    let again = raw_pod("again", "unused", "exec sleep 2147483647", &large);
    scene.apply(&at(&again, NODE)).await?;
    scene.ready(&["user", "again"]).await?;
    let records = scene.cluster.ground.dir().join(NODE).join("csi-edge/node-volumes");
    within("the end of what csi-edge owed", look::SOON, || async {
        let mut kept = 0;
        for entry in std::fs::read_dir(&records).context("csi-edge keeps nothing")? {
            let text = std::fs::read_to_string(entry?.path())?;
            ensure!(text.contains("\"growth\": null"), "it keeps {text}");
            kept += 1;
        }
        // Pods use both volumes.
        ensure!(kept >= 2, "csi-edge keeps {kept} volumes");
        Ok(())
    })
    .await
}
