//! One look at all links of a listener, which ends those whose edges are dead.
//!
//! quinn's own idle timer goes by the clock. A csi-cloud that is late, because a large fleet links
//! or its machine has other work, would end links whose signs of life are still in its socket, and
//! their edges would all link again. So that timer is long, and silence is counted here, by packets
//! that were authenticated. A look that cannot be trusted ends nobody.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use quinn::Connection;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::host::peer_log::{LogPeer, peer_warn};
use crate::link::keep_alive::{KeepAlive, QUESTIONS};

/// The longest interval of looks. A link is looked at when its own interval is over.
const LOOK: Duration = Duration::from_secs(1);
/// The links that may all die at once: in a larger fleet, one in a hundred.
const FEW: usize = 20;

/// The looks of this process that could not be trusted.
static UNTRUSTED: AtomicU64 = AtomicU64::new(0);

/// How many looks found silent links and ended none of them, since csi-cloud started.
pub fn untrusted_looks() -> u64 {
    UNTRUSTED.load(Ordering::Relaxed)
}

/// A link that is looked at.
pub(super) struct WatchedLink {
    connection: Connection,
    seen: Mutex<Seen>,
    is_dead: AtomicBool,
}

/// A look at all links.
#[derive(Clone, Copy)]
struct SweepLook {
    now: Instant,
    late: Duration,
    /// When packets of anybody were last seen to be lost.
    lost: Option<Instant>,
}

/// The last look at a link.
struct Seen {
    every: Duration,
    due: Instant,
    received: u64,
    /// The looks since anything was received.
    silent: u32,
}

impl Seen {
    fn begin(KeepAlive { every }: KeepAlive) -> Self {
        Self { every, due: Instant::now() + every, received: 0, silent: 0 }
    }

    /// Takes how much was received by now. True if the edge was asked often enough and says
    /// nothing. A look that is late, or before which packets were lost, counts only what was
    /// received.
    fn take(&mut self, received: u64, look: SweepLook) -> bool {
        let before = self.due.checked_sub(self.every);
        self.due = look.now + self.every;
        if received != self.received {
            (self.received, self.silent) = (received, 0);
        } else if look.late * 2 < self.every && look.lost <= before {
            self.silent += 1;
        }
        self.silent > QUESTIONS
    }
}

impl WatchedLink {
    fn new(connection: Connection, keep_alive: KeepAlive) -> Self {
        let seen = Mutex::new(Seen::begin(keep_alive));
        Self { connection, seen, is_dead: AtomicBool::new(false) }
    }

    /// True once it was ended here, as its edge was dead.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Looks at it if that is due. True if its edge is dead.
    fn look(&self, look: SweepLook) -> bool {
        let mut seen = self.seen.lock();
        look.now >= seen.due && seen.take(received(&self.connection), look)
    }

    fn spare(&self) {
        self.seen.lock().silent = 0;
    }

    fn end(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.connection.close(0_u8.into(), b"no sign of life");
    }
}

/// The packets of a connection that were authenticated and had a frame.
pub(super) fn received(connection: &Connection) -> u64 {
    let frames = connection.stats().frame_rx;
    let asked = frames.ping + frames.immediate_ack + frames.path_challenge + frames.path_response;
    frames.acks + asked + frames.stream + frames.max_data + frames.max_stream_data
}

/// The links of a listener. Clones share them.
#[derive(Clone, Default)]
pub(super) struct SilenceSweep(Arc<Mutex<Vec<Weak<WatchedLink>>>>);

impl SilenceSweep {
    /// Looks at this connection from now on, as long as its link has what is returned.
    pub(super) fn watch(&self, connection: &Connection, keep_alive: KeepAlive) -> Arc<WatchedLink> {
        let watched = Arc::new(WatchedLink::new(connection.clone(), keep_alive));
        self.0.lock().push(Arc::downgrade(&watched));
        watched
    }

    /// Looks at all links until it is dropped; their interval is at least this one. `lost` is the
    /// number of packets that the socket has lost.
    pub(super) async fn run(&self, every: Duration, lost: impl Fn() -> Option<u64>) {
        let mut looks = interval(LOOK.min(every / 5));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = lost();
        let mut lost_at = None;
        loop {
            let late = looks.tick().await.elapsed();
            let now = Instant::now();
            let after = lost();
            if std::mem::replace(&mut before, after) != after {
                lost_at = Some(now);
            }
            let silent = self.silent(SweepLook { now, late, lost: lost_at });
            if !silent.are_many {
                silent.links.iter().for_each(|link| link.end());
                continue;
            }
            silent.links.iter().for_each(|link| link.spare());
            UNTRUSTED.fetch_add(1, Ordering::Relaxed);
            peer_warn!(
                LogPeer::Stranger,
                links = silent.links.len(),
                "many links say nothing at once: csi-cloud may be overloaded, so none of them is \
                 ended yet"
            );
        }
    }

