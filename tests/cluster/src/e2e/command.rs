//! `make e2e`: starts a whole Kubernetes and goes through what must work in it, a row each.

use super::part::Part;
use super::{Outcome, chosen, deployed, run};
use crate::stand::Cluster;
use crate::stand::layout::{Layout, Tool};
use anyhow::ensure;

/// End to end: a real Kubernetes with three edge nodes, and what users and operators do with it.
#[derive(clap::Args)]
pub struct Args {
    /// Only this row; may be given several times.
    #[arg(long)]
    row: Vec<String>,
    /// Only one of several equal parts of the rows, as 1/2: several stands can run at once.
    #[arg(long)]
    part: Option<Part>,
    /// Apply deploy/ with this tool, as pods, instead of starting our programs as processes.
    #[arg(long)]
    deployed: Option<Tool>,
    /// Say what rows there are.
    #[arg(long)]
    list: bool,
}

impl Args {
    /// Goes into the network namespace that the stand needs. It must be called before any thread
    /// is started.
    ///
    /// # Errors
    /// Namespaces are not allowed here.
    pub fn enter(&self) -> anyhow::Result<()> {
        if self.list { Ok(()) } else { Layout::of(self.deployed).enter() }
    }
}

/// Goes through the rows on a stand of its own.
///
/// # Errors
/// A row failed, or the stand does not come up or left something behind.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let is_ci = std::env::var_os("CI").is_some();
    let rows = chosen(&args.row, is_ci)?;
    let rows = deployed::fitting(rows, args.deployed, !args.row.is_empty())?;
    let rows = match args.part {
        Some(part) => part.of(rows),
        None => rows,
    };
    if args.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    let cluster = Cluster::of(Layout::of(args.deployed)).await?;
    println!("{:24} {:>8}  result", "row", "s");
    let outcomes = tokio::select! {
        outcomes = run(&cluster, rows, print) => outcomes,
        stopped = proto::host::tasks::signal() => {
            stopped?;
            Vec::new()
        }
    };
    let failed: Vec<_> = outcomes.iter().filter_map(told).collect();
    if !failed.is_empty() {
        eprintln!("{}", cluster.log_tails());
    }
    cluster.down().await?;
    ensure!(!outcomes.is_empty(), "stopped");
    let count = failed.len();
    let all = outcomes.len();
    ensure!(failed.is_empty(), "{count} of {all} failed: {}", failed.join("; "));
    println!("all {} passed, nothing left behind", outcomes.len());
    Ok(())
}

/// What is said of a row that failed, for the last line: it may be all that a reader keeps.
fn told(outcome: &Outcome) -> Option<String> {
    outcome.error.as_ref().map(|error| format!("{}: {error:#}", outcome.name))
}

fn print(outcome: &Outcome) {
    let name = outcome.name;
    let seconds = outcome.took.as_secs_f64();
    match &outcome.error {
        None => println!("{name:24} {seconds:8.1}  ok"),
        Some(error) => println!("{name:24} {seconds:8.1}  FAILED: {error:#}"),
    }
}
