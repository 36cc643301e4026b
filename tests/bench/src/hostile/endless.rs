//! A node whose driver lists without end: large pages with a new token each, or tokens in a circle.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use drivers::testdriver::{Fault, TestDriver, Times};
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use tokio::time::interval;

use super::fleet::Fleet;
use super::report::Row;
use super::served::{Served, slack};
use super::world::{DRIVER, TRANSPORTS};

/// The pages of a list that does not end in a circle.
const PAGES: u64 = 2_000;
/// The bytes of a page: a message has at most 4 MiB.
const PAGE: usize = (4 << 20) - 4096;
/// The entries of a page.
const ENTRIES: u64 = 1_000;
/// The pages of 4 MiB that a list of 32 MiB has, and the one beyond.
const READ: u64 = 9;
/// How many pages a circle has.
const CIRCLE: u64 = 3;
/// Between two lists of the caller. A sidecar lists once a minute. One that never rested would take
/// a core of its own, and others would wait for that.
const EVERY: Duration = Duration::from_millis(10);
/// How long calls are measured.
const TIME: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(1);
/// How long the node may take to be set apart.
const SOON: Duration = Duration::from_secs(30);
/// The memory that csi-cloud may take more, in MiB, and what a node's quota lets it keep.
const MORE: u64 = 64;
const KEPT: u64 = 32;
const LISTER: &str = "a-lister";
const ASKED: &str = "refused, RSS + <= 64 MiB and its quota of 32, others' p99 <= 2 x";
const SHORT_ASKED: &str =
    "refused, RSS + <= 64 MiB and its quota of 32, others' p99 <= 2 x or + 100 ms";

/// How a list goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Long,
    Circle,
}

pub(super) async fn run(short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let [first, second] = TRANSPORTS;
    rows.push(listed(first, List::Long, short).await?);
    rows.push(listed(second, List::Circle, short).await?);
    if !short {
        rows.push(listed(second, List::Long, short).await?);
        rows.push(listed(first, List::Circle, short).await?);
    }
    Ok(())
}

async fn listed(transport: &'static str, list: List, short: bool) -> anyhow::Result<Row> {
    let time = if short { SHORT } else { TIME };
    let mut fleet = Fleet::new(transport, "scope = \"node\"").await?;
    let served = Served::new(&mut fleet.world).await?;
    let tasks = Tasks::default();
    let front = fleet.front.clone();
    tasks.spawn_until_stop("list", async move {
        let mut ticks = interval(EVERY);
        while front.call(Method::ListVolumes.path(), &[]).await.is_ok() {
            ticks.tick().await;
        }
    });
    drop(page(list, 0));
    let quiet = served.load(&fleet.world, time).await?;
    let before = fleet.world.peak_mib()?;
    let lister = TestDriver::new(DRIVER, LISTER);
    lister.record(false);
    let pages = Fault::Pages(Arc::new(move |at| page(list, at)));
    lister.inject(Method::ListVolumes.name(), pages, Times::All);
    fleet.join(LISTER, lister).await?;
    let load = served.load(&fleet.world, time).await?;
    let reasons = fleet.set_apart(LISTER, SOON).await?;
    let grown = fleet.world.peak_mib()?.saturating_sub(before);
    tasks.stop();
    served.stop().await?;
    fleet.stop().await?;
    let case = match list {
        List::Long => format!("list of {PAGES} pages of 4 MiB"),
        List::Circle => "list whose tokens go in a circle".into(),
    };
    Ok(Row {
        case,
        transport,
        asked: if short { SHORT_ASKED } else { ASKED },
        measured: format!(
            "{}, +{grown} MiB, p99 {:.1} -> {:.1} ms",
            if reasons.is_empty() { "not refused".into() } else { reasons.join(", ") },
            quiet.p99,
            load.p99
        ),
        ok: !reasons.is_empty() && grown <= MORE + KEPT && load.is_near(&quiet, slack(short)),
    })
}

/// The page with this number of a list that is very long.
pub(super) fn long(at: u64) -> Bytes {
    page(List::Long, at)
}

/// The page with this number. Those that a quota lets csi-cloud read are made once, before: the
/// calls that are measured run in this process too.
fn page(list: List, at: u64) -> Bytes {
    static MADE: [OnceLock<Vec<Bytes>>; 2] = [OnceLock::new(), OnceLock::new()];
    let made = MADE[usize::from(list == List::Circle)]
        .get_or_init(|| (0..READ).map(|at| made(list, at)).collect());
    usize::try_from(at)
        .ok()
        .and_then(|at| made.get(at).cloned())
        .unwrap_or_else(|| self::made(list, at))
}

/// Makes a page: volumes with ids of their own, and the next token.
fn made(list: List, at: u64) -> Bytes {
    let size = PAGE / usize::try_from(ENTRIES).unwrap_or(1) - 64;
    let context = [("padding".to_owned(), "x".repeat(size))];
    let entry = |number: u64| csi::list_volumes_response::Entry {
        volume: Some(csi::Volume {
            volume_id: format!("invented-{number}"),
            volume_context: context.clone().into(),
            ..Default::default()
        }),
        status: None,
    };
    let first = at * ENTRIES;
    let entries = (first..first + ENTRIES).map(entry).collect();
    let next = match list {
        List::Long if at + 1 < PAGES => (at + 1).to_string(),
        List::Long => String::new(),
        List::Circle => (at % CIRCLE + 1).to_string(),
    };
    csi::ListVolumesResponse { entries, next_token: next }.encode_to_vec().into()
}
