//! `make powercut`: one power cut for each seed, and what the node was like after it.

use anyhow::{Context, ensure};
use tokio::time::Instant;

use super::steps::Tally;

/// Switches a node off at a random step, and looks at it after it is on again.
///
/// csi-edge and a driver run as they would on a node, and a caller asks as a kubelet does. All are
/// killed at once, mounts, loop devices and `/run` go, and csi-cloud is away. Every volume must be
/// back 10 s after it is asked for, with its data and once, and nothing may be left over.
#[derive(clap::Args)]
pub struct Args {
    /// How many power cuts, each in a world of its own
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed; alone it is run alone
    #[arg(long)]
    seed: Option<u64>,
    /// How many volumes the node has
    #[arg(long, default_value_t = 12)]
    volumes: usize,
}

/// Runs the power cuts, and prints a line for each. At the end it prints how often each step was
/// cut.
///
/// # Errors
/// Something is there that must not be, or a program does not start. Many cuts left out a step.
pub async fn main(args: Args) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "a power cut takes mounts: run it as root");
    ensure!(args.seeds > 0 && args.volumes > 0, "it takes a power cut and a volume");
    let first = args.seed.unwrap_or(1);
    let last = if args.seed.is_some() { first } else { first + args.seeds - 1 };
    let mut slowest = 0.0_f64;
    let mut all = Tally::default();
    for seed in first..=last {
        let begun = Instant::now();
        let seen = super::run(seed, args.volumes).await;
        let seen = seen.with_context(|| {
            let volumes = args.volumes;
            format!("seed {seed}; again with: make powercut SEED={seed} VOLUMES={volumes}")
        })?;
        slowest = slowest.max(seen.back.as_secs_f64());
        all.add(&seen.tally);
        println!(
            "seed {seed:<4} cut {:<22} back in {:>4.1} s, {} expansions owed, {} open; {:.1} s",
            seen.cut,
            seen.back.as_secs_f64(),
            seen.owed,
            seen.open,
            begun.elapsed().as_secs_f64()
        );
    }
    println!("every volume was back with its data, once; the slowest after {slowest:.1} s");
    println!("{all}");
    all.check()
}
