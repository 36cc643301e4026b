//! A node without a battery for its clock: it boots in 1970, and its uplink is away. NTP may need a
//! pod that waits for its volume.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join_all;
use harness::clock;
use harness::clock::Clock;
use proto::host::publish::{Existing, publish};
use tokio::time::Instant;

use super::found::linked;
use super::joins::shown;
use super::power;
use super::power::Back;
use super::scene::Scene;
use crate::stand::node::Node;

/// The node's pods get their volumes back in 1970, without csi-cloud, and the node links as soon as
/// it can.
pub(super) async fn boots_in_1970(scene: &Scene<'_>) -> anyhow::Result<()> {
    if clock::is_missing()? {
        return Ok(());
    }
    let node = scene.cluster.node(power::NODE)?;
    let kept = power::begin(scene, node).await?;
    let own = node.edge.file().await?;
    let dir = scene.cluster.ground.dir();
    let wrong = Clock::new(&dir.join("clock-of-1970"), clock::IN_1970)?;
    let program = dir.join("csi-edge-of-1970");
    let script = format!("#!/bin/sh\n{}\nexec {} \"$@\"\n", wrong.exported(), own.display());
    publish(&program, script.as_bytes(), 0o755, Existing::Replace)?;
    node.edge.replace(&program).await?;
    let done = boots(scene, node, &kept, &wrong).await;
    node.relay.mend();
    node.edge.replace(&own).await?;
    node.edge.restart().await?;
    println!("{:24} {:>8}  {}", "", "", done?);
    power::end(scene, node, &kept).await
}

async fn boots(
    scene: &Scene<'_>,
    node: &Node,
    kept: &[Back],
    wrong: &Clock,
) -> anyhow::Result<String> {
    let log = node.worker.kubelet.log().len();
    node.relay.cut();
    node.cut().await?;
    let back = kept.iter().map(|back| power::is_back(node, back, log));
    let (on, back) = tokio::join!(node.switch_on(Duration::ZERO), try_join_all(back));
    on?;
    let slowest = back?.into_iter().max().unwrap_or_default();
    for back in kept {
        scene.ready(&[&back.pod]).await?;
    }
    power::each_once(node, kept)?;
    ensure!(slowest <= power::BACK, "a volume was back only {slowest:?} after it was asked for");
    let status = shown(scene.cluster, node).await?;
    ensure!(status["state"] != "linked", "it has a link without its uplink");
    node.relay.mend();
    wrong.set(clock::RIGHT)?;
    let begun = Instant::now();
    linked(scene.cluster, node).await?;
    Ok(format!(
        "in 1970 each volume was back {:.1} s after it was asked for; linked {:.1} s after the \
         clock was right",
        slowest.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    ))
}
