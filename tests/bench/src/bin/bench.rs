//! `make bench`: what a call costs through csi-cloud and csi-edge, against calling the driver directly; what a decision,
//! a start and a list cost csi-cloud when it knows much; and what it costs that creates are durable.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bench::bench::figures::{self, Figure};
use bench::bench::grown::Size;
use bench::bench::load::{self, Life, Seen};
use bench::bench::report::{self, Row, median};
use bench::bench::{durable, guest, routing, usage};
use clap::{Parser, ValueEnum};
use harness::process::Process;
use harness::stand::{Stand, channel};
use harness::wait::{START, STOP};
use tonic::transport::Channel;

/// Measures calls through csi-cloud and csi-edge, over WebSocket and over QUIC, against the driver directly; csi-cloud
/// with very many nodes and volumes; creates with the store on a disk against the store in memory; and, if asked for,
/// direct volumes in a real guest.
///
/// Writes one JSON object per row to CASE.jsonl. Fails if a target is missed or a call failed.
#[derive(Parser)]
struct Args {
    /// What to measure; may be given more than once
    #[arg(long = "case", value_enum, default_values = ["calls", "routing", "durable"])]
    cases: Vec<Case>,
    /// How often each measurement is repeated; figures are medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one measurement takes, in ms
    #[arg(long, default_value_t = 1500)]
    time_ms: u64,
    /// The directory where the rows go, and while it runs the stores: on a disk
    #[arg(long, default_value = "target/bench")]
    out: std::path::PathBuf,
    /// How many nodes csi-cloud knows in `routing`
    #[arg(long, default_value_t = 10_000)]
    nodes: usize,
    /// How many volumes it knows there
    #[arg(long, default_value_t = 1_000_000)]
    homes: usize,
    /// How many of these were made through csi-cloud, which keeps the intent of each create [default: all]
    #[arg(long)]
    intents: Option<usize>,
    /// Where the kernel of `guest` was unpacked
    #[arg(long, default_value = "target/guest/kernel")]
    kernel: std::path::PathBuf,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Calls, against calling the driver directly
    Calls,
    /// csi-cloud with very many nodes and volumes
    Routing,
    /// Creates with the store on a disk, against the store in memory
    Durable,
    /// A direct volume in a real guest, against a directory shared with it: `make guest` says what it needs
    Guest,
}

const NODE: &str = "n1";
const DRIVERS: [(&str, u64); 2] = [("fast.test.edge-csi.io", 0), ("slow.test.edge-csi.io", 50)];
/// Callers, and which of the drivers they call.
const CASES: [(usize, usize); 4] = [(1, 0), (16, 0), (256, 0), (16, 1)];

/// One way to the drivers.
struct Way {
    path: &'static str,
    channels: Vec<Channel>,
    /// csi-cloud and csi-edge, if they are on the way.
    programs: Option<(Process, Process)>,
}

fn main() -> ExitCode {
    proto::host::program::run(|| proto::host::program::runtime(2)?.block_on(bench(Args::parse())))
}

async fn bench(args: Args) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.out)?;
    let mut missed = Vec::new();
    for case in [Case::Calls, Case::Routing, Case::Durable, Case::Guest] {
        if args.cases.contains(&case)
            && let Err(error) = one(case, &args).await
        {
            missed.push(format!("{case:?}: {error:#}"));
        }
    }
    anyhow::ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}

async fn one(case: Case, args: &Args) -> anyhow::Result<()> {
    let finish = |figures: Vec<Figure>, name| {
        let (table, targets) = (figures::table(&figures), figures::targets(&figures));
        report::finish(&figures, &table, &targets, &args.out.join(name))
    };
    match case {
        Case::Calls => calls(args).await,
        Case::Routing => {
            let intents = args.intents.unwrap_or(args.homes);
            let size = Size { nodes: args.nodes, homes: args.homes, intents };
            finish(routing::measure(size, &args.out).await?, "routing.jsonl")
        }
        Case::Durable => {
            let time = Duration::from_millis(args.time_ms);
            finish(durable::measure(args.rounds, time, &args.out).await?, "durable.jsonl")
        }
        Case::Guest => {
            let time = Duration::from_millis(args.time_ms);
            finish(guest::measure(args.rounds, time, &args.kernel).await?, "guest.jsonl")
        }
    }
}

