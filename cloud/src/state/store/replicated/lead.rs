//! A replica that leads: it commits, and hands over when an operator wants another one to lead.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use proto::host::tasks::Tasks;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use super::cluster::Cluster;
use super::commit::{CommitRight, Committer};
use super::follow::Won;
use super::lease::Lease;
use super::orders::Orders;
use crate::etcd::api::{TxnRequest, WatchCreateRequest};
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::state::known::State;
use crate::state::leader_epoch;
use crate::state::record::Change;
use crate::state::store::backend::StoreError;
use crate::state::store::write_loop;
use crate::state::store::write_loop::{Job, Writes};

/// The wait before something is tried again, and between looks for a successor.
const AGAIN: Duration = Duration::from_millis(500);

/// A replica that leads.
pub(super) struct Lead {
    cluster: Arc<Cluster>,
    lease: Arc<Lease>,
    /// The lease of its key, and the revision of that.
    id: i64,
    created: i64,
}

impl Lead {
    /// Begins to lead: the first commit makes its epoch durable, and proves that its state has all
    /// commits before.
    ///
    /// # Errors
    /// It does not lead; its state may lack something.
    pub(super) async fn begin(
        cluster: Arc<Cluster>,
        lease: Arc<Lease>,
        won: Won,
        state: &RwLock<State>,
    ) -> Result<(Self, Committer), StoreError> {
        let Won { lease: id, created, position, needs } = won;
        let right = CommitRight { lease: lease.clone(), id, created };
        let mut committer = Committer::new(cluster.clone(), Some(right), (position, needs));
        let last = state.read().leader_epoch();
        let epoch = leader_epoch::next(last);
        loop {
            let (durable, outcome) = committer.commit(vec![Change::LeaderEpoch(epoch)]).await;
            match outcome {
                Ok(()) => {
                    let mut state = state.write();
                    durable.into_iter().for_each(|change| state.apply(change));
                    break;
                }
                // Others could not lead either.
                Err(error) if error.is_refusal() && lease.is_held(id) => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
        let held = lease.has().await;
        if held.id != id {
            return Err(StoreError::Deposed);
        }
        info!(%epoch, "leads");
        cluster.leadership.lead(epoch, held.until);
        Ok((Self { cluster, lease, id, created }, committer))
    }

    /// Leads until it is told to stop, or deposed. It does not lead any more afterwards.
    pub(super) async fn lead(
        self,
        committer: Committer,
        state: Arc<RwLock<State>>,
        queue: mpsc::Receiver<Job>,
        tasks: &Tasks,
    ) {
        let writes = Writes::Shared(committer);
        tokio::select! {
            biased;
            _ = write_loop::run(state, queue, writes, tasks.clone()) => {}
            () = self.lease.ended(self.id) => {}
            () = self.obey() => {}
        }
        self.cluster.leadership.depose();
        if !tasks.is_stopped() {
            error!("another csi-cloud may lead by now, so this one does not any more");
        }
    }

    /// Carries out operators' orders, until the leader's key is not its own.
    async fn obey(&self) {
        loop {
            match self.watch().await {
                Ok(()) => return,
                Err(error) => {
                    let error = proto::host::chain(&error);
                    warn!(error, "orders to replicas are not seen; it is tried again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// Ends without an error when the leader's key is not its own.
    async fn watch(&self) -> Result<(), EtcdError> {
        let keys = &self.cluster.keys;
        let (leader, mut orders, revision) = self.cluster.leader_and_orders().await?;
        if leader.is_none_or(|leader| leader.create_revision != self.created) {
            return Ok(());
        }
        if orders.promote.as_ref() == Some(&self.cluster.me.name) {
            let success = vec![request::delete(&keys.promote())];
            self.cluster.client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        }
        let request = WatchCreateRequest {
            key: keys.leader(),
            range_end: request::after_prefix(&keys.orders()),
            start_revision: revision.saturating_add(1),
            ..WatchCreateRequest::default()
        };
        let mut watch = self.cluster.client.watch(request).await?;
        loop {
            tokio::select! {
                biased;
                events = watch.next() => {
                    for event in events? {
                        let found = event.kv.as_ref();
                        // Nobody changes this key, so it was deleted, or another one is there.
                        if found.is_some_and(|found| found.key == keys.leader()) {
                            return Ok(());
                        }
                        orders.apply(keys, &event);
                    }
                }
                () = self.hand_over(&orders) => {}
            }
        }
    }

    /// Looks for a successor while an order wants one. Never ends.
    async fn hand_over(&self, orders: &Orders) {
        let me = &self.cluster.me.name;
        let promoted = orders.promote.as_ref().filter(|name| *name != me);
        if promoted.is_none() && !orders.drained.contains(me) {
            return std::future::pending().await;
        }
        loop {
            if let Ok(replicas) = self.cluster.replicas().await
                && let Some(successor) = replicas.successor(me, promoted.map(|name| &**name))
            {
                info!(successor = &*successor, "hands over, as it was ordered");
                self.cluster.leadership.resign();
                return std::future::pending().await;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}
