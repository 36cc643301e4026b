//! A leader that ends: how long creates wait meanwhile.

use std::path::Path;

use anyhow::Context;
use harness::replicas::leader;
use rustix::process::Signal;
use tokio::time::Instant;

use super::world::World;
use crate::figures::Figure;
use crate::report::median;

/// The most that a create may wait after a leader was killed, in s.
const KILLED: f64 = 12.0;
/// The most that it may wait after one was told to stop, in s.
const TOLD: f64 = 1.5;

pub(super) async fn measure(rounds: usize, dir: &Path) -> anyhow::Result<Vec<Figure>> {
    let mut world = World::new(dir).await?;
    let mut killed = Vec::new();
    let mut told = Vec::new();
    for round in 0..rounds {
        killed.push(waited(&mut world, Signal::KILL, &format!("killed-{round}")).await?);
        told.push(waited(&mut world, Signal::TERM, &format!("told-{round}")).await?);
    }
    world.stop().await?;
    let longest = |waits: &[f64]| waits.iter().copied().fold(f64::NAN, f64::max);
    let [longest_killed, longest_told] = [&killed, &told].map(|waits| longest(waits));
    let [killed, told] = [killed, told].map(median);
    Ok(vec![
        Figure::new("leader killed: first new create, median", killed, "s"),
        Figure::new("leader killed: first new create, longest", longest_killed, "s")
            .at_most(KILLED),
        Figure::new("leader told to stop: first new create, median", told, "s"),
        Figure::new("leader told to stop: first new create, longest", longest_told, "s")
            .at_most(TOLD),
    ])
}

/// How long a create waits at most while the leader ends by this signal, in s. They come one after
/// another, until one of them came when the leader was gone.
async fn waited(world: &mut World, signal: Signal, name: &str) -> anyhow::Result<f64> {
    let first = leader(&world.replicas, &[]).await?;
    let replica = world.replicas.get_mut(first).context("no such replica")?;
    let mut ending = replica.take()?;
    ending.signal(signal)?;
    let mut longest = 0.0;
    for number in 0.. {
        let is_gone = ending.has_ended()?;
        let begun = Instant::now();
        world.create(&format!("{name}-{number}")).await?;
        longest = f64::max(longest, begun.elapsed().as_secs_f64());
        if is_gone {
            break;
        }
    }
    eprintln!("{name}: {longest:.2} s");
    let replica = world.replicas.get_mut(first).context("no such replica")?;
    replica.start(&world.stand).await?;
    Ok(longest)
}
