//! `make chaos`: load on real programs while they are killed, stopped and cut off, and what was
//! lost by it.

use std::time::Duration;

use tokio::time::Instant;

/// How many of the things that must not be are shown.
const MOST: usize = 40;

/// Kills, stops and cuts off csi-cloud, csi-edge and drivers under load, and checks the drivers'
/// own records.
///
/// Fails if a volume was leaked or lost, ran two calls at once, or a caller was given a final code.
#[derive(clap::Args)]
pub struct Args {
    /// How long things are broken, in seconds
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// The seed of the faults; the same seed has the same faults at the same times
    #[arg(long)]
    seed: Option<u64>,
    /// This many csi-clouds with one store in a real etcd [default: one with a file]
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=9))]
    replicas: Option<u8>,
    /// Do not show each fault
    #[arg(long)]
    quiet: bool,
}

/// Injects faults for the given time, and prints the findings.
///
/// # Errors
/// Something is there that must not be, nothing was tried, or a program does not start.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    let several = args.replicas.map(|replicas| format!(" REPLICAS={replicas}")).unwrap_or_default();
    println!(
        "chaos for {} s; again with: make chaos SECONDS={0} SEED={seed}{several}",
        args.seconds
    );
    let replicas = args.replicas.map_or(0, usize::from);
    let begun = Instant::now();
    let say = |what: &str| {
        if !args.quiet {
            println!("{:>6.1} s  {what}", begun.elapsed().as_secs_f64());
        }
    };
    let found = super::run(Duration::from_secs(args.seconds), (seed, replicas), &say).await?;
    let seen = &found.seen;
    println!("\ncalls answered OK          {:>7}", seen.ok);
    println!("lives led                  {:>7}, {} volumes kept", seen.lives, seen.kept.len());
    for (kind, count) in &found.faults {
        println!("{kind:<26} {count:>7}");
    }
    for (code, count) in &seen.open {
        println!("seen: {code:<20} {count:>7}");
    }
    for wrong in found.wrong.iter().take(MOST) {
        println!("WRONG: {wrong}");
    }
    anyhow::ensure!(found.wrong.is_empty(), "{} things must not be", found.wrong.len());
    found.has_tried()?;
    println!("nothing was leaked, lost, doubled or given a final code");
    Ok(())
}
