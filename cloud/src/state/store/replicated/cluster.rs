//! The shared context of a replica's tasks: the client, the keys, the role, and troubles with etcd.
//!
//! Operators use it too: they list the replicas, promote one, or drain one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::keys::Keys;
use super::member::Member;
use super::orders::Orders;
use super::position::Position;
use super::replicas::{Replica, Replicas};
use crate::etcd::api::{KeyValue, RequestOp, TxnRequest};
use crate::etcd::client::Client;
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::etcd::request::ranges;
use crate::state::store::backend::StoreError;
use crate::state::store::leadership::Leadership;
use crate::state::store::measured::CommitMetrics;

/// The lifetime of an order to promote a replica, in seconds.
const PROMOTE: i64 = 60;
/// The time without an answer of etcd after which that is reported.
const SILENCE: Duration = Duration::from_secs(3);

/// One of several csi-clouds with one store.
pub struct Cluster {
    pub(super) client: Client,
    pub(super) keys: Keys,
    /// The URL of the store, without a password.
    pub(super) url: String,
    /// This replica, as it registers in etcd.
    pub(super) me: Member,
    pub(super) leadership: Leadership,
    /// The number of the last commit in the state here.
    pub(super) commit: watch::Sender<u64>,
    /// The metrics of commits; none for a command.
    pub(super) commits: Option<Box<dyn CommitMetrics>>,
    read_backs: AtomicU64,
    troubles: Mutex<BTreeMap<Work, Trouble>>,
}

/// A use of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// Reading all records, and following their changes.
    Follow,
    /// Standing for leader, and beginning to lead.
    Stand,
    /// Keeping the lease.
    Lease,
    /// Commits.
    Commit,
}

/// The reason why a use of etcd fails.
struct Trouble {
    why: Arc<str>,
    since: Instant,
}

