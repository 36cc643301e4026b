//! The budget of log lines that peers cause.
//!
//! A peer must not fill a disk with our log, nor hide what happens to others in it. So each line
//! that a peer can cause is written with [`peer_warn`] or [`peer_info`], which name the peer.
//! Strangers share a part of the budget; each node and each driver has its own. The first line of a
//! kind in an hour is always written. A line tells how many of its peer were left out before it.
//! What is left out is an event at `debug` with `suppressed=true`, for whoever looks for one thing.
//!
//! Lines about certificates, commands of operators, homes, leases, leaders and disks are written
//! with tracing's own macros, and none is left out. A test of the contracts has the list.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Metadata;

use crate::host::limit::{Bucket, Rate};
use crate::names::{DriverName, NodeName};

/// Lines of all peers together. 480 of 200 bytes are 96 KiB a minute.
const TOTAL: Rate = Rate::per_second(8, 40);
/// Lines of one node, driver or other peer.
const EACH: Rate = Rate::per_second(1, 20);
/// Lines of all those together that have not shown a certificate or token yet.
const STRANGERS: Rate = Rate::per_second(1, 5);
/// The first line of a kind in this time is always written.
const FIRST: Duration = Duration::from_secs(3600);
/// Peers that have been quiet are forgotten once in this time.
const SWEEP: Duration = Duration::from_secs(600);

/// The peer that causes a line of the log.
#[derive(Clone, Copy, Debug)]
pub enum LogPeer<'a> {
    /// Anybody at a listener, before a certificate or token was found good.
    Stranger,
    /// The node of this name, which its certificate shows.
    Node(&'a NodeName),
    /// The driver of this name, at a node; in the cloud, its sidecars.
    Driver(&'a DriverName),
    /// A csi-cloud, seen from a node or from a socket relay.
    Cloud,
    /// Another caller: a socket relay, or whoever calls a front of a node.
    Caller,
}

/// The names of the sorts of peers, as the metric has them.
const SORTS: [&str; 5] = ["stranger", "node", "driver", "cloud", "caller"];

impl<'a> LogPeer<'a> {
    fn sort(self) -> usize {
        match self {
            Self::Stranger => 0,
            Self::Node(_) => 1,
            Self::Driver(_) => 2,
            Self::Cloud => 3,
            Self::Caller => 4,
        }
    }

    fn name(self) -> &'a str {
        match self {
            Self::Node(name) => name.as_str(),
            Self::Driver(name) => name.as_str(),
            Self::Stranger | Self::Cloud | Self::Caller => "",
        }
    }

    fn rate(self) -> Rate {
        match self {
            Self::Stranger => STRANGERS,
            Self::Node(_) | Self::Driver(_) | Self::Cloud | Self::Caller => EACH,
        }
    }
}

/// A line that may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedLine {
    /// The lines of the same peer that were left out since its last one; `None` if there were none.
    pub suppressed: Option<u64>,
}

/// The place in the source that writes a line.
type LineKind = &'static Location<'static>;

/// The lines of one peer.
#[derive(Default)]
struct LogShare {
    bucket: Bucket,
    suppressed: u64,
    /// When the first line of each kind was written, in this hour.
    first: Vec<(LineKind, Instant)>,
}

/// The budget of one program.
#[derive(Default)]
struct LogBudget {
    total: Bucket,
    shares: [HashMap<Box<str>, LogShare>; SORTS.len()],
    suppressed: [u64; SORTS.len()],
    swept: Option<Instant>,
}

impl LogBudget {
    fn admit(&mut self, peer: LogPeer<'_>, kind: LineKind, now: Instant) -> Option<AdmittedLine> {
        self.sweep(now);
        let sort = peer.sort();
        let shares = &mut self.shares[sort];
        if !shares.contains_key(peer.name()) {
            shares.insert(peer.name().into(), LogShare::default());
        }
        let share = shares.get_mut(peer.name())?;
        let is_first = share.is_first(kind, now);
        let has_room = share.bucket.try_take(peer.rate(), now) && self.total.try_take(TOTAL, now);
        if !is_first && !has_room {
            share.suppressed += 1;
            self.suppressed[sort] += 1;
            return None;
        }
        let suppressed = std::mem::take(&mut share.suppressed);
        Some(AdmittedLine { suppressed: (suppressed > 0).then_some(suppressed) })
    }

