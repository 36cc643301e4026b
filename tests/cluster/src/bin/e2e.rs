//! `make e2e`: starts a whole Kubernetes and goes through what must work in it, a row each.

use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;
use cluster::e2e::{self, Outcome};
use cluster::stand::Cluster;

/// End to end: a real Kubernetes with three edge nodes, and what users and operators do with it.
#[derive(Parser)]
struct Args {
    /// Only this row; may be given several times.
    #[arg(long)]
    row: Vec<String>,
    /// Say what rows there are.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    proto::host::program::run(|| proto::host::program::runtime(2)?.block_on(all(args)))
}

async fn all(args: Args) -> anyhow::Result<()> {
    let rows = e2e::chosen(&args.row)?;
    if args.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    let cluster = Cluster::up().await?;
    println!("{:24} {:>8}  result", "row", "s");
    let outcomes = tokio::select! {
        outcomes = e2e::run(&cluster, rows, print) => outcomes,
        stopped = proto::host::tasks::signal() => {
            stopped?;
            Vec::new()
        }
    };
    let failed = outcomes.iter().filter(|outcome| outcome.error.is_some()).count();
    if failed > 0 {
        eprintln!("{}", cluster.log_tails());
    }
    cluster.down().await?;
    ensure!(!outcomes.is_empty(), "stopped");
    ensure!(failed == 0, "{failed} of {} failed", outcomes.len());
    println!("all {} passed, nothing left behind", outcomes.len());
    Ok(())
}

fn print(outcome: &Outcome) {
    let (name, seconds) = (outcome.name, outcome.took.as_secs_f64());
    match &outcome.error {
        None => println!("{name:24} {seconds:8.1}  ok"),
        Some(error) => println!("{name:24} {seconds:8.1}  FAILED: {error:#}"),
    }
}
