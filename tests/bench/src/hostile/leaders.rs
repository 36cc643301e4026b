//! A csi-cloud that would keep all others out of an edge, or fill the edge's log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use harness::hostile_cloud::{caller, opened};
use harness::raw::{RawAnswer, RawClient};
use harness::requests::create;
use proto::csi::{Method, frame};
use proto::host::tasks::Tasks;
use proto::http2::forward::LEADER_EPOCH;
use tokio::time::timeout;
use tonic::Code;

use super::frames::{CORES, flood_with_acks};
use super::meter::Meter;
use super::orders::{Commanded, EDGE_MIB};
use super::report::Row;
use super::world::{DRIVER, TRANSPORTS};

/// How many calls state the last epoch that there is.
const FAR: usize = 1_000;
/// How long csi-edge is flooded.
const TIME: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(5);
/// What is logged.
const LOG: &str = "info";

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    rows.extend(try_join_all(TRANSPORTS.map(far_leader)).await?);
    for transport in TRANSPORTS {
        rows.push(flooded(transport, short).await?);
    }
    Ok(())
}

/// Calls of an epoch that no other csi-cloud would ever reach, and then one of an honest leader.
async fn far_leader(transport: &'static str) -> anyhow::Result<Row> {
    let at = Commanded::new(transport, LOG).await?;
    let meter = Meter::begin(&at.edge)?;
    let tasks = Tasks::default();
    let client = caller(at.cloud.welcome().await?, DRIVER, &tasks).await?;
    let mut refused = 0;
    for number in 0..FAR {
        let answer = created_by(&client, u64::MAX, &format!("far-{number}")).await?;
        refused += usize::from(answer.code() != Code::Ok);
    }
    let made = at.driver.volumes().len();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let is_heard = created_by(&client, now, "honest").await?.code() == Code::Ok;
    let used = meter.end()?;
    tasks.stop();
    at.stop().await?;
    Ok(Row {
        case: format!("a cloud of leader epoch 2^64 - 1, {FAR} creates"),
        transport,
        asked: "0 made, an honest one is heard, log <= 100 KiB, csi-edge <= 64 MiB",
        measured: format!(
            "{refused} refused, {made} made, an honest one {} heard, {used}",
            if is_heard { "is" } else { "is not" }
        ),
        ok: refused == FAR && made == 0 && is_heard && used.is_quiet() && used.peak <= EDGE_MIB,
    })
}

/// A create by the csi-cloud of this epoch.
async fn created_by(client: &RawClient, epoch: u64, name: &str) -> anyhow::Result<RawAnswer> {
    let body = frame::frame(&create(name));
    let epoch = epoch.to_string();
    client.send(Method::CreateVolume.path(), body, &[(LEADER_EPOCH.as_str(), &epoch)]).await
}

/// Acknowledges PINGs that csi-edge never sent, over one link after the other.
async fn flooded(transport: &'static str, short: bool) -> anyhow::Result<Row> {
    let time = if short { SHORT } else { TIME };
    let at = Commanded::new(transport, LOG).await?;
    let meter = Meter::begin(&at.edge)?;
    let tasks = Tasks::default();
    let sent = AtomicU64::new(0);
    // csi-edge that dials no more ends it before.
    if let Ok(ended) = timeout(time, flood(&at, &tasks, &sent)).await {
        ended?;
    }
    tasks.stop();
    let used = meter.end()?;
    at.stop().await?;
    let sent = sent.load(Ordering::Relaxed);
    Ok(Row {
        case: "a cloud that floods csi-edge with PING acks".into(),
        transport,
        asked: "log <= 100 KiB, csi-edge <= 64 MiB and 25 % of a core",
        measured: format!("{used}, {sent} frames"),
        ok: sent > 0 && used.is_quiet() && used.peak <= EDGE_MIB && used.cores <= CORES,
    })
}

/// Floods one link after the other, until csi-edge dials no more.
async fn flood(at: &Commanded, tasks: &Tasks, sent: &AtomicU64) -> anyhow::Result<()> {
    loop {
        let link = at.cloud.welcome().await?;
        // It may close the link at any time, which is its right.
        if let Ok(io) = opened(link, tasks).await {
            flood_with_acks(io, sent).await;
        }
    }
}
