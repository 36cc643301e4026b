//! A replica that follows: its state has what the store has, by a watch, and it stands for leader
//! when there is none.
//!
//! The watch tells it of its own key as leader after all commits before that. So when it has seen
//! that key, it has every commit that any leader before could make.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use proto::control::leader::LeaderEpoch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::{Cluster, Work};
use super::keys::Key;
use super::lease::Lease;
use super::load::{LoadError, load};
use super::member::{LeaderKey, Member};
use super::orders::Orders;
use super::position::Position;
use crate::etcd::api::event::EventType;
use crate::etcd::api::{Event, TxnRequest, WatchCreateRequest};
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::state::known::State;
use crate::state::record::Change;
use crate::state::store::codec;
use crate::state::store::codec::Decoder;
use crate::state::store::format::Needs;
use crate::state::store::leadership::Leader;

/// The wait before etcd is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// The time for which others leave the lead to a promoted replica.
const YIELD: Duration = Duration::from_secs(5);

/// A replica that follows.
pub(super) struct Follower {
    cluster: Arc<Cluster>,
    lease: Arc<Lease>,
    state: Arc<RwLock<State>>,
    decoder: Decoder,
    /// The next revision that is not in the state.
    revision: i64,
    position: Position,
    needs: Needs,
    leader: Option<LeaderKey>,
    orders: Orders,
    /// The earliest time at which it may stand for leader.
    candidate: Instant,
}

/// It leads, once it has made that durable.
pub(super) struct Won {
    /// The lease of its key as leader.
    pub(super) lease: i64,
    /// The revision of that key.
    pub(super) created: i64,
    pub(super) position: Position,
    pub(super) needs: Needs,
}

impl Follower {
    /// Reads the store into this state.
    ///
    /// # Errors
    /// etcd gives no answer, or compacts the revision meanwhile; or the position or a record cannot
    /// be read.
    pub(super) async fn warm(
        cluster: Arc<Cluster>,
        lease: Arc<Lease>,
        state: Arc<RwLock<State>>,
    ) -> Result<Self, LoadError> {
        let begun = Instant::now();
        let mut fresh = State::default();
        let loaded = load(&cluster, &mut |change| fresh.apply(change)).await?;
        let epoch = fresh.leader_epoch();
        state.write().take_records(fresh);
        let commit = loaded.position.number;
        info!(commit, ms = begun.elapsed().as_millis(), "read the store");
        cluster.commit.send_replace(commit);
        let follower = Self {
            cluster,
            lease,
            state,
            decoder: Decoder::default(),
            revision: loaded.revision.saturating_add(1),
            position: loaded.position,
            needs: loaded.needs,
            leader: loaded.leader.as_ref().map(LeaderKey::of),
            orders: loaded.orders,
            candidate: Instant::now(),
        };
        follower.publish_leader(epoch);
        let others = follower.leader.as_ref().map(|leader| &leader.member.name);
        if others.is_some_and(|name| *name != follower.cluster.me.name) {
            follower.cluster.clear_trouble(Work::Stand);
        }
        Ok(follower)
    }

    /// The context that it shares with the other tasks.
    pub(super) fn cluster(&self) -> Arc<Cluster> {
        self.cluster.clone()
    }

    /// Follows until this replica leads.
    pub(super) async fn until_won(&mut self) -> Won {
        loop {
            let error = match self.follow().await {
                Ok(won) => return won,
                Err(error) => error,
            };
            self.cluster.set_trouble(Work::Follow, &error);
            let is_compacted = matches!(error, LoadError::Etcd(EtcdError::Compacted(_)));
            if is_compacted {
                warn!("changes were compacted away before this replica saw them");
            } else {
                tokio::time::sleep(AGAIN).await;
            }
            if self.is_stale(&error).await {
                self.reload().await;
            }
        }
    }

    /// Whether a watch cannot bring the state up to date after this error.
    async fn is_stale(&self, error: &LoadError) -> bool {
        match error {
            // What was read of a change that cannot be taken is not in the state.
            LoadError::Store(_) | LoadError::Etcd(EtcdError::Compacted(_)) => true,
            LoadError::Etcd(EtcdError::Behind { .. }) => self.is_put_back().await,
            LoadError::Etcd(_) => false,
        }
    }

    /// Whether etcd was put back to an older state. If not, only the watched member is behind, and
    /// it has the same changes later.
    async fn is_put_back(&self) -> bool {
        // A transaction that reads is linearizable, so no member answers it from the past.
        match self.cluster.leader_and_orders().await {
            Ok((_, _, now)) => now.saturating_add(1) < self.revision,
            // The next watch shows it.
            Err(error) => {
                self.cluster.set_trouble(Work::Follow, &error);
                false
            }
        }
    }

