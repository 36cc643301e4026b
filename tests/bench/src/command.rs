//! `make bench`: what is measured on one machine, case by case.

use std::path::PathBuf;

use crate::figures;
use crate::figures::Figure;
use crate::grown::Size;
use crate::repeats::Repeats;
use crate::report::finish;
use crate::{calls, durable, guest_io, routing};

/// How much is measured. Each case writes one JSON object per row to CASE.jsonl.
///
/// It fails if a target is missed or a call failed.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    repeats: Repeats,
    /// How many nodes csi-cloud knows in `routing`
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// How many volumes it knows there
    #[arg(long, default_value_t = 1_000_000)]
    homes: usize,
    /// How many of these were made through csi-cloud, which keeps the intent of each create
    /// [default: all]
    #[arg(long)]
    intents: Option<usize>,
    /// Where the kernel of `guest` was unpacked
    #[arg(long, default_value = "target/guest/kernel")]
    kernel: PathBuf,
}

/// The measurement.
#[derive(Clone, Copy, Debug)]
pub enum Case {
    /// Calls, against calling the driver directly.
    Calls,
    /// csi-cloud with very many nodes and volumes.
    Routing,
    /// Creates with the store on a disk, against the store in memory.
    Durable,
    /// A direct volume in a real guest, against a directory shared with it.
    Guest,
}

/// Measures these cases. One that fails does not stop the others.
///
/// # Errors
/// A target is missed, a call failed, or a program does not start.
pub async fn main(cases: &[Case], options: &Options) -> anyhow::Result<()> {
    std::fs::create_dir_all(&options.repeats.out)?;
    let mut missed = Vec::new();
    for case in cases {
        if let Err(error) = measure(*case, options).await {
            missed.push(format!("{case:?}: {error:#}"));
        }
    }
    anyhow::ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}

async fn measure(case: Case, options: &Options) -> anyhow::Result<()> {
    let Repeats { rounds, out, .. } = &options.repeats;
    let rounds = *rounds;
    let time = options.repeats.time();
    match case {
        Case::Calls => calls::measure(rounds, time, out).await,
        Case::Routing => {
            let intents = options.intents.unwrap_or(options.homes);
            let size = Size { nodes: options.nodes, homes: options.homes, intents };
            report(&routing::measure(size, out).await?, options, "routing.jsonl")
        }
        Case::Durable => {
            report(&durable::measure(rounds, time, out).await?, options, "durable.jsonl")
        }
        Case::Guest => {
            let figures = guest_io::measure(rounds, time, &options.kernel).await?;
            report(&figures, options, "guest.jsonl")
        }
    }
}

fn report(figures: &[Figure], options: &Options, file: &str) -> anyhow::Result<()> {
    let table = figures::table(figures);
    finish(figures, &table, &figures::targets(figures), &options.repeats.out.join(file))
}
