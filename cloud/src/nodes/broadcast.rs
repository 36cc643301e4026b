//! Broadcasts settings to all edges, at most once a second: each broadcast is a message on every
//! link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::{TaskKind, Tasks};
use proto::names::DriverName;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::nodes::scopes::Scopes;
use crate::pki::issuer::CaTag;
use crate::state::policy::Scope;
use crate::state::store::writer::Store;

/// The least time between two broadcasts.
const APART: Duration = Duration::from_secs(1);

/// The settings for all edges. A change is broadcast.
#[derive(Default)]
pub(super) struct Broadcast {
    /// Grows with the largest number of links seen.
    pub(super) backoff_cap: Duration,
    /// The scopes of all drivers. Each edge is told those of its own drivers.
    scopes: BTreeMap<DriverName, Scope>,
    /// The CAs. An edge is told to renew a certificate of another CA.
    ca: Option<CaTag>,
}

/// Broadcasts to all edges.
pub(super) struct Broadcaster {
    broadcasts: watch::Sender<Broadcast>,
    scopes: Scopes,
    store: Store,
    tasks: Tasks,
    turn: Mutex<Turn>,
}

/// The next broadcast.
#[derive(Default)]
struct Turn {
    backoff_cap: Duration,
    ca: Option<CaTag>,
    last: Option<Instant>,
    is_waiting: bool,
}

impl Broadcaster {
    pub(super) fn new(store: Store, tasks: Tasks, scopes: Scopes, backoff_cap: Duration) -> Self {
        let first = Broadcast { backoff_cap, ..Broadcast::default() };
        let turn = Turn { backoff_cap, ..Turn::default() };
        let broadcasts = watch::Sender::new(first);
        Self { broadcasts, scopes, store, tasks, turn: Mutex::new(turn) }
    }

    /// The scopes of all drivers, from the operator and the drivers.
    pub(super) fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    /// The longest backoff of an edge, as broadcast last.
    pub(super) fn backoff_cap(&self) -> Duration {
        self.broadcasts.borrow().backoff_cap
    }

    /// Changes with each broadcast.
    pub(super) fn broadcasts(&self) -> watch::Receiver<Broadcast> {
        self.broadcasts.subscribe()
    }

    /// Broadcasts a backoff that is longer than before.
    pub(super) fn cap(self: &Arc<Self>, backoff_cap: Duration) {
        let mut turn = self.turn();
        if backoff_cap > turn.backoff_cap {
            turn.backoff_cap = backoff_cap;
            self.broadcast(turn);
        }
    }

    /// Broadcasts which CA issues, if it is another one.
    pub(super) fn ca(self: &Arc<Self>, ca: CaTag) {
        let mut turn = self.turn();
        if turn.ca != Some(ca) {
            turn.ca = Some(ca);
            self.broadcast(turn);
        }
    }

    /// Broadcasts the scopes, if a node's report has changed one.
    pub(super) fn refresh(self: &Arc<Self>) {
        self.broadcast(self.turn());
    }

    /// Broadcasts now, or a second after the last time.
    fn broadcast(self: &Arc<Self>, mut turn: MutexGuard<'_, Turn>) {
        if turn.is_waiting {
            return;
        }
        let next = turn.last.map(|last| last + APART);
        let Some(next) = next.filter(|next| *next > Instant::now()) else {
            return self.broadcast_now(turn);
        };
        turn.is_waiting = true;
        let broadcaster = self.clone();
        self.tasks.spawn_until_stop(TaskKind::All("telling"), async move {
            sleep_until(next).await;
            let mut turn = broadcaster.turn();
            turn.is_waiting = false;
            broadcaster.broadcast_now(turn);
        });
    }

    fn broadcast_now(&self, mut turn: MutexGuard<'_, Turn>) {
        let mut scopes = self.scopes.all(&self.store);
        let cap = turn.backoff_cap;
        let ca = turn.ca;
        let has_changed = self.broadcasts.send_if_modified(|broadcast| {
            std::mem::swap(&mut broadcast.scopes, &mut scopes);
            let is_longer = broadcast.backoff_cap != cap;
            broadcast.backoff_cap = cap;
            // The first is known at the start, and each welcome has it.
            let is_other = broadcast.ca.is_some() && broadcast.ca != ca;
            broadcast.ca = ca;
            is_longer || is_other || broadcast.scopes != scopes
        });
        if has_changed {
            turn.last = Some(Instant::now());
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock()
    }
}

/// The longest backoff of an edge: csi-cloud accepts about 1,000 links per second. In powers of
/// two, so that it seldom changes while a fleet grows.
pub(super) fn backoff_cap(linked: usize) -> Duration {
    let seconds = u64::try_from(linked / 1000).unwrap_or(u64::MAX).clamp(2, 30);
    Duration::from_secs(1 << seconds.ilog2())
}
