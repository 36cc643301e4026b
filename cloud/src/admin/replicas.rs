//! `csi-cloud replicas`: the csi-clouds that share a store, and which of them leads.

use proto::admin::command::{Command, Done, Refusal, Row};
use proto::control::leader::LeaderEpoch;
use std::sync::Arc;

use crate::admin::cells::optional;
use crate::state::store::replica::replica_name;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::state::leader_epoch;
use crate::state::store::leadership::Role;
use crate::state::store::replicated::{Cluster, OrderError, Replica};
use crate::state::txn::Txn;
use crate::telemetry::metrics::ReplicaNow;

/// Show the csi-clouds that share a store in etcd, or say which of them leads.
#[derive(Debug, Args, Serialize, Deserialize)]
pub struct ListReplicas {}

impl Command<AdminState> for ListReplicas {
    const NAME: &'static str = "replicas";
    const PATH: &'static str = "/replicas";
    const READS: bool = true;
    type Answer = Vec<ReplicaView>;

    async fn carry_out(self, admin: &AdminState) -> Result<Vec<ReplicaView>, Refusal> {
        admin.replicas().await
    }
}

/// Have a replica lead: the one that leads stops when this one has all commits.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromoteReplica {
    /// Its name
    #[arg(value_parser = replica_name)]
    pub name: String,
}

impl Command<AdminState> for PromoteReplica {
    const NAME: &'static str = "replicas promote";
    const PATH: &'static str = "/replicas/promote";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let name = self.name;
        admin.cluster()?.promote(&name).await?;
        Ok(Done::logged(format!(
            "{name} leads as soon as it has all commits; the leader stops for it"
        )))
    }
}

/// Have a replica not lead, for example as its machine goes away; another one leads.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainReplica {
    /// Its name
    #[arg(value_parser = replica_name)]
    pub name: String,
}

impl Command<AdminState> for DrainReplica {
    const NAME: &'static str = "replicas drain";
    const PATH: &'static str = "/replicas/drain";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let name = self.name;
        admin.cluster()?.drain(&name).await?;
        Ok(Done::logged(format!(
            "{name} does not lead any more, until `csi-cloud replicas undrain {name}`; if it leads \
             now, it stops when another one can"
        )))
    }
}

/// Let a drained replica lead again.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndrainReplica {
    /// Its name
    #[arg(value_parser = replica_name)]
    pub name: String,
}

impl Command<AdminState> for UndrainReplica {
    const NAME: &'static str = "replicas undrain";
    const PATH: &'static str = "/replicas/undrain";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let name = self.name;
        admin.cluster()?.undrain(&name).await?;
        Ok(Done::logged(format!("{name} may lead again")))
    }
}

/// Raise the leader epoch to one that nodes were told: they hear no csi-cloud with a lower one.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaiseEpoch {
    /// The epoch that nodes were told, as their refusals name it
    #[arg(long, value_name = "EPOCH")]
    pub to: u64,
}

impl Command<AdminState> for RaiseEpoch {
    const NAME: &'static str = "replicas raise";
    const PATH: &'static str = "/replicas/raise";
    const NEEDS_LINKS: bool = true;
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let to = LeaderEpoch(self.to);
        let latest = leader_epoch::latest();
        if to > latest {
            return Err(Refusal::bad(format!(
                "{to} is more than 30 days after this machine's clock, and nodes hear no such \
                 epoch; at most {latest}"
            )));
        }
        let raised = admin.store.write(move |txn: &mut Txn<'_>| txn.raise_leader_epoch(to));
        if let Err(last) = raised.await? {
            return Err(Refusal::conflict(format!("the leader epoch is {last} already")));
        }
        admin.store.leadership().resign();
        Ok(Done::logged(format!(
            "the leader epoch is {to} now; this csi-cloud ends, so that whoever runs it starts it \
             again with it"
        )))
    }
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

impl Row for ReplicaView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "LEADER", "EPOCH", "LAG", "VERSION", "DRAINED", "ENDPOINTS"];

    fn row(&self) -> Vec<String> {
        let yes = |is: bool| if is { "yes".to_owned() } else { String::new() };
        vec![
            self.name.clone(),
            yes(self.leads),
            optional(self.epoch),
            self.lag.to_string(),
            self.version.clone().unwrap_or_else(|| "not running".into()),
            yes(self.drained),
            self.endpoints.join(" "),
        ]
    }
}

impl From<OrderError> for Refusal {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Unknown { .. } => Self::unknown(error.to_string()),
            OrderError::Drained(_) => Self::conflict(error.to_string()),
            OrderError::Etcd(_) | OrderError::Store(_) => Self::failed(proto::host::chain(&error)),
        }
    }
}

impl AdminState {
    fn cluster(&self) -> Result<&Cluster, Refusal> {
        let alone = "this csi-cloud has its store alone; several share one in etcd, see \
                     docs/how-to/high-availability.md";
        self.store.cluster().map(|cluster| &**cluster).ok_or_else(|| Refusal::conflict(alone))
    }

    /// All replicas, by name.
    ///
    /// # Errors
    /// This csi-cloud has its store alone, or etcd gives no answer that can be used.
    pub(crate) async fn replicas(&self) -> Result<Vec<ReplicaView>, Refusal> {
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
