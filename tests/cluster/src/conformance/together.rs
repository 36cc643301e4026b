//! All kinds of tests at the same time. Each is a process of its own, since a stand takes the
//! network namespace of its process.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use futures_util::future::join_all;
use harness::process::Process;
use tokio::process::Command;
use tokio::time::Instant;

/// How long a run may take; ginkgo's own limits are shorter.
const LIMIT: Duration = Duration::from_secs(100 * 60);
/// How long a run may take to end its stand.
const STOP: Duration = Duration::from_secs(120);

/// Runs these kinds of tests with these options, and prints the results of each when it ends.
///
/// # Errors
/// A run has failed, or we were told to stop.
pub(super) async fn run(
    kinds: &[&'static str],
    to: &Path,
    options: &[String],
) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    let begun = Instant::now();
    let mut runs = Vec::new();
    for kind in kinds {
        runs.push((kind, start(kind, to, options)?));
    }
    println!(
        "all tests run at the same time, each kind on a stand of its own; {}/*/*.log show progress",
        to.display()
    );
    let ended = join_all(runs.iter_mut().map(|(kind, run)| ended(kind, run, begun)));
    let outcomes = tokio::select! {
        outcomes = ended => outcomes,
        stopped = proto::host::tasks::signal() => {
            stopped?;
            join_all(runs.into_iter().map(|(_, run)| run.stop(STOP))).await;
            return Err(anyhow!("stopped"));
        }
    };
    println!("all ended after {} s", begun.elapsed().as_secs());
    outcomes.into_iter().collect()
}

/// Starts this program for the tests of one kind. It is told to stop if we end.
fn start(kind: &str, to: &Path, options: &[String]) -> anyhow::Result<Process> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(std::env::current_exe()?);
    command.args(["conformance", "--only", kind, "--to"]).arg(to).args(options);
    Process::start(&format!("{kind}-stand"), command, to)
}

async fn ended(kind: &str, run: &mut Process, begun: Instant) -> anyhow::Result<()> {
    let lines = run.rest(LIMIT).await?;
    let status = run.ended(STOP).await?;
    let seconds = begun.elapsed().as_secs();
    println!("\n==== {kind}, after {seconds} s\n{}", lines.join("\n"));
    ensure!(status.success(), "{kind}: {status}; its log ends:\n{}", run.log_tail());
    Ok(())
}
