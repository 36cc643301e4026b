//! The command: which cases run, and for how long.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout};

use super::memory::Bound;
use super::report::Row;
use super::{
    attacks, claims, clocks, controls, door, elections, endless, frames, initials, invented,
    leaders, loops, orders, removal, replays, report, scopes, secrets, segments, tokens, unanimous,
    unread, unwelcomed, visitors,
};
use crate::report::finish;

/// The longest time of a case: that of nine floods of a minute over each transport, and more.
const LONGEST: Duration = Duration::from_secs(1_800);

/// Hostile peers against csi-cloud, over WebSocket and QUIC.
///
/// Each peer and csi-cloud run on this machine, and csi-cloud is started anew for each row. Writes
/// one JSON object per row to target/bench/hostile.jsonl. Fails if a row is out of its bounds.
#[derive(clap::Args)]
pub struct Args {
    /// Only these cases
    #[arg(long = "case")]
    cases: Vec<Case>,
    /// Smaller numbers, for a debug build
    #[arg(long)]
    short: bool,
    /// Where the rows go
    #[arg(long, default_value = "target/bench/hostile.jsonl")]
    out: PathBuf,
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Case {
    /// Silent TCP connections from many addresses, and slow ones
    Silent,
    /// Authenticated connections without an upgrade, and without a hello
    Unwelcomed,
    /// Edges that take nothing of what csi-cloud sends
    Unread,
    /// `node remove` at each step of a link's life
    Remove,
    /// Edges that change what all are told
    Scopes,
    /// QUIC Initials from addresses that never answer
    Initials,
    /// Invented drivers, topology segments and pods
    Invented,
    /// Floods of HTTP/2 frames
    Frames,
    /// What is logged, or costs a peer nothing, again and again
    Loops,
    /// Strangers at the page's port
    Page,
    /// Tokens that are wrong, and two edges of one name
    Tokens,
    /// A node that claims to be at another node's place
    Segments,
    /// Two claimants of an id without a home
    Claims,
    /// An edge that is no controller of shared drivers
    Elections,
    /// Marked secrets in every RPC
    Secrets,
    /// A cloud that asks what csi-cloud never sends
    Orders,
    /// Control characters in every text of a peer
    Controls,
    /// Leases of direct volumes that are another node's
    Replays,
    /// One node whose driver is no use
    Unanimous,
    /// Lists that do not end
    Endless,
    /// `node remove` during attacks
    Attacks,
    /// Certificates that end, and clocks that are a day off
    Clocks,
}

/// Cases that do little but wait, and run at the same time.
const WAITING: [Case; 3] = [Case::Unread, Case::Remove, Case::Clocks];

/// Runs the cases that wait at the same time, and then the others one after the other.
///
/// # Errors
/// A row is out of its bounds, or a program does not do what it must.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let _bound = Bound::new();
    let wanted = Case::value_variants().iter().copied();
    let wanted = wanted.filter(|case| args.cases.is_empty() || args.cases.contains(case));
    let (waiting, working): (Vec<_>, Vec<_>) = wanted.partition(|case| WAITING.contains(case));
    let waiting = waiting.into_iter().map(|case| measured(case, args.short));
    let mut rows = try_join_all(waiting).await?.concat();
    for case in working {
        rows.extend(measured(case, args.short).await?);
    }
    finish(&rows, &report::table(&rows), &report::targets(&rows), &args.out)
}

/// The rows of a case.
async fn measured(case: Case, short: bool) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let begun = Instant::now();
    let measured = timeout(LONGEST, run(case, short, &mut rows)).await;
    eprint!("{}", report::table(&rows));
    eprintln!("{case:?} took {:.1} s", begun.elapsed().as_secs_f64());
    measured.with_context(|| format!("{case:?} takes more than {LONGEST:?}"))??;
    Ok(rows)
}

async fn run(case: Case, short: bool, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    match case {
        Case::Silent => door::run(short, rows).await,
        Case::Unwelcomed => unwelcomed::run(short, rows).await,
        Case::Unread => unread::run(rows).await,
        Case::Remove => removal::run(rows).await,
        Case::Scopes => scopes::run(short, rows).await,
        Case::Initials => initials::run(short, rows).await,
        Case::Invented => invented::run(short, rows).await,
        Case::Frames => frames::run(short, rows).await,
        Case::Loops => loops::run(short, rows).await,
        Case::Page => visitors::run(short, rows).await,
        Case::Tokens => tokens::run(short, rows).await,
        Case::Segments => segments::run(short, rows).await,
        Case::Claims => claims::run(short, rows).await,
        Case::Elections => elections::run(short, rows).await,
        Case::Secrets => secrets::run(rows).await,
        Case::Orders => {
            orders::run(short, rows).await?;
            leaders::run(short, rows).await
        }
        Case::Controls => controls::run(rows).await,
        Case::Replays => replays::run(short, rows).await,
        Case::Unanimous => unanimous::run(short, rows).await,
        Case::Endless => endless::run(short, rows).await,
        Case::Attacks => attacks::run(rows).await,
        Case::Clocks => clocks::run(rows).await,
    }
}
