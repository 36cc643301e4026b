//! `make guest`: direct volumes with real guests. QEMU plugs in what csi-edge has published, and a
//! kernel of its own mounts it.

use std::path::PathBuf;
use std::time::Duration;

use super::machine::{Accel, Ground};
use super::turns::{TURNS, Turn};
use anyhow::ensure;
use tokio::time::{Instant, timeout};

/// How long one turn may take; an emulated guest takes most of a minute for it.
const LIMIT: Duration = Duration::from_secs(420);

/// Direct volumes with real guests, from the published entry to nothing left.
#[derive(clap::Args)]
pub struct Args {
    /// Only this turn; may be given several times
    #[arg(long)]
    turn: Vec<String>,
    /// Where Debian's kernel was unpacked
    #[arg(long, default_value = "target/guest/kernel")]
    kernel: PathBuf,
    /// How guests' processors are made [default: KVM if a guest comes up with it, else emulation]
    #[arg(long, value_enum)]
    accel: Option<Accel>,
}

/// Runs the turns until they are done or stopped.
///
/// # Errors
/// A turn failed, or no guest comes up.
pub async fn main(args: Args) -> anyhow::Result<()> {
    tokio::select! {
        done = all(args) => done,
        stopped = proto::host::tasks::signal() => { stopped?; anyhow::bail!("stopped") }
    }
}

async fn all(args: Args) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices and formatting need root");
    let known = |name: &String| TURNS.iter().any(|turn| turn.name == name);
    let names = TURNS.map(|turn| turn.name).join(", ");
    ensure!(args.turn.iter().all(known), "an unknown turn; there are: {names}");
    let ground = Ground::new(&args.kernel, args.accel).await?;
    println!("guest: {}", ground.about);
    let mut failed = 0;
    for turn in TURNS
        .iter()
        .filter(|turn| args.turn.is_empty() || args.turn.iter().any(|name| name == turn.name))
    {
        failed += usize::from(!one(turn, &ground).await);
    }
    ensure!(failed == 0, "{failed} failed");
    println!("all passed, nothing left behind");
    Ok(())
}

/// Whether it went well.
async fn one(turn: &Turn, ground: &Ground) -> bool {
    let from = Instant::now();
    let outcome = timeout(LIMIT, turn.run(ground)).await;
    let outcome =
        outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("it did not end within {LIMIT:?}")));
    let seconds = from.elapsed().as_secs_f64();
    match &outcome {
        Ok(()) => println!("{:14} {seconds:7.1} s  ok", turn.name),
        Err(error) => println!("{:14} {seconds:7.1} s  FAILED: {error:#}", turn.name),
    }
    outcome.is_ok()
}
