//! `make badnet`: small calls and large answers over a far and lossy network, WebSocket against
//! QUIC.

use std::path::PathBuf;
use std::time::Duration;

use super::load;
use super::load::FILL;
use super::report;
use super::report::Row;
use crate::report::finish;
use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use harness::net::{Net, Shape};
use harness::stand::Stand;
use harness::world::World;
use tokio::time::Instant;

/// Measures calls over an emulated network with a round trip of 100 ms. 1 % of the packets are lost
/// each way, at 2 and 20 Mbit/s. Answers of 4 MiB are measured without loss at 100 Mbit/s.
///
/// csi-cloud and csi-edge run in network namespaces of their own; needs root. Writes one JSON
/// object per row to target/bench/badnet.jsonl. Fails if a target is missed or a call failed.
#[derive(clap::Args)]
pub struct Args {
    /// How long small calls go alone, in s
    #[arg(long, default_value_t = 40)]
    alone: u64,
    /// The duration of the calls with concurrent lists, in s
    #[arg(long, default_value_t = 160)]
    beside: u64,
    /// The rates of the lossy networks, in Mbit/s
    #[arg(long, value_delimiter = ',', default_value = "20,2")]
    rates: Vec<u32>,
    /// How many of the packets are lost, each way
    #[arg(long, default_value_t = 0.01)]
    loss: f64,
    /// How many list at the same time, next to the small calls
    #[arg(long, default_value_t = 1)]
    listers: usize,
    /// How many answers of 4 MiB at 100 Mbit/s
    #[arg(long, default_value_t = 10)]
    lists: usize,
    /// Which packets are lost
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the rows go
    #[arg(long, default_value = "target/bench/badnet.jsonl")]
    out: PathBuf,
}

const TRANSPORTS: [(&str, &str); 2] = [("ws", "wss"), ("quic", "quic")];
/// The rate at which an answer without loss is measured, in Mbit/s.
const CLEAN: u32 = 100;
/// How long the answers without loss may take together.
const PATIENCE: Duration = Duration::from_secs(60);
/// Answers that are not counted: during the first ones TCP and QUIC probe the network's rate.
const WARM: usize = 3;

/// Measures until it is done or stopped. Dropped where it is, the work leaves nothing behind.
///
/// # Errors
/// A target is missed, a call failed, or there can be no network.
pub async fn main(args: Args) -> anyhow::Result<()> {
    tokio::select! {
        result = all(args) => result,
        stopped = proto::host::tasks::signal() => { stopped?; bail!("stopped") }
    }
}

async fn all(args: Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for transport in TRANSPORTS {
        rows.push(clean(transport, &args).await?);
    }
    eprintln!("measured {CLEAN} Mbit/s without loss");
    // At the same time: they mostly wait.
    let networks =
        args.rates.iter().flat_map(|rate| TRANSPORTS.map(|transport| (transport, *rate)));
    let lossy =
        try_join_all(networks.map(|(transport, rate)| lossy(transport, rate, &args))).await?;
    rows.extend(lossy.into_iter().flatten());
    finish(&rows, &report::table(&rows), &report::targets(&rows), &args.out)
}

/// A world over a network, whose driver has 4 MiB to list.
async fn world(scheme: &str, shape: Shape, seed: u64) -> anyhow::Result<World> {
    let world = World::over(Stand::over(Net::new(shape, seed).await?).await?, scheme).await?;
    world.driver.record(false);
    world.driver.fill(FILL.0, FILL.1);
    Ok(world)
}

/// Answers of 4 MiB, one after the other, over a network that only takes time.
async fn clean((path, scheme): (&'static str, &str), args: &Args) -> anyhow::Result<Row> {
    let world = world(scheme, Shape::far(CLEAN, 0.0), args.seed).await?;
    let front = world.front().await?;
    let end = Instant::now() + PATIENCE;
    let warm = load::lists(&front, end, WARM).await;
    let mut lists = load::lists(&front, end, args.lists).await;
    lists.seen.errors += warm.seen.errors;
    let row = Row { dropped: dropped(&world)?, ..Row::lists(path, CLEAN, 0.0, &lists) };
    world.stop().await?;
    Ok(row)
}

/// Small calls alone, then next to answers of 4 MiB.
async fn lossy(
    (path, scheme): (&'static str, &str),
    rate: u32,
    args: &Args,
) -> anyhow::Result<[Row; 3]> {
    let loss = args.loss;
    let world = world(scheme, Shape::far(rate, loss), args.seed).await?;
    let front = world.front().await?;
    let bulk = world.front().await?;
    let alone = load::small_calls(&front, Duration::from_secs(args.alone)).await?;
    let time = Duration::from_secs(args.beside);
    let listing = load::listers(&bulk, args.listers, Instant::now() + time);
    let (lists, beside) = tokio::join!(listing, load::small_calls(&front, time));
    let rows = [
        Row::small(path, rate, loss, &alone),
        Row { beside: true, ..Row::small(path, rate, loss, &beside?) },
        Row { beside: true, dropped: dropped(&world)?, ..Row::lists(path, rate, loss, &lists) },
    ];
    world.stop().await?;
    eprintln!("measured {path} at {rate} Mbit/s");
    Ok(rows)
}

/// How many of the packets that the edge sent its queue dropped.
fn dropped(world: &World) -> anyhow::Result<f64> {
    let [_, to_cloud] = world.stand.net().context("no network")?.counts();
    Ok(to_cloud.dropped as f64 / to_cloud.offered.max(1) as f64)
}