/// The reason why an order was not given.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// No such replica runs.
    #[error("no replica {name:?} runs; there are {there}")]
    Unknown {
        /// The name.
        name: String,
        /// Those that run.
        there: String,
    },
    /// It cannot lead.
    #[error("{0:?} is drained, so it cannot lead; `csi-cloud replicas undrain` admits it first")]
    Drained(String),
    /// The store.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Cluster {
    /// One that has no state yet.
    pub(super) fn new(
        (client, keys, url): (Client, Keys, String),
        me: Member,
        leadership: Leadership,
        commits: Option<Box<dyn CommitMetrics>>,
    ) -> Self {
        let commit = watch::Sender::new(0);
        let read_backs = AtomicU64::new(0);
        let troubles = Mutex::default();
        Self { client, keys, url, me, leadership, commit, commits, read_backs, troubles }
    }

    /// The role of this replica.
    pub(in crate::state::store) fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// The name of this replica.
    pub fn name(&self) -> &str {
        &self.me.name
    }

    /// The number of the last commit in the state here.
    pub fn commit(&self) -> u64 {
        *self.commit.borrow()
    }

    /// The commits that had to be read back, because their answer was lost.
    pub fn read_backs(&self) -> u64 {
        self.read_backs.load(Ordering::Relaxed)
    }

    /// The reason why etcd cannot be used, after some seconds of failure.
    pub fn trouble(&self) -> Option<Arc<str>> {
        let troubles = self.troubles.lock();
        let mut lasting = troubles.values().filter(|trouble| trouble.since.elapsed() >= SILENCE);
        lasting.next().map(|trouble| trouble.why.clone())
    }

    pub(super) fn read_back(&self) {
        self.read_backs.fetch_add(1, Ordering::Relaxed);
    }

    /// etcd cannot be used for this. It is logged once.
    pub(super) fn set_trouble(&self, work: Work, error: &(dyn std::error::Error + 'static)) {
        let why: Arc<str> = proto::host::chain(error).into();
        let mut troubles = self.troubles.lock();
        if let Some(trouble) = troubles.get_mut(&work) {
            trouble.why = why;
            return;
        }
        warn!(?work, error = &*why, "etcd cannot be used; it is tried again");
        troubles.insert(work, Trouble { why, since: Instant::now() });
    }

    /// Whether etcd could not be used for this the last time.
    pub(super) fn has_trouble(&self, work: Work) -> bool {
        self.troubles.lock().contains_key(&work)
    }

    /// etcd did what it was asked for.
    pub(super) fn clear_trouble(&self, work: Work) {
        let mut troubles = self.troubles.lock();
        if troubles.remove(&work).is_some() {
            info!(?work, "etcd can be used again");
        }
    }

    /// All replicas, as etcd has them now.
    ///
    /// # Errors
    /// etcd gives no answer, or the position of the last commit there cannot be read.
    pub async fn replicas(&self) -> Result<Replicas, OrderError> {
        let keys = &self.keys;
        let read = request::read([
            request::get(&keys.commit()),
            request::get(&keys.leader()),
            request::get_all(&keys.orders()),
            request::get_all(&keys.replicas()),
        ]);
        let [commit, leader, orders, replicas] = ranges(self.client.txn(read).await?);
        let mut by_name = BTreeMap::<Arc<str>, Replica>::new();
        for member in replicas.iter().map(Member::of) {
            let Member { name, version, endpoints, commit } = member;
            let commit = commit.unwrap_or_default();
            let version = Some(version);
            let of = Replica { version, endpoints, commit, ..Replica::default() };
            by_name.insert(name, of);
        }
        if let Some(leader) = leader.first().map(Member::of) {
            by_name.entry(leader.name).or_default().leads = true;
        }
        for name in Orders::of(keys, &orders).drained {
            by_name.entry(name).or_default().drained = true;
        }
        let commit = Position::of(commit.first(), &self.url)?.number;
        Ok(Replicas { by_name, commit })
    }

    /// Orders that this replica leads, as soon as it has the leader's last commit.
    ///
    /// # Errors
    /// There is no such replica, it is drained, or as for [`Self::replicas`].
    pub async fn promote(&self, name: &str) -> Result<(), OrderError> {
        let replica = self.running(name).await?;
        if replica.drained {
            return Err(OrderError::Drained(name.to_owned()));
        }
        let lease = self.client.grant(PROMOTE).await?;
        self.order(request::put(&self.keys.promote(), name.into(), lease)).await
    }

    /// Orders that this replica does not lead, until [`Self::undrain`].
    ///
    /// # Errors
    /// There is no such replica, or as for [`Self::replicas`].
    pub async fn drain(&self, name: &str) -> Result<(), OrderError> {
        self.running(name).await?;
        self.order(request::put(&self.keys.drain(name), Vec::new(), 0)).await
    }

    /// Takes [`Self::drain`] back.
    ///
    /// # Errors
    /// etcd gives no answer.
    pub async fn undrain(&self, name: &str) -> Result<(), OrderError> {
        self.order(request::delete(&self.keys.drain(name))).await
    }

    async fn running(&self, name: &str) -> Result<Replica, OrderError> {
        let replicas = self.replicas().await?.by_name;
        let running = replicas.iter().filter(|(_, replica)| replica.version.is_some());
        let running: BTreeMap<_, _> = running.collect();
        if let Some(replica) = running.get(&Arc::from(name)) {
            return Ok((*replica).clone());
        }
        let there = running.keys().map(|name| &***name).collect::<Vec<_>>().join(", ");
        Err(OrderError::Unknown { name: name.to_owned(), there })
    }

    async fn order(&self, order: RequestOp) -> Result<(), OrderError> {
        let request = TxnRequest { success: vec![order], ..TxnRequest::default() };
        self.client.txn(request).await?;
        Ok(())
    }

    /// The key of the leader, and the orders, as etcd has them now, with their revision.
    ///
    /// # Errors
    /// etcd gives no answer.
    pub(super) async fn leader_and_orders(
        &self,
    ) -> Result<(Option<KeyValue>, Orders, i64), EtcdError> {
        let leader = request::get(&self.keys.leader());
        let read = request::read([leader, request::get_all(&self.keys.orders())]);
        let answer = self.client.txn(read).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        let [leader, orders] = ranges(answer);
        Ok((leader.into_iter().next(), Orders::of(&self.keys, &orders), revision))
    }
}
