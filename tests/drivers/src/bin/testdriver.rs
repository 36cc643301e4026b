//! The test driver as a process, for tests that kill it and for measurements.
//!
//! It records nothing, so that it can run for long and is a fair baseline.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use drivers::testdriver::{Fault, METHODS, TestDriver, Times};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a driver that `--die-on` ended.
const DIED: i32 = 9;

/// An in-memory CSI driver for tests.
#[derive(Parser)]
struct Args {
    /// Where to listen, as `unix:///path` or a path.
    #[arg(long)]
    endpoint: String,
    /// The node id that NodeGetInfo answers.
    #[arg(long)]
    node_id: String,
    /// The plugin's name.
    #[arg(long, default_value = "test.edge-csi.io")]
    name: String,
    /// Delays every call by this many milliseconds, except those of Identity and for capabilities.
    #[arg(long)]
    delay_ms: Option<u64>,
    /// Exits with code 9 when this RPC is called, before doing its work.
    #[arg(long)]
    die_on: Option<String>,
    /// Refuses a call for a volume that has another in flight.
    #[arg(long)]
    refuse_overlaps: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let driver = TestDriver::new(&args.name, &args.node_id);
    driver.record(false);
    driver.refuse_overlaps(args.refuse_overlaps);
    if let Some(method) = &args.die_on {
        if !METHODS.iter().any(|(_, known)| known == method) {
            bail!("--die-on {method}: CSI has no such RPC");
        }
        driver.inject(method, Fault::Exit(DIED), Times::All);
    }
    // A delay of nothing still waits for the timer's next tick.
    if let Some(delay) = args.delay_ms.filter(|ms| *ms > 0).map(Duration::from_millis) {
        let quick = |service: &str, method: &str| {
            service == "Identity" || method.ends_with("GetCapabilities")
        };
        for (_, method) in METHODS.iter().filter(|(service, method)| !quick(service, method)) {
            driver.inject(method, Fault::Delay(delay), Times::All);
        }
    }
    let path = PathBuf::from(args.endpoint.trim_start_matches("unix://"));
    // Before `ready`, so that a signal right after it finds its handler.
    let mut term = signal(SignalKind::terminate())?;
    let running =
        driver.serve(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
    println!("ready");
    term.recv().await;
    running.stop().await;
    Ok(())
}