async fn calls(args: &Args) -> anyhow::Result<()> {
    let mut stands = [Stand::new().await?, Stand::new().await?, Stand::new().await?];
    let [direct, ws, quic] = &mut stands;
    let drivers = start_drivers(direct).await?;
    let sockets: Vec<_> =
        DRIVERS.iter().map(|(name, _)| (*name, direct.at(&format!("{name}.sock")))).collect();
    let ways = [
        Way { path: "direct", channels: channels(&sockets).await?, programs: None },
        linked(ws, "ws", "wss://127.0.0.1:0", &sockets).await?,
        linked(quic, "quic", "quic://127.0.0.1:0", &sockets).await?,
    ];
    let mut rows = Vec::new();
    for (callers, driver) in CASES {
        rows.extend(measure(&ways, callers, driver, args).await?);
        eprintln!("measured {callers} callers, driver {} ms", DRIVERS.map(|(_, ms)| ms)[driver]);
    }
    let finished = report::finish(
        &rows,
        &report::table(&rows),
        &report::targets(&rows),
        &args.out.join("calls.jsonl"),
    );
    for (cloud, edge) in ways.into_iter().filter_map(|way| way.programs) {
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
        // It answers a call that comes twice at once with an error: the load then counts it.
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
    // What the disk costs is `durable`'s to say.
    let cloud = stand.cloud(&[listen], &names, &["--store", "memory:"]).await?;
    let url = cloud.urls.first().context("no listener")?.clone();
    let at: Vec<_> = sockets.iter().map(|(name, socket)| (*name, socket.as_str())).collect();
    let edge = stand.edge(NODE, &url, &at).await?;
    let fronts: Vec<_> = names.iter().map(|name| (*name, stand.cloud_front(name))).collect();
    Ok(Way { path, channels: channels(&fronts).await?, programs: Some((cloud.process, edge)) })
}

/// All ways, one after the other, round after round, so that a slow moment of the machine hits all of them.
async fn measure(
    ways: &[Way; 3],
    callers: usize,
    driver: usize,
    args: &Args,
) -> anyhow::Result<Vec<Row>> {
    let time = Duration::from_millis(args.time_ms);
    let mut rounds: Vec<Vec<(Seen, [Duration; 2])>> = Vec::new();
    for _ in 0..args.rounds {
        let mut round = Vec::new();
        for way in ways {
            let before = way.cpu()?;
            let channel = way.channels.get(driver).context("no such driver")?;
            let seen = load::run(channel, NODE, callers, time, Life::Whole).await?;
            let after = way.cpu()?;
            round.push((seen, [0, 1].map(|i| after[i].saturating_sub(before[i]))));
        }
        rounds.push(round);
    }
    let row = |(at, way): (usize, &Way)| {
        let of = |value: &dyn Fn(&Seen, &Seen, &[Duration; 2]) -> f64| {
            median(
                rounds.iter().map(|round| value(&round[at].0, &round[0].0, &round[at].1)).collect(),
            )
        };
        let cpu = |program: usize| {
            of(&|seen, _, cpu| cpu[program].as_micros() as f64 / seen.latencies.len() as f64)
        };
        let [cloud_peak_kib, edge_peak_kib] = way.peaks()?;
        Ok(Row {
            path: way.path,
            callers,
            driver_ms: DRIVERS[driver].1,
            p50_us: of(&|seen, _, _| seen.percentile(0.5)),
            p99_us: of(&|seen, _, _| seen.percentile(0.99)),
            calls_per_s: of(&|seen, _, _| seen.calls_per_s()),
            errors: rounds.iter().map(|round| round[at].0.errors).sum(),
            p50_ratio: of(&|seen, direct, _| seen.percentile(0.5) / direct.percentile(0.5)),
            calls_ratio: of(&|seen, direct, _| seen.calls_per_s() / direct.calls_per_s()),
            cloud_cpu_us: cpu(0),
            edge_cpu_us: cpu(1),
            cloud_peak_kib,
            edge_peak_kib,
        })
    };
    ways.iter().enumerate().map(row).collect()
}

impl Way {
    /// CPU time of csi-cloud and csi-edge so far.
    fn cpu(&self) -> anyhow::Result<[Duration; 2]> {
        let Some((cloud, edge)) = &self.programs else { return Ok([Duration::ZERO; 2]) };
        Ok([usage::cpu(pid(cloud)?)?, usage::cpu(pid(edge)?)?])
    }

    /// Peak memory of csi-cloud and csi-edge so far, in KiB.
    fn peaks(&self) -> anyhow::Result<[u64; 2]> {
        let Some((cloud, edge)) = &self.programs else { return Ok([0; 2]) };
        Ok([usage::peak_kib(pid(cloud)?)?, usage::peak_kib(pid(edge)?)?])
    }
}

fn pid(process: &Process) -> anyhow::Result<u32> {
    process.pid().context("a program of ours has ended; see its log")
}
