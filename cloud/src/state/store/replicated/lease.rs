//! The lease by which a replica shows that it is alive. The leader's key goes with it.
//!
//! Its time is counted from before the request that extended it, less a margin. Another replica
//! cannot lead before that is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::{Cluster, Work};
use super::member::Member;
use crate::etcd::api::TxnRequest;
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::state::store::leadership::Role;

/// Its time in seconds.
const TIME: i64 = 10;
/// The interval of keep-alives.
const EVERY: Duration = Duration::from_millis(2500);
/// The delay before the next attempt.
const AGAIN: Duration = Duration::from_millis(500);
/// The time of an attempt to prove that etcd takes changes. The lease is kept alive only after it.
const PROOF: Duration = Duration::from_secs(1);
/// What clocks may differ by over the time of a lease.
const MARGIN: Duration = Duration::from_secs(1);

/// A lease that is certainly valid until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) id: i64,
    pub(super) until: Instant,
}

/// The lease of this replica.
pub(super) struct Lease {
    cluster: Arc<Cluster>,
    held: watch::Sender<Option<Held>>,
}

impl Lease {
    /// None yet.
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, held: watch::Sender::new(None) }
    }

    /// The lease of now.
    pub(super) fn held(&self) -> Option<Held> {
        self.held.borrow().filter(|held| held.until > Instant::now())
    }

    /// The lease of now, which may have ended.
    pub(super) fn id(&self) -> Option<i64> {
        self.held.borrow().map(|held| held.id)
    }

    /// True if this lease is certainly valid.
    pub(super) fn is_held(&self, id: i64) -> bool {
        self.held().is_some_and(|held| held.id == id)
    }

    /// Waits until there is a lease.
    pub(super) async fn has(&self) -> Held {
        let mut held = self.held.subscribe();
        loop {
            if let Some(held) = self.held() {
                return held;
            }
            // `self` has the sender, so this waits for the next word of `keep`.
            let _ = held.changed().await;
        }
    }

    /// Waits until this lease may have ended.
    pub(super) async fn ended(&self, id: i64) {
        let mut held = self.held.subscribe();
        while let Some(until) = self.held().filter(|held| held.id == id).map(|held| held.until) {
            tokio::select! {
                biased;
                _ = held.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Keeps a lease, and makes another one when it is lost. Never ends.
    pub(super) async fn keep(&self) {
        let mut recorded = None;
        loop {
            let kept = self.keep_once(&mut recorded).await;
            match &kept {
                Ok(()) => self.cluster.clear_trouble(Work::Lease),
                Err(error) => self.cluster.set_trouble(Work::Lease, error),
            }
            self.prove_changes().await;
            tokio::time::sleep(if kept.is_ok() { EVERY } else { AGAIN }).await;
        }
    }

    async fn keep_once(&self, recorded: &mut Option<u64>) -> Result<(), EtcdError> {
        let sent = Instant::now();
        let before = *self.held.borrow();
        let Some(Held { id, .. }) = before else {
            let id = self.cluster.client.grant(TIME).await?;
            *recorded = None;
            self.record_commit(id, recorded).await?;
            self.set(id, sent, TIME);
            return Ok(());
        };
        match self.cluster.client.keep_alive(id).await? {
            left @ 1.. => self.set(id, sent, left.min(TIME)),
            _ => {
                warn!("the lease of this replica has ended; another csi-cloud may lead");
                self.held.send_replace(None);
                return Ok(());
            }
        }
        self.record_commit(id, recorded).await
    }

    fn set(&self, id: i64, sent: Instant, seconds: i64) {
        let time = Duration::from_secs(seconds.unsigned_abs()).saturating_sub(MARGIN);
        let until = sent + time;
        // A leader's lease only; a follower's role says that it does not lead.
        if matches!(self.cluster.leadership.role(), Role::Leading(_)) {
            self.cluster.leadership.extend(until);
        }
        self.held.send_replace(Some(Held { id, until }));
    }

    /// Writes the commit that this replica has reached, if it is not the recorded one.
    async fn record_commit(&self, id: i64, recorded: &mut Option<u64>) -> Result<(), EtcdError> {
        let commit = Some(self.cluster.commit());
        if *recorded == commit {
            return Ok(());
        }
        self.put_replica(id, commit).await?;
        *recorded = commit;
        Ok(())
    }

    /// Writes the key of this replica.
    async fn put_replica(&self, id: i64, commit: Option<u64>) -> Result<(), EtcdError> {
        let me = Member { commit, ..self.cluster.me.clone() };
        let key = self.cluster.keys.replica(&me.name);
        let success = vec![request::put(&key, me.to_bytes(), id)];
        self.cluster.client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        Ok(())
    }

    /// Ends the trouble with commits as soon as etcd takes changes again. A replica that has
    /// nothing to commit would not find out.
    async fn prove_changes(&self) {
        if !self.cluster.has_trouble(Work::Commit) {
            return;
        }
        let Some(Held { id, .. }) = self.held() else { return };
        let put = self.put_replica(id, Some(self.cluster.commit()));
        match tokio::time::timeout(PROOF, put).await {
            Ok(Ok(())) => self.cluster.clear_trouble(Work::Commit),
            Ok(Err(error)) => self.cluster.set_trouble(Work::Commit, &error),
            // The next commit or attempt tells.
            Err(_) => {}
        }
    }

    /// Ends the lease, so that nobody waits for its end.
    pub(super) async fn revoke(&self) {
        let Some(Held { id, .. }) = self.held.send_replace(None) else { return };
        match self.cluster.client.revoke(id).await {
            Ok(()) => info!("the lease of this replica is given back"),
            Err(error) => {
                let error = proto::host::chain(&error);
                warn!(error, "the lease of this replica ends by itself, within {TIME} s");
            }
        }
    }
}
