//! The store in etcd as a backend of commands: each call blocks its thread until etcd answers.
//!
//! It reads while csi-clouds run, as the store was at one revision. It commits only while none
//! leads. While an import goes on, the store states a format that no csi-cloud opens; so one that
//! was cut off is never taken for whole.

use std::sync::Arc;

use tokio::runtime::Runtime;

use super::cluster::Cluster;
use super::commit::Committer;
use super::keys::Keys;
use super::load::{LoadError, load};
use super::member::Member;
use super::position::{IMPORTING, Position};
use crate::etcd::api::{KeyValue, TxnRequest};
use crate::etcd::client::Client;
use crate::etcd::error::EtcdError;
use crate::etcd::request;
use crate::state::record::Change;
use crate::state::store::backend::{Backend, StoreError};
use crate::state::store::format::{Needs, OLDEST};
use crate::state::store::leadership::Leadership;
use crate::state::trust::TrustChange;

/// etcd, as a command reaches it.
pub(in crate::state::store) struct Blocking {
    runtime: Runtime,
    cluster: Arc<Cluster>,
}

/// A store in etcd, for commands.
pub(in crate::state::store) struct Offline {
    etcd: Blocking,
    committer: Committer,
}

impl Blocking {
    /// Reaches the store below this prefix. The client belongs to the runtime.
    pub(in crate::state::store) fn new(
        runtime: Runtime,
        client: Client,
        prefix: &str,
        url: String,
    ) -> Self {
        let reach = (client, Keys::new(prefix), url);
        let cluster = Cluster::new(reach, Member::default(), Leadership::following(), None);
        Self { runtime, cluster: Arc::new(cluster) }
    }

    fn commit_key(&self) -> Result<Option<KeyValue>, StoreError> {
        let key = request::get(&self.cluster.keys.commit());
        let found = self.runtime.block_on(self.cluster.client.range(key));
        let found = found.map_err(|error| self.unreadable(error))?;
        Ok(found.kvs.into_iter().next())
    }

    /// Deletes all records, and states that an import goes on.
    fn begin_import(&self, position: &Position) -> Result<Position, StoreError> {
        let keys = &self.cluster.keys;
        let next = position.next(IMPORTING);
        let is_alone = request::is_created_at(&keys.leader(), 0);
        let request = TxnRequest {
            compare: vec![is_alone, position.is_last(&keys.commit())],
            success: vec![request::delete_all(&keys.records()), next.put(&keys.commit())],
            failure: Vec::new(),
        };
        let answer = self.runtime.block_on(self.cluster.client.txn(request));
        let answer = answer.map_err(|error| self.unreadable(error))?;
        if answer.succeeded { Ok(next) } else { Err(StoreError::Busy) }
    }

    fn unreadable(&self, error: EtcdError) -> StoreError {
        StoreError::Open { store: self.cluster.url.clone(), why: Arc::new(error) }
    }
}

impl Offline {
    /// Opens the store.
    ///
    /// # Errors
    /// etcd gives no answer; or the store is damaged, of a newer format, or of an import that is
    /// not finished.
    pub(in crate::state::store) fn open(etcd: Blocking) -> Result<Self, StoreError> {
        let position = Position::of(etcd.commit_key()?.as_ref(), &etcd.cluster.url)?;
        let at = (position, Needs::unknown());
        let committer = Committer::new(etcd.cluster.clone(), None, at);
        Ok(Self { etcd, committer })
    }

    /// The format that the store states.
    pub(in crate::state::store) fn format(&self) -> u64 {
        self.committer.position().format
    }

    /// The number of commits so far.
    pub(in crate::state::store) fn commits(&self) -> u64 {
        self.committer.position().number
    }

    /// Fills an empty store, completely or so that no csi-cloud opens it.
    ///
    /// # Errors
    /// The store has records already, `fill` fails, or etcd gives no answer that can be used. It
    /// also fails if a csi-cloud leads, or the store was changed meanwhile.
    pub(in crate::state::store) fn import(
        etcd: Blocking,
        fill: impl FnOnce(&mut dyn Backend) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (etcd, position) = match Position::of_import(etcd.commit_key()?.as_ref()) {
            Some(unfinished) => (etcd, unfinished),
            None => Self::open(etcd)?.emptied()?,
        };
        let begun = etcd.begin_import(&position)?;
        let at = (begun, Needs::of_empty());
        let committer = Committer::new(etcd.cluster.clone(), None, at).stating(IMPORTING);
        let mut store = Self { etcd, committer };
        fill(&mut store)?;
        let mut committer = store.committer.stating(OLDEST);
        Ok(store.etcd.runtime.block_on(committer.seal())?)
    }

    /// The position of a store that has no records.
    fn emptied(mut self) -> anyhow::Result<(Blocking, Position)> {
        let mut count = 0_u64;
        // The secret keys are those of a csi-cloud that was started and then learned nothing.
        self.load(&mut |change| {
            let is_own =
                matches!(change, Change::Trust(TrustChange::Secrets(_)) | Change::LeaderEpoch(_));
            count += u64::from(!is_own);
        })?;
        if count > 0 {
            anyhow::bail!(
                "the store {} holds {count} records, and an import goes into an empty one only; \
                 import below another prefix, or delete the keys below this one first",
                self.etcd.cluster.url
            );
        }
        Ok((self.etcd, self.committer.position().clone()))
    }
}

impl Backend for Offline {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        let cluster = &self.etcd.cluster;
        let loaded =
            self.etcd.runtime.block_on(load(cluster, each)).map_err(|error| match error {
                LoadError::Store(error) => error,
                LoadError::Etcd(error) => self.etcd.unreadable(error),
            })?;
        let at = (loaded.position, loaded.needs);
        self.committer = Committer::new(cluster.clone(), None, at);
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.etcd.runtime.block_on(self.committer.commit(changes.to_vec())).1
    }
}
