//! Many edges at the next leader: how long until all of them are linked to it.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use harness::replicas;
use harness::replicas::{Replica, leader};
use harness::stand::Stand;
use tokio::time::Instant;

use super::world;
use crate::figures::Figure;
use crate::load::percentile;
use crate::scale::edges::Fleet;
use crate::scale::kind::DRIVER;

/// The most that all edges may take, in s.
const ALL: f64 = 8.0;
/// How long they may take before the measurement fails.
const LINKING: Duration = Duration::from_secs(180);

pub(super) async fn measure(edges: usize, dir: &Path) -> anyhow::Result<Vec<Figure>> {
    let stand = Stand::new().await?;
    let (mut replicas, mut etcd, _data) = world::replicas(&stand, dir, DRIVER).await?;
    let urls: Vec<_> = replicas.iter().flat_map(Replica::urls).cloned().collect();
    let mut fleet = Fleet::new(Path::new(&stand.pki()), &urls, edges)?;
    let first = leader(&replicas, &[]).await?;
    fleet.dial();
    fleet.all_linked(LINKING).await?;
    fleet.take_welcomed();
    let killed = replicas.get_mut(first).context("no leader")?.take()?;
    let begun = Instant::now();
    killed.kill().await?;
    // Edges wait for it at the csi-clouds that follow, so some are linked at once.
    leader(&replicas, &[first]).await?;
    let leads = Instant::now();
    fleet.all_welcomed(edges, LINKING).await?;
    let (welcomed, dials) = fleet.take_welcomed();
    let mut after: Vec<_> =
        welcomed.iter().map(|at| at.saturating_duration_since(leads).as_secs_f64()).collect();
    after.sort_by(f64::total_cmp);
    let at = |part| percentile(&after, part).unwrap_or(f64::NAN);
    fleet.leave().await;
    replicas.get_mut(first).context("no leader")?.start(&stand).await?;
    replicas::end(&mut replicas, &mut etcd).await?;
    Ok(vec![
        Figure::new("leader killed: until another one leads", (leads - begun).as_secs_f64(), "s"),
        Figure::new("edges", edges as f64, ""),
        Figure::new("edges at the new leader, half of them", at(0.5), "s"),
        Figure::new("edges at the new leader, all of them", at(1.0), "s").at_most(ALL),
        Figure::new("attempts to link", dials as f64, ""),
    ])
}