    fn silent(&self, look: SweepLook) -> SilentLinks {
        let mut all = self.0.lock();
        let mut links = Vec::new();
        all.retain(|link| {
            let Some(link) = link.upgrade() else { return false };
            if !link.is_dead() && link.look(look) {
                links.push(link);
            }
            true
        });
        let are_many = are_many(links.len(), all.len());
        SilentLinks { links, are_many }
    }
}

/// What one look found.
struct SilentLinks {
    links: Vec<Arc<WatchedLink>>,
    /// True if they are too many for edges that died by themselves.
    are_many: bool,
}

/// True if so many of all links are too many for edges that died by themselves.
fn are_many(silent: usize, all: usize) -> bool {
    silent > FEW.max(all / 100)
}

/// The number of a socket in the kernel's lists.
pub(super) fn inode(socket: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|stat| stat.st_ino)
}

/// The packets that a UDP socket has lost, since it was full; `None` if the kernel does not say.
pub(super) fn lost_by(inode: u64) -> Option<u64> {
    ["/proc/net/udp", "/proc/net/udp6"].into_iter().find_map(|path| {
        let list = std::fs::read_to_string(path).ok()?;
        list.lines().skip(1).find_map(|line| lost_in(line, inode))
    })
}

/// proc_pid_net(5): the tenth column is the inode, and the last one what was dropped.
fn lost_in(line: &str, inode: u64) -> Option<u64> {
    let mut columns = line.split_ascii_whitespace();
    let is_it = columns.nth(9)?.parse() == Ok(inode);
    columns.next_back().filter(|_| is_it)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    /// What looks find at an edge of which so many packets have come, each look this late. Packets
    /// are lost before the looks with these numbers.
    fn found(seen: &mut Seen, received: &[u64], late: Duration, losses: &[usize]) -> Vec<bool> {
        let mut lost = None;
        let mut look = |(number, received): (usize, &u64)| {
            let now = seen.due + late;
            if losses.contains(&number) {
                lost = Some(now - EVERY / 2);
            }
            seen.take(*received, SweepLook { now, late, lost })
        };
        received.iter().enumerate().map(&mut look).collect()
    }

    #[tokio::test]
    async fn an_edge_is_dead_after_three_questions_and_a_full_interval_after_each() {
        let mut seen = Seen::begin(KeepAlive { every: EVERY });
        assert_eq!(found(&mut seen, &[7, 7, 7, 7, 8], Duration::ZERO, &[]), [false; 5]);
        assert_eq!(found(&mut seen, &[8; 4], Duration::ZERO, &[]), [false, false, false, true]);
    }

    #[tokio::test]
    async fn a_late_look_ends_nobody() {
        let mut seen = Seen::begin(KeepAlive { every: EVERY });
        assert_eq!(found(&mut seen, &[7; 20], EVERY / 2, &[]), [false; 20]);
        assert_eq!(found(&mut seen, &[7; 4], EVERY / 3, &[]), [false, false, false, true]);
    }

    #[tokio::test]
    async fn an_interval_in_which_packets_were_lost_does_not_count() {
        let mut seen = Seen::begin(KeepAlive { every: EVERY });
        let looks = found(&mut seen, &[7; 8], Duration::ZERO, &[2, 3]);
        assert_eq!(looks, [false, false, false, false, false, false, true, true]);
    }

    #[test]
    fn one_link_in_a_hundred_may_die_at_once_and_a_few_of_a_small_fleet() {
        let many = [(20, 20), (21, 20), (1_000, 100_000), (1_001, 100_000)];
        assert_eq!(many.map(|(silent, all)| are_many(silent, all)), [false, true, false, true]);
    }

    #[test]
    fn the_kernel_says_what_a_socket_has_lost() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(lost_by(inode(&socket).unwrap()), Some(0));
        assert_eq!(lost_by(0), None);
        let line = " 7102: 0100007F:1BBC 00000000:0000 07 00000000:00000000 00:00000000 00000000 \
                    0        0 4711 2 0000000000000000 31";
        assert_eq!((lost_in(line, 4711), lost_in(line, 4712)), (Some(31), None));
    }
}
