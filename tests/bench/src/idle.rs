//! `make bench CASE=idle`: what a csi-edge costs its node that has nothing to do, linked and in an
//! outage.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::future::{try_join, try_join_all};
use harness::net::{Net, Shape};
use harness::stand::Stand;
use harness::world::World;
use tokio::time::{Instant, sleep};

use crate::figures;
use crate::figures::Figure;
use crate::report::finish;
use crate::usage;

/// What a csi-edge costs its node that has nothing to do, linked and in an outage: bytes on the
/// wire, CPU, wake-ups, disk writes.
///
/// csi-cloud and csi-edge run in network namespaces of their own; needs root. Writes one JSON
/// object per figure to target/bench/idle.jsonl. Fails if a target is missed.
#[derive(clap::Args)]
pub struct Args {
    /// How long each csi-edge is watched
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Where the figures go
    #[arg(long, default_value = "target/bench/idle.jsonl")]
    out: PathBuf,
}

/// Until the work of a start is done.
const SETTLED: Duration = Duration::from_secs(30);
/// Until csi-edge dials in rounds, and no longer every few seconds.
const IN_ROUNDS: Duration = Duration::from_secs(360);
/// Endpoints besides the first one, which all are swallowed.
const OTHERS: [&str; 3] = ["wss://10.77.0.1:1", "wss://10.77.0.1:2", "quic://10.77.0.1:3"];
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// The kernel's counters, and the log's length.
struct Counters {
    at: Instant,
    /// Bytes of IP packets, both ways.
    wire: u64,
    cpu: Duration,
    wakeups: u64,
    written: u64,
    logged: usize,
}

/// What a csi-edge used, each second.
struct Spent {
    wire: f64,
    /// The part of a core.
    cores: f64,
    wakeups: f64,
    written: f64,
    logged: f64,
    resident_kib: u64,
}

/// Measures until it is done or stopped. Dropped where it is, the work leaves nothing behind.
///
/// # Errors
/// A target is missed, or there can be no network.
pub async fn main(args: Args) -> anyhow::Result<()> {
    tokio::select! {
        result = all(args) => result,
        stopped = proto::host::tasks::signal() => { stopped?; bail!("stopped") }
    }
}

async fn all(args: Args) -> anyhow::Result<()> {
    let time = Duration::from_secs(60 * args.minutes);
    eprintln!("this takes {} minutes", (IN_ROUNDS + time).as_secs() / 60 + 1);
    // At the same time: they only wait.
    let links = try_join_all(["quic", "wss"].map(|scheme| link(scheme, time)));
    let (links, outage) = try_join(links, outage(time)).await?;
    let figures = [links.concat(), outage].concat();
    finish(&figures, &figures::table(&figures), &figures::targets(&figures), &args.out)
}

/// An idle link.
async fn link(scheme: &str, time: Duration) -> anyhow::Result<Vec<Figure>> {
    let world = world(scheme, &[]).await?;
    sleep(SETTLED).await;
    let spent = spent(&world, time).await?;
    world.stop().await?;
    // Over TCP, 8.1 on an idle machine. On a busy one answers come too late to carry the
    // acknowledgements too.
    let most = if scheme == "quic" { 4.0 } else { 10.0 };
    let what = format!("idle link, {scheme}");
    let wire = Figure::new(format!("{what}: on the wire"), spent.wire * DAY / 1e6, "MB a day");
    Ok([vec![wire.at_most(most)], spent.others(&what)].concat())
}

/// An outage that swallows everything, with two endpoints of each transport.
async fn outage(time: Duration) -> anyhow::Result<Vec<Figure>> {
    let world = world("quic", &OTHERS.map(|url| ["--cloud", url]).concat()).await?;
    world.stand.net().context("no network")?.swallow();
    sleep(IN_ROUNDS).await;
    let spent = spent(&world, time).await?;
    // csi-cloud and csi-edge end by themselves.
    drop(world);
    let what = "outage";
    let wire = Figure::new(format!("{what}: on the wire"), spent.wire * HOUR / 1e6, "MB an hour");
    let log = Figure::new(format!("{what}: log"), spent.logged * HOUR / 1e3, "kB an hour");
    Ok([vec![wire.at_most(1.5), log.at_most(100.0)], spent.others(what)].concat())
}

/// A csi-edge with a state directory, linked over a network that does nothing to packets.
async fn world(scheme: &str, more: &[&str]) -> anyhow::Result<World> {
    let stand = Stand::over(Net::new(Shape::default(), 1).await?).await?;
    let (listen, state) = (format!("{scheme}://{}:0", stand.host()), stand.at("state"));
    World::behind(stand, &listen, &[&["--state", &state], more].concat()).await
}

/// Watches the csi-edge for so long.
async fn spent(world: &World, time: Duration) -> anyhow::Result<Spent> {
    let before = Counters::now(world)?;
    sleep(time).await;
    let after = Counters::now(world)?;
    let seconds = (after.at - before.at).as_secs_f64();
    let rate = |before: u64, after: u64| (after - before) as f64 / seconds;
    Ok(Spent {
        wire: rate(before.wire, after.wire),
        cores: (after.cpu - before.cpu).as_secs_f64() / seconds,
        wakeups: rate(before.wakeups, after.wakeups),
        written: rate(before.written, after.written),
        logged: (after.logged - before.logged) as f64 / seconds,
        resident_kib: usage::resident_kib(pid(world)?)?,
    })
}

fn pid(world: &World) -> anyhow::Result<u32> {
    world.edge.pid().context("csi-edge has ended")
}

impl Counters {
    fn now(world: &World) -> anyhow::Result<Self> {
        let pid = pid(world)?;
        let counts = world.stand.net().context("no network")?.counts();
        Ok(Self {
            at: Instant::now(),
            wire: counts.iter().map(|count| count.bytes).sum(),
            cpu: usage::cpu(pid)?,
            wakeups: usage::wakeups(pid)?,
            written: usage::written(pid)?,
            logged: world.edge.log().len(),
        })
    }
}

impl Spent {
    /// The figures that have no target.
    fn others(&self, what: &str) -> Vec<Figure> {
        let figure = |name: &str, value, unit| Figure::new(format!("{what}: {name}"), value, unit);
        vec![
            figure("CPU", self.cores * 100.0, "% of a core"),
            figure("wake-ups", self.wakeups, "a second"),
            figure("written to disk", self.written * HOUR / 1e3, "kB an hour"),
            figure("resident", self.resident_kib as f64 / 1024.0, "MiB"),
        ]
    }
}
