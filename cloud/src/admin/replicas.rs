//! `csi-cloud replicas`: the csi-clouds that share a store, and which of them leads.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::done::{Done, done};
use crate::admin::refused::CommandError;
use crate::state::store::leadership::Role;
use crate::state::store::replicated::{Cluster, OrderError, Replica};
use crate::telemetry::metrics::ReplicaNow;

/// The path of the list.
pub(crate) const LIST: &str = "/replicas";
/// The path of the command that makes one lead.
pub(crate) const PROMOTE: &str = "/replicas/promote";
/// The path of the command after which one does not lead.
pub(crate) const DRAIN: &str = "/replicas/drain";
/// The path of the command that takes that back.
pub(crate) const UNDRAIN: &str = "/replicas/undrain";

/// An order about a replica.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaOrder {
    /// Its name.
    pub name: String,
}

/// One of the csi-clouds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaView {
    /// Its name.
    pub name: String,
    /// True if it leads.
    pub leads: bool,
    /// The epoch of its calls, if it leads.
    pub epoch: Option<u64>,
    /// The number of commits that it lacks; it reports every 2.5 s.
    pub lag: u64,
    /// Its version; none if it does not run.
    pub version: Option<String>,
    /// True if it shall not lead.
    pub drained: bool,
    /// Its endpoints for edges.
    pub endpoints: Vec<String>,
    /// True if it gave this answer.
    pub this: bool,
}

impl From<OrderError> for CommandError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Unknown { .. } => Self::unknown(error.to_string()),
            OrderError::Drained(_) => Self::conflict(error.to_string()),
            OrderError::Etcd(_) | OrderError::Store(_) => Self::failed(proto::host::chain(&error)),
        }
    }
}

impl AdminState {
    fn cluster(&self) -> Result<&Cluster, CommandError> {
        let alone = "this csi-cloud has its store alone; several share one in etcd, see \"Several \
                     csi-clouds\" in docs/operations.md";
        self.store.cluster().map(|cluster| &**cluster).ok_or_else(|| CommandError::conflict(alone))
    }

    /// All replicas, by name.
    ///
    /// # Errors
    /// This csi-cloud has its store alone, or etcd gives no answer that can be used.
    pub(crate) async fn replicas(&self) -> Result<Vec<ReplicaView>, CommandError> {
        let cluster = self.cluster()?;
        let replicas = cluster.replicas().await?;
        let epoch = self.store.read(|state| state.leader_epoch());
        let view = |(name, replica): (Arc<str>, Replica)| {
            let Replica { version, endpoints, leads, drained, commit } = replica;
            ReplicaView {
                this: *name == *cluster.name(),
                name: name.to_string(),
                leads,
                epoch: epoch.filter(|_| leads).map(|epoch| epoch.0),
                lag: if leads { 0 } else { replicas.commit.saturating_sub(commit) },
                version,
                drained,
                endpoints,
            }
        };
        Ok(replicas.by_name.into_iter().map(view).collect())
    }

    /// Orders that a replica leads.
    ///
    /// # Errors
    /// This csi-cloud has its store alone, no such replica runs, it is drained, or etcd gives no
    /// answer that can be used.
    pub(super) async fn promote_replica(&self, order: ReplicaOrder) -> Result<Done, CommandError> {
        self.cluster()?.promote(&order.name).await?;
        let name = order.name;
        Ok(done(format!("{name} leads as soon as it has all commits; the leader stops for it")))
    }

    /// Orders that a replica does not lead.
    ///
    /// # Errors
    /// This csi-cloud has its store alone, no such replica runs, or etcd gives no answer that can
    /// be used.
    pub(super) async fn drain_replica(&self, order: ReplicaOrder) -> Result<Done, CommandError> {
        self.cluster()?.drain(&order.name).await?;
        let name = order.name;
        Ok(done(format!(
            "{name} does not lead any more, until `csi-cloud replicas undrain {name}`; if it leads \
             now, it stops when another one can"
        )))
    }

    /// Takes that back.
    ///
    /// # Errors
    /// This csi-cloud has its store alone, or etcd gives no answer.
    pub(super) async fn undrain_replica(&self, order: ReplicaOrder) -> Result<Done, CommandError> {
        self.cluster()?.undrain(&order.name).await?;
        Ok(done(format!("{} may lead again", order.name)))
    }

    /// The metrics of this replica.
    pub(super) fn replica_now(&self) -> ReplicaNow {
        let leadership = self.store.leadership();
        let epoch = self.store.read(|state| state.leader_epoch());
        let cluster = self.store.cluster();
        ReplicaNow {
            leads: matches!(leadership.role(), Role::Alone(_) | Role::Leading(_)),
            epoch: epoch.map_or(0, |epoch| epoch.0),
            commit: cluster.map_or(0, |cluster| cluster.commit()),
            trouble: cluster.is_some_and(|cluster| cluster.trouble().is_some()),
            read_backs: cluster.map_or(0, |cluster| cluster.read_backs()),
        }
    }
}