    /// Forgets peers that caused no line for long.
    fn sweep(&mut self, now: Instant) {
        let swept = *self.swept.get_or_insert(now);
        if now.saturating_duration_since(swept) < SWEEP {
            return;
        }
        self.swept = Some(now);
        for shares in &mut self.shares {
            shares.retain(|_, share| {
                share.first.retain(|(_, at)| now.saturating_duration_since(*at) < FIRST);
                !(share.first.is_empty() && share.suppressed == 0 && share.bucket.is_full(now))
            });
        }
    }
}

impl LogShare {
    /// Notes a line. Returns `true` if it is the first of its kind in an hour.
    fn is_first(&mut self, kind: LineKind, now: Instant) -> bool {
        let noted = self.first.iter_mut().find(|(noted, _)| std::ptr::eq(*noted, kind));
        match noted {
            Some((_, at)) if now.saturating_duration_since(*at) < FIRST => return false,
            Some((_, at)) => *at = now,
            None => self.first.push((kind, now)),
        }
        true
    }
}

static BUDGET: LazyLock<Mutex<LogBudget>> = LazyLock::new(Mutex::default);

/// Takes a line of this peer from the budget. `None` if it is not to be written.
#[track_caller]
pub fn admit(peer: LogPeer<'_>) -> Option<AdmittedLine> {
    BUDGET.lock().admit(peer, Location::caller(), Instant::now())
}

