//! The cost of a call through csi-cloud and csi-edge, over WebSocket and over QUIC, compared with a
//! call to the driver directly.
//!
//! The three paths take turns, so that a slow moment of the machine hits all of them.

pub mod report;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use harness::process::Process;
use harness::stand::{Stand, channel};
use harness::wait::{START, STOP};
use tonic::transport::Channel;

use self::report::Row;
use crate::load;
use crate::load::{Life, Seen};
use crate::report::{finish, median};
use crate::usage;

const NODE: &str = "n1";
const DRIVERS: [(&str, u64); 2] = [("fast.test.edge-csi.io", 0), ("slow.test.edge-csi.io", 50)];
/// Callers, and which of the drivers they call.
const CASES: [(usize, usize); 4] = [(1, 0), (16, 0), (256, 0), (16, 1)];

/// One way to the drivers.
struct Way {
    path: &'static str,
    channels: Vec<Channel>,
    programs: Programs,
}

/// The two programs whose CPU time counts.
enum Programs {
    /// This one, which makes the load, and the driver that it calls; by driver.
    Load(Vec<u32>),
    /// csi-cloud and csi-edge.
    Ours(Box<(Process, Process)>),
}

/// Measures, and writes the rows to `calls.jsonl` in the directory `out`.
///
/// # Errors
/// A target is missed, a call failed, or a program does not start.
pub async fn measure(rounds: usize, time: Duration, out: &Path) -> anyhow::Result<()> {
    let mut stands = [Stand::new().await?, Stand::new().await?, Stand::new().await?];
    let [direct, ws, quic] = &mut stands;
    let drivers = start_drivers(direct).await?;
    let load = Programs::Load(drivers.iter().map(pid).collect::<anyhow::Result<_>>()?);
    let sockets: Vec<_> =
        DRIVERS.iter().map(|(name, _)| (*name, direct.at(&format!("{name}.sock")))).collect();
    let ways = [
        Way { path: "direct", channels: channels(&sockets).await?, programs: load },
        linked(ws, "ws", "wss://127.0.0.1:0", &sockets).await?,
        linked(quic, "quic", "quic://127.0.0.1:0", &sockets).await?,
    ];
    let mut rows = Vec::new();
    for (callers, driver) in CASES {
        rows.extend(rows_of(&ways, callers, driver, rounds, time).await?);
        eprintln!("measured {callers} callers, driver {} ms", DRIVERS.map(|(_, ms)| ms)[driver]);
    }
    let finished =
        finish(&rows, &report::table(&rows), &report::targets(&rows), &out.join("calls.jsonl"));
    for way in ways {
        let Programs::Ours(programs) = way.programs else { continue };
        let (cloud, edge) = *programs;
        edge.stop(STOP).await?;
        cloud.stop(STOP).await?;
    }
    for driver in drivers {
        driver.stop(STOP).await?;
    }
    finished
}

async fn start_drivers(stand: &Stand) -> anyhow::Result<Vec<Process>> {
    let mut drivers = Vec::new();
    for (name, ms) in DRIVERS {
        let mut command = stand.program("testdriver")?;
        let endpoint = format!("unix://{}", stand.at(&format!("{name}.sock")));
        command.args(["--endpoint", &endpoint, "--node-id", NODE, "--name", name]);
        // It answers a call that arrives twice at once with an error, which the load counts.
        command.args(["--delay-ms", &ms.to_string(), "--refuse-overlaps"]);
        let mut driver = Process::start(name, command, stand.dir())?;
        driver.line_starting("ready", START).await?;
        drivers.push(driver);
    }
    Ok(drivers)
}

async fn channels(sockets: &[(&str, String)]) -> anyhow::Result<Vec<Channel>> {
    let mut channels = Vec::new();
    for (_, socket) in sockets {
        channels.push(channel(socket).await?);
    }
    Ok(channels)
}