    /// Reads the store again.
    pub(super) async fn reload(&mut self) {
        loop {
            let cluster = self.cluster.clone();
            let lease = self.lease.clone();
            match Self::warm(cluster, lease, self.state.clone()).await {
                Ok(warm) => return *self = warm,
                Err(error) => self.cluster.set_trouble(Work::Follow, &error),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn follow(&mut self) -> Result<Won, LoadError> {
        let keys = self.cluster.keys.all();
        let range_end = request::after_prefix(&keys);
        let start_revision = self.revision;
        let request = WatchCreateRequest {
            key: keys,
            range_end,
            start_revision,
            ..WatchCreateRequest::default()
        };
        let mut watch = self.cluster.client.watch(request).await?;
        self.cluster.clear_trouble(Work::Follow);
        loop {
            if let Some(won) = self.won() {
                return Ok(won);
            }
            tokio::select! {
                biased;
                events = watch.next() => self.take(events?)?,
                lease = self.candidacy() => self.stand(lease).await,
            }
        }
    }

    /// Waits until it may stand for leader, and says under which lease.
    async fn candidacy(&self) -> i64 {
        if self.leader.is_some() || self.orders.drained.contains(&self.cluster.me.name) {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.candidate).await;
        self.lease.has().await.id
    }

    /// Stands for leader. The watch tells the outcome, whatever the answer.
    async fn stand(&mut self, lease: i64) {
        self.candidate = Instant::now() + AGAIN;
        let key = self.cluster.keys.leader();
        let compare = vec![request::is_created_at(&key, 0)];
        let success = vec![request::put(&key, self.cluster.me.to_bytes(), lease)];
        let request = TxnRequest { compare, success, failure: Vec::new() };
        if let Err(error) = self.cluster.client.txn(request).await {
            self.cluster.set_trouble(Work::Stand, &error);
        }
    }

    /// Whether the leader's key is this replica's.
    fn won(&self) -> Option<Won> {
        let LeaderKey { lease, created, .. } = self.leader.as_ref()?;
        (self.lease.id() == Some(*lease)).then(|| Won {
            lease: *lease,
            created: *created,
            position: self.position.clone(),
            needs: self.needs.clone(),
        })
    }

    /// Takes changes of whole revisions.
    fn take(&mut self, events: Vec<Event>) -> Result<(), LoadError> {
        let mut changes = Vec::new();
        let leader = self.leader.clone();
        for event in &events {
            self.revision = self.revision.max(revision_of(event).saturating_add(1));
            self.take_one(event, &mut changes)?;
        }
        changes.iter().for_each(|change| self.needs.note(change, &codec::encode(change)));
        let (before, epoch) = {
            let mut state = self.state.write();
            let before = state.leader_epoch();
            changes.into_iter().for_each(|change| state.apply(change));
            (before, state.leader_epoch())
        };
        self.cluster.commit.send_replace(self.position.number);
        if leader != self.leader || before != epoch {
            self.publish_leader(epoch);
        }
        Ok(())
    }

    fn take_one(&mut self, event: &Event, changes: &mut Vec<Change>) -> Result<(), LoadError> {
        let Some(found) = &event.kv else { return Ok(()) };
        let cluster = self.cluster.clone();
        let is_there = event.r#type() == EventType::Put;
        match cluster.keys.parse(&found.key) {
            Key::Record(table, key) if is_there => {
                changes.push(self.decoder.decode(table, key, &found.value)?);
            }
            Key::Record(table, key) => changes.extend(self.decoder.removal(table, key)?),
            Key::Commit => {
                self.position = self.position.then(is_there.then_some(found), &cluster.url)?;
            }
            Key::Leader => self.take_leader(is_there.then(|| LeaderKey::of(found))),
            Key::Promote | Key::Drain(_) => self.orders.apply(&cluster.keys, event),
            Key::Other => {}
        }
        Ok(())
    }

    fn take_leader(&mut self, leader: Option<LeaderKey>) {
        match &leader {
            Some(LeaderKey { member, .. }) => {
                info!(leader = &*member.name, "there is a leader");
                self.cluster.clear_trouble(Work::Stand);
            }
            None => info!("there is no leader"),
        }
        let promoted = self.orders.promote.as_ref();
        let yields = promoted.is_some_and(|name| *name != self.cluster.me.name);
        self.candidate = Instant::now() + if yields { YIELD } else { Duration::ZERO };
        self.leader = leader;
    }

    /// Publishes the present leader.
    fn publish_leader(&self, epoch: Option<LeaderEpoch>) {
        let leader = self.leader.as_ref().map(|LeaderKey { member, .. }| {
            let Member { name, .. } = member;
            let epoch = epoch.unwrap_or(LeaderEpoch(0));
            Leader { name: name.clone(), epoch, endpoints: member.endpoints() }
        });
        self.cluster.leadership.follow(leader);
    }
}

fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |found| found.mod_revision)
}
