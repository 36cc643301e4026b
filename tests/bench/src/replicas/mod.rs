//! `make bench CASE=replicas`: several csi-clouds with one store in a real etcd of three members,
//! all on this machine and its disk.
//!
//! How long callers and edges wait for the next leader, what commits cost, and how long a follower
//! takes to have what it lacks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;

use crate::durable::on_a_disk;
use crate::figures;
use crate::figures::Figure;
use crate::grown::Size;
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
    /// How often each measurement is repeated
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long creates are measured in a round, in ms
    #[arg(long, default_value_t = 1500)]
    time_ms: u64,
    /// The directory where the rows go, and while it runs the stores: on a disk
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
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
    std::fs::create_dir_all(&options.out)?;
    on_a_disk(&options.out)?;
    let figures = measure(options).await?;
    let table = figures::table(&figures);
    let out = options.out.join("replicas.jsonl");
    finish(&figures, &table, &figures::targets(&figures), &out)
}

async fn measure(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let Options { rounds, out, .. } = options;
    let wanted = |part: &str| options.only.as_deref().is_none_or(|only| only == part);
    let mut figures = Vec::new();
    if wanted("handover") {
        figures.extend(handover::measure(*rounds, out).await?);
    }
    if wanted("commits") {
        let time = Duration::from_millis(options.time_ms);
        figures.extend(commits::measure(*rounds, time, out).await?);
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