async fn linked(
    stand: &mut Stand,
    path: &'static str,
    listen: &str,
    sockets: &[(&str, String)],
) -> anyhow::Result<Way> {
    let names: Vec<_> = sockets.iter().map(|(name, _)| *name).collect();
    // `durable` measures the cost of the disk.
    let cloud = stand.cloud(&[listen], &names, &["--store", "memory:"]).await?;
    let url = cloud.urls.first().context("no listener")?.clone();
    let at: Vec<_> = sockets.iter().map(|(name, socket)| (*name, socket.as_str())).collect();
    let edge = stand.edge(NODE, &url, &at).await?;
    let fronts: Vec<_> = names.iter().map(|name| (*name, stand.cloud_front(name))).collect();
    Ok(Way {
        path,
        channels: channels(&fronts).await?,
        programs: Programs::Ours(Box::new((cloud.process, edge))),
    })
}

/// All ways, one after the other, round after round.
async fn rows_of(
    ways: &[Way; 3],
    callers: usize,
    driver: usize,
    rounds: usize,
    time: Duration,
) -> anyhow::Result<Vec<Row>> {
    let mut seen_in: Vec<Vec<Round>> = Vec::new();
    for _ in 0..rounds {
        let mut round = Vec::new();
        for way in ways {
            let before = way.cpu(driver)?;
            let channel = way.channels.get(driver).context("no such driver")?;
            let seen = load::run(channel, NODE, callers, time, Life::Whole).await?;
            let after = way.cpu(driver)?;
            round.push((seen, [0, 1].map(|i| after[i].saturating_sub(before[i]))));
        }
        seen_in.push(round);
    }
    let row = |(at, way): (usize, &Way)| {
        let of = |value: &dyn Fn(&Round, &Round) -> f64| {
            median(seen_in.iter().map(|round| value(&round[at], &round[0])).collect())
        };
        let [cloud_peak_kib, edge_peak_kib] = way.peaks()?;
        Ok(Row {
            path: way.path,
            callers,
            driver_ms: DRIVERS[driver].1,
            p50_us: of(&|(seen, _), _| seen.percentile(0.5)),
            p99_us: of(&|(seen, _), _| seen.percentile(0.99)),
            calls_per_s: of(&|(seen, _), _| seen.calls_per_s()),
            errors: seen_in.iter().map(|round| round[at].0.errors).sum(),
            p50_ratio: of(&|(seen, _), (direct, _)| seen.percentile(0.5) / direct.percentile(0.5)),
            calls_ratio: of(&|(seen, _), (direct, _)| seen.calls_per_s() / direct.calls_per_s()),
            cpu_us: [0, 1].map(|program| of(&|round, _| cpu_us(round)[program])),
            cpu_ratio: of(&|round, direct| {
                cpu_us(round).iter().sum::<f64>() / cpu_us(direct).iter().sum::<f64>()
            }),
            cloud_peak_kib,
            edge_peak_kib,
        })
    };
    ways.iter().enumerate().map(row).collect()
}

/// What the load saw, and the CPU time of the two programs.
type Round = (Seen, [Duration; 2]);

/// The CPU time for a call, in µs.
fn cpu_us((seen, cpu): &Round) -> [f64; 2] {
    cpu.map(|cpu| cpu.as_micros() as f64 / seen.latencies.len() as f64)
}

impl Way {
    /// CPU time of its two programs so far.
    fn cpu(&self, driver: usize) -> anyhow::Result<[Duration; 2]> {
        let pids = match &self.programs {
            Programs::Load(drivers) => {
                [std::process::id(), *drivers.get(driver).context("no such driver")?]
            }
            Programs::Ours(ours) => [pid(&ours.0)?, pid(&ours.1)?],
        };
        Ok([usage::cpu(pids[0])?, usage::cpu(pids[1])?])
    }

    /// Peak memory of csi-cloud and csi-edge so far, in KiB.
    fn peaks(&self) -> anyhow::Result<[u64; 2]> {
        let Programs::Ours(ours) = &self.programs else { return Ok([0; 2]) };
        Ok([usage::peak_kib(pid(&ours.0)?)?, usage::peak_kib(pid(&ours.1)?)?])
    }
}

fn pid(process: &Process) -> anyhow::Result<u32> {
    process.pid().context("a program of ours has ended; see its log")
}
