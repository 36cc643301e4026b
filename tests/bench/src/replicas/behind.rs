//! A follower that was paused: how long it takes to have the changes that it missed.

use std::path::Path;

use anyhow::{Context, ensure};
use harness::http::metric;
use harness::replicas::leader;
use harness::stand::channel;
use harness::wait::until;
use rustix::process::Signal;
use tokio::time::Instant;

use super::world::World;
use crate::durable::{CALLERS, DRIVER, NODE};
use crate::figures::Figure;
use crate::load;

/// The most that it may take, in s.
const WARM: f64 = 5.0;
/// The changes of a csi-cloud that leads, in all commits.
const CHANGES: &str = "edge_csi_store_commit_changes_sum";
/// The last commit that a csi-cloud has.
const COMMIT: &str = "edge_csi_replica_commit";

pub(super) async fn measure(changes: usize, dir: &Path) -> anyhow::Result<Vec<Figure>> {
    let world = World::new(dir).await?;
    let first = leader(&world.replicas, &[]).await?;
    let leader = world.replicas.get(first).context("no leader")?;
    let mut others = world.replicas.iter().filter(|replica| replica.name() != leader.name());
    let follower = others.next().context("no follower")?;
    let before = metric(leader.http()?, CHANGES).await?;
    follower.signal(Signal::STOP)?;
    let channel = channel(&leader.front(&world.stand, DRIVER)).await?;
    let mut missed = 0.0;
    while missed < changes as f64 {
        let seen = load::lives(&channel, NODE, CALLERS.min(changes), 1).await?;
        ensure!(seen.errors == 0, "{} calls failed", seen.errors);
        missed = metric(leader.http()?, CHANGES).await? - before;
    }
    let last = metric(leader.http()?, COMMIT).await?;
    let begun = Instant::now();
    follower.signal(Signal::CONT)?;
    let http = follower.http()?;
    until("the follower has all commits", || async move {
        let has = metric(http, COMMIT).await?;
        ensure!(has >= last, "it has {has} of {last}");
        Ok(())
    })
    .await?;
    let took = begun.elapsed().as_secs_f64();
    world.stop().await?;
    Ok(vec![
        Figure::new("changes that a follower missed", missed, ""),
        Figure::new("a follower that was paused, until it has them", took, "s").at_most(WARM),
    ])
}
