//! `make bench CASE=replicas`: several csi-clouds with one store in a real etcd of three members,
//! all on this machine and its disk.
//!
//! How long callers and edges wait for the next leader, what commits cost, and how long a follower
//! takes to have what it lacks.

use anyhow::ensure;

use crate::durable::on_a_disk;
use crate::figures;
use crate::figures::Figure;
use crate::grown::Size;
use crate::repeats::Repeats;
use crate::report::finish;
use harness::etcd_server::is_installed;

mod behind;
mod commits;
mod crowd;
mod handover;
mod start;
mod world;

/// How much is measured.
///
/// Writes one JSON object per row to replicas.jsonl. It fails if a target is missed or a call
/// failed.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    repeats: Repeats,
    /// How many changes a follower lacks
    #[arg(long, default_value_t = 10_000)]
    changes: usize,
    /// How many edges link to the next leader
    #[arg(long, default_value_t = 5_000)]
    edges: usize,
    /// How many nodes a csi-cloud knows that starts
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// How many volumes it knows
    #[arg(long, default_value_t = 1_000_000)]
    homes: usize,
    /// Only this part
    #[arg(long, value_parser = ["handover", "commits", "behind", "crowd", "start"])]
    only: Option<String>,
}

/// Measures all of it.
///
/// # Errors
/// A target is missed, a call failed, or a program does not start.
pub async fn main(options: &Options) -> anyhow::Result<()> {
    ensure!(is_installed("several csi-clouds")?, "etcd is needed: apt install etcd-server");
    let out = &options.repeats.out;
    std::fs::create_dir_all(out)?;
    on_a_disk(out)?;
    let figures = measure(options).await?;
    let table = figures::table(&figures);
    finish(&figures, &table, &figures::targets(&figures), &out.join("replicas.jsonl"))
}

async fn measure(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let Repeats { rounds, out, .. } = &options.repeats;
    let wanted = |part: &str| options.only.as_deref().is_none_or(|only| only == part);
    let mut figures = Vec::new();
    if wanted("handover") {
        figures.extend(handover::measure(*rounds, out).await?);
    }
    if wanted("commits") {
        figures.extend(commits::measure(*rounds, options.repeats.time(), out).await?);
    }
    if wanted("behind") {
        figures.extend(behind::measure(options.changes, out).await?);
    }
    if wanted("crowd") {
        figures.extend(crowd::measure(options.edges, out).await?);
    }
    if wanted("start") {
        let size = Size { nodes: options.nodes, homes: options.homes, intents: options.homes };
        figures.extend(start::measure(size, out).await?);
    }
    Ok(figures)
}
