//! `make scale`: the cost of idle edges for csi-cloud, and the time until they link again.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use super::cases::Overload;
use super::{cases, report};
use crate::report::finish;

/// Measures csi-cloud with many idle edges, over WebSocket and over QUIC.
///
/// csi-cloud and the edges have a core each. Writes one JSON object per row to
/// target/bench/scale.jsonl. Fails if a target is missed.
#[derive(clap::Args)]
pub struct Args {
    /// Only with this number of edges
    #[arg(long)]
    links: Option<usize>,
    /// Only over this transport: ws or quic
    #[arg(long, value_parser = ["ws", "quic"])]
    path: Option<String>,
    /// Only this case: idle, storm or renewals; overload only if it is named (root)
    #[arg(long, value_parser = ["idle", "storm", "renewals", "overload"])]
    case: Option<String>,
    /// How long csi-cloud is away in a storm, in ms
    #[arg(long, default_value_t = 1000)]
    down_ms: u64,
    /// The share of a core that csi-cloud has under overload, in percent
    #[arg(long)]
    share: Option<u64>,
    /// Smaller numbers for overload, for a debug build
    #[arg(long)]
    short: bool,
    /// Where the rows go
    #[arg(long, default_value = "target/bench/scale.jsonl")]
    out: std::path::PathBuf,
}

/// Numbers of idle edges.
const IDLE: [usize; 4] = [500, 1000, 2000, 20_000];
/// With this number of edges, each is called, and all leave and come back.
const DEEP: usize = 2000;
const STORM: usize = 5000;
/// More than that share of a core carries.
const OVERLOAD: Overload = Overload {
    links: 20_000,
    share: 10,
    part: Duration::from_secs(15),
    longest: Duration::from_secs(900),
};
/// A debug build, whose handshakes alone are more than its share for all of the time.
const SHORT: Overload = Overload {
    links: 3000,
    share: 5,
    part: Duration::from_secs(10),
    longest: Duration::from_secs(120),
};
/// The file descriptors of each process that are none of its links.
const OTHERS: usize = 500;

/// Measures, on a core of its own.
///
/// # Errors
/// A target is missed, or a program does not do what it must.
pub async fn main(args: Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    // Each end of a link over WebSocket needs one.
    let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let most_ws = usize::try_from(descriptors)?.saturating_sub(OTHERS);
    for path in ["ws", "quic"] {
        if args.path.as_deref().is_some_and(|only| only != path) {
            continue;
        }
        let fits = |links: &usize| path == "quic" || *links <= most_ws;
        let (idle, storm) =
            args.links.map_or_else(|| (IDLE.to_vec(), STORM), |links| (vec![links], links));
        let wanted = |case| args.case.as_deref().is_none_or(|only| only == case);
        if wanted("idle") {
            for links in idle.into_iter().filter(fits) {
                cases::idle(path, links, args.links.is_some() || links == DEEP, &mut rows).await?;
            }
        }
        if wanted("storm") && fits(&storm) {
            cases::storm(path, storm, Duration::from_millis(args.down_ms), &mut rows).await?;
        }
        let usual = if args.short { SHORT } else { OVERLOAD };
        let links = args.links.unwrap_or(usual.links);
        let share = args.share.unwrap_or(usual.share);
        let overload = Overload { links, share, ..usual };
        if args.case.as_deref() == Some("overload") && fits(&overload.links) {
            cases::overload(path, overload, &mut rows).await?;
        }
        let renewing = args.links.unwrap_or(DEEP);
        if wanted("renewals") && fits(&renewing) {
            cases::renewals(path, renewing, &mut rows).await?;
        }
    }
    finish(&rows, &report::table(&rows), &report::targets(&rows), &args.out)
}