/// How many lines were left out since the start, by the sort of peer.
pub fn suppressed() -> [(&'static str, u64); SORTS.len()] {
    let counts = BUDGET.lock().suppressed;
    std::array::from_fn(|sort| (SORTS[sort], counts[sort]))
}

/// True for the lines of [`peer_warn`] and [`peer_info`], also for those that they leave out.
pub fn is_peers(line: &Metadata<'_>) -> bool {
    line.fields().field("suppressed").is_some()
}

/// Writes a line at `warn` that a peer caused, if the budget has room: the peer, then what
/// `tracing::warn!` takes.
#[doc(hidden)]
#[macro_export]
macro_rules! __peer_warn {
    ($peer:expr, $($line:tt)+) => {
        if let Some(line) = $crate::host::peer_log::admit($peer) {
            ::tracing::warn!(suppressed = line.suppressed, $($line)+);
        } else {
            ::tracing::debug!(suppressed = true, $($line)+);
        }
    };
}

/// Writes a line at `info` that a peer caused, if the budget has room: the peer, then what
/// `tracing::info!` takes.
#[doc(hidden)]
#[macro_export]
macro_rules! __peer_info {
    ($peer:expr, $($line:tt)+) => {
        if let Some(line) = $crate::host::peer_log::admit($peer) {
            ::tracing::info!(suppressed = line.suppressed, $($line)+);
        } else {
            ::tracing::debug!(suppressed = true, $($line)+);
        }
    };
}

pub use __peer_info as peer_info;
pub use __peer_warn as peer_warn;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    /// Two places in a source.
    fn kinds() -> [LineKind; 2] {
        #[track_caller]
        fn here() -> LineKind {
            Location::caller()
        }
        [here(), here()]
    }

    /// How many of the lines of a minute are written, a hundred a second.
    fn written(
        budget: &mut LogBudget,
        peers: &[LogPeer<'_>],
        kind: LineKind,
        begun: Instant,
    ) -> usize {
        let times = (0..6000).map(|number| begun + Duration::from_millis(10 * number));
        let each = |now| peers.iter().map(move |peer| (*peer, now));
        times.flat_map(each).filter(|(peer, now)| budget.admit(*peer, kind, *now).is_some()).count()
    }

    #[test]
    fn a_flood_is_counted_and_the_next_line_tells_the_count() {
        let (mut budget, begun, [kind, _]) = (LogBudget::default(), Instant::now(), kinds());
        let lines = written(&mut budget, &[LogPeer::Stranger], kind, begun);
        assert!((60..70).contains(&lines), "{lines}");
        let next = budget.admit(LogPeer::Stranger, kind, begun + MINUTE + MINUTE).unwrap();
        let told = next.suppressed.unwrap();
        assert!(told > 0, "{told}");
        let again = budget.admit(LogPeer::Stranger, kind, begun + MINUTE + MINUTE).unwrap();
        assert_eq!(again.suppressed, None);
        let left_out = u64::try_from(6000 - lines).unwrap();
        assert_eq!(budget.suppressed, [left_out, 0, 0, 0, 0]);
    }

    #[test]
    fn one_nodes_flood_leaves_another_its_lines() {
        let (mut budget, begun, [kind, _]) = (LogBudget::default(), Instant::now(), kinds());
        written(&mut budget, &[LogPeer::Node(&node("bad")), LogPeer::Stranger], kind, begun);
        let now = begun + MINUTE;
        let quiet =
            (0..20).filter(|_| budget.admit(LogPeer::Node(&node("good")), kind, now).is_some());
        assert_eq!(quiet.count(), 20);
    }

    #[test]
    fn all_peers_together_have_a_budget_and_the_first_of_a_kind_is_always_written() {
        let (mut budget, begun, [kind, other]) = (LogBudget::default(), Instant::now(), kinds());
        let names: Vec<_> = (0..100).map(|number| node(&format!("n{number}"))).collect();
        let peers: Vec<_> = names.iter().map(LogPeer::Node).collect();
        let lines = written(&mut budget, &peers, kind, begun);
        assert!(lines <= 40 + 8 * 60 + peers.len(), "{lines}");
        let now = begun + MINUTE;
        let first = |budget: &mut LogBudget, kind, now| {
            peers.iter().filter(|peer| budget.admit(**peer, kind, now).is_some()).count()
        };
        assert_eq!(first(&mut budget, other, now), 100, "of another kind");
        assert!(first(&mut budget, other, now) < 100);
        let names: Vec<_> = (0..100).map(|number| node(&format!("other-{number}"))).collect();
        let others =
            names.iter().filter(|name| budget.admit(LogPeer::Node(name), kind, now).is_some());
        assert_eq!(others.count(), 100, "of another node");
        assert_eq!(first(&mut budget, kind, begun + FIRST), 100, "an hour later");
    }

    #[test]
    fn a_quiet_peer_is_forgotten() {
        let (mut budget, begun, [kind, _]) = (LogBudget::default(), Instant::now(), kinds());
        budget.admit(LogPeer::Node(&node("gone")), kind, begun).unwrap();
        budget.admit(LogPeer::Node(&node("here")), kind, begun + FIRST + SWEEP).unwrap();
        let kept: Vec<_> = budget.shares[1].keys().map(|name| &**name).collect();
        assert_eq!(kept, ["here"]);
    }

    proptest! {
        /// An honest peer that causes a line a second or fewer misses none, whatever another does.
        #[test]
        fn an_honest_peer_misses_no_line(
            pauses in prop::collection::vec(1000..5000_u64, 1..100),
            flood in 0..50_usize,
        ) {
            let (mut budget, mut now, [kind, _]) = (LogBudget::default(), Instant::now(), kinds());
            for pause in pauses {
                now += Duration::from_millis(pause);
                for _ in 0..flood {
                    budget.admit(LogPeer::Node(&node("bad")), kind, now);
                    budget.admit(LogPeer::Stranger, kind, now);
                }
                prop_assert!(budget.admit(LogPeer::Node(&node("good")), kind, now).is_some());
            }
        }
    }
}
