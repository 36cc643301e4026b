//! The cost of durable creates: volumes are made and deleted with the store on a disk and in
//! memory, in turns in one run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tonic::transport::Channel;

use super::figures::Figure;
use super::load;
use super::load::Life;
use super::report::median;
use harness::process::Process;
use harness::stand::{Stand, channel};
use harness::wait::{START, STOP};

pub(crate) const NODE: &str = "n1";
pub(crate) const DRIVER: &str = "fast.test.edge-csi.io";
/// Callers at the same time.
pub(crate) const CALLERS: usize = 256;
/// The required share of the calls/s in memory that a disk must reach.
const LEAST: f64 = 0.5;
/// The type in `statfs` of a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// A csi-cloud with a store, an edge, and a driver.
pub(crate) struct Way {
    pub(crate) channel: Channel,
    cloud: Process,
    edge: Process,
    driver: Process,
    _stand: Stand,
}

/// Measures with the store below `dir`, which must be on a disk; each way for `time` in each round.
///
/// # Errors
/// A program does not work, a call failed, or that is no disk.
pub async fn measure(rounds: usize, time: Duration, dir: &Path) -> anyhow::Result<Vec<Figure>> {
    on_a_disk(dir)?;
    let dir = tempfile::tempdir_in(dir)?;
    let file = std::path::absolute(dir.path().join("durable.redb"))?;
    let ways = [Way::new("memory:").await?, Way::new(&format!("file:{}", file.display())).await?];
    let mut rates = [Vec::new(), Vec::new()];
    let mut latencies = [Vec::new(), Vec::new()];
    let mut errors = 0;
    for _ in 0..rounds {
        for (at, way) in ways.iter().enumerate() {
            let seen = load::run(&way.channel, NODE, CALLERS, time, Life::Made).await?;
            rates[at].push(seen.calls_per_s());
            latencies[at].push(seen.percentile(0.5) / 1000.0);
            errors += seen.errors;
        }
    }
    for way in ways {
        way.stop().await?;
    }
    let ratio =
        median(rates[0].iter().zip(&rates[1]).map(|(memory, file)| file / memory).collect());
    let [[in_memory, on_disk], [memory_ms, disk_ms]] =
        [rates, latencies].map(|both| both.map(median));
    Ok(vec![
        Figure::new("256 callers, store in memory", in_memory, "calls/s"),
        Figure::new("256 callers, store in memory, p50", memory_ms, "ms"),
        Figure::new("256 callers, store on a disk", on_disk, "calls/s"),
        Figure::new("256 callers, store on a disk, p50", disk_ms, "ms"),
        Figure::new("256 callers, on a disk to in memory", ratio, "×").at_least(LEAST),
        Figure::new("failed calls", errors as f64, "").at_most(0.0),
    ])
}

/// # Errors
/// Commits cost nothing there.
pub(crate) fn on_a_disk(dir: &Path) -> anyhow::Result<()> {
    let kind = rustix::fs::statfs(dir)?.f_type;
    ensure!(
        u64::try_from(kind) != Ok(TMPFS),
        "{} is in memory; give --out on a disk, where the store's commits are to be measured",
        dir.display()
    );
    Ok(())
}

impl Way {
    /// Starts them.
    pub(crate) async fn new(store: &str) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let socket = stand.at("driver.sock");
        let mut command = stand.program("testdriver")?;
        command.args([
            "--endpoint",
            &format!("unix://{socket}"),
            "--node-id",
            NODE,
            "--name",
            DRIVER,
        ]);
        let mut driver = Process::start("driver", command, stand.dir())?;
        driver.line_starting("ready", START).await?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &["--store", store]).await?;
        let url = cloud.urls.first().context("no listener")?.clone();
        let edge = stand.edge(NODE, &url, &[(DRIVER, &socket)]).await?;
        let channel = channel(&stand.cloud_front(DRIVER)).await?;
        Ok(Self { channel, cloud: cloud.process, edge, driver, _stand: stand })
    }

    /// Stops them.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.edge.stop(STOP).await?;
        self.cloud.stop(STOP).await?;
        self.driver.stop(STOP).await
    }
}
