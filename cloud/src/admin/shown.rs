//! What the admin socket takes and gives, as JSON. Names of fields are a promise to scripts:
//! `docs/operations.md` has them, and new ones are only added.

use std::collections::BTreeMap;

use proto::csi::{Id, Method};
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::state::record::Ownership;

/// A part of a list, and where the next one begins.
#[derive(Debug, Serialize, Deserialize)]
pub struct Page<T, C> {
    /// In order; may be empty though more comes.
    pub items: Vec<T>,
    /// To be asked for next, as `after`; none at the end.
    pub next: Option<C>,
}

/// Asks for nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskNodes {
    /// The last one that is known already.
    pub after: Option<NodeName>,
}

/// A node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShown {
    /// Its name.
    pub name: NodeName,
    /// `linked`, `away` or `removed`.
    pub state: String,
    /// For how long it has been linked, in s.
    pub linked_s: Option<u64>,
    /// For how long it has been away, in s; at most as long as csi-cloud runs.
    pub away_s: Option<u64>,
    /// `wss` or `quic`.
    pub transport: Option<String>,
    /// From where it dialed.
    pub address: Option<String>,
    /// Of csi-edge.
    pub version: Option<String>,
    /// What it has.
    pub drivers: Vec<DriverName>,
    /// Volumes that live there or are being made there, those that are lost left out.
    pub volumes: u64,
    /// When it first linked, in ms since 1970.
    pub since_ms: u64,
    /// When it was removed, in ms since 1970.
    pub removed_ms: Option<u64>,
}

/// A driver.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverShown {
    /// Its name.
    pub name: DriverName,
    /// Whether it has a front here.
    pub front: bool,
    /// `node` or `shared`.
    pub scope: String,
    /// Whether the scope is what the driver says, and not the operator.
    pub scope_inferred: bool,
    /// `spread`, or `pinned NODE`; empty for a shared driver.
    pub placement: String,
    /// The node that carries out the calls of a shared driver.
    pub elected: Option<NodeName>,
    /// How many nodes have it.
    pub nodes: usize,
    /// How many of them have a link.
    pub nodes_linked: usize,
    /// How many volumes, snapshots and groups are known.
    pub homes: usize,
    /// How many creates have an outcome that nobody knows.
    pub intents_open: usize,
    /// How many calls are in flight.
    pub calls: usize,
    /// What it can do, by RPC that says so; none before any node has said anything.
    pub capabilities: Option<BTreeMap<String, Vec<String>>>,
    /// What some nodes can and others cannot.
    pub odd: Vec<String>,
    /// How its CSIDriver object stands: `ours`, `not yet`, or why it is left as it is. None without Kubernetes.
    #[serde(default)]
    pub csidriver: Option<String>,
}

/// Asks for volumes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskVolumes {
    /// Of this driver only.
    pub driver: Option<DriverName>,
    /// At this node only.
    pub node: Option<NodeName>,
    /// Snapshots and groups as well.
    pub all: bool,
    /// The last one that is known already.
    pub after: Option<Place>,
}

/// A place in a list of what drivers have.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Place {
    /// The driver.
    pub driver: DriverName,
    /// `volume`, `snapshot` or `group`; for a create its method.
    pub kind: String,
    /// The id, or the name.
    pub id: String,
}

/// A volume, snapshot or group.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeShown {
    /// `volume`, `snapshot` or `group`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Its driver.
    pub driver: DriverName,
    /// Where it lives.
    pub node: NodeName,
    /// The name that it was made under.
    pub name: Option<String>,
    /// Its size as last known, in bytes.
    pub capacity_bytes: Option<i64>,
    /// The driver's ids of the nodes to which it is published.
    pub published: Vec<String>,
    /// The claim's namespace, if the provisioner said so.
    pub claim_namespace: Option<String>,
    /// The claim's name.
    pub claim_name: Option<String>,
    /// The PersistentVolume's name.
    pub persistent_volume: Option<String>,
    /// When it was learned of, in ms since 1970.
    pub since_ms: u64,
    /// `ok`, `absent` (its node's last list did not have it), `lost` (its node was removed) or `claimed` (another
    /// node says that it has it as well).
    pub state: String,
    /// The other nodes that say that they have it.
    pub claimed_by: Vec<NodeName>,
    /// Who owns it, if one guest does; see [`OwnerShown`] for the fields.
    #[serde(flatten)]
    pub holder: Holder,
}

/// Who has a volume that one guest owns, or where it is attached; all of it is none if nobody has it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The node.
    #[serde(default)]
    pub holder_node: Option<NodeName>,
    /// The pod's UID; none if the volume is attached only, empty if the pod is not known.
    #[serde(default)]
    pub holder_pod: Option<String>,
    /// Whether it is attached to the node (ControllerPublishVolume).
    #[serde(default)]
    pub holder_attached: Option<bool>,
    /// As what it is attached there: the node's id at its driver.
    #[serde(default)]
    pub holder_node_id: Option<String>,
    /// Grows with each time that a volume is given to anybody; none if the volume is attached only.
    #[serde(default)]
    pub holder_epoch: Option<u64>,
    /// Since when the pod has it, or it is attached, in ms since 1970.
    #[serde(default)]
    pub holder_since_ms: Option<u64>,
}

/// Asks whose volumes are that one guest owns.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskOwners {
    /// Of this driver only.
    pub driver: Option<DriverName>,
    /// At this node only.
    pub node: Option<NodeName>,
    /// The last one that is known already.
    pub after: Option<Place>,
}

/// A volume that one guest owns.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerShown {
    /// The volume's id.
    pub id: String,
    /// Its driver.
    pub driver: DriverName,
    /// Who has it.
    #[serde(flatten)]
    pub holder: Holder,
    /// Whether that node has a link.
    pub linked: Option<bool>,
    /// The epoch at which an operator took it from a node last.
    pub broken: Option<u64>,
    /// From whom it was taken who has not had it since.
    #[serde(default)]
    pub taken_from: Vec<NodeName>,
}

/// Takes a volume from a node that is away for good.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseVolume {
    /// Its driver.
    pub driver: DriverName,
    /// Its id.
    pub id: String,
    /// The node that has it.
    pub node: NodeName,
    /// Do it, and not only say what it would do.
    #[serde(default)]
    pub yes: bool,
}

/// Asks for creates.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AskIntents {
    /// Of this driver only.
    pub driver: Option<DriverName>,
    /// Those whose outcome is known as well.
    pub all: bool,
    /// The last one that is known already.
    pub after: Option<Place>,
}

/// A create that was sent to a node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentShown {
    /// Its RPC method.
    pub method: String,
    /// The name.
    pub name: String,
    /// The driver.
    pub driver: DriverName,
    /// Where it was sent.
    pub node: NodeName,
    /// The claim's namespace, if the provisioner said so.
    pub claim_namespace: Option<String>,
    /// The claim's name.
    pub claim_name: Option<String>,
    /// When it was first sent, in ms since 1970.
    pub since_ms: u64,
    /// The id of what it made; none while nobody knows.
    pub made: Option<String>,
}

/// A call in flight.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallShown {
    /// Its number since csi-cloud began.
    pub number: u64,
    /// Its RPC method.
    pub rpc: String,
    /// Whose front it is at.
    pub driver: DriverName,
    /// The node that it was sent to last.
    pub node: Option<NodeName>,
    /// The id or name that it is about, its first 256 characters.
    pub subject: String,
    /// For how long, in ms.
    pub age_ms: u64,
    /// `front`, `sent`, or `waiting` for its node's next link.
    pub stage: String,
}

/// Everything at a glance. Counts of calls and commits are since csi-cloud began.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopShown {
    /// Nodes that ever linked.
    pub nodes: usize,
    /// Nodes that have a link.
    pub nodes_linked: usize,
    /// Changes that wait to be made durable.
    pub store_queue: usize,
    /// By driver.
    pub drivers: Vec<TopDriver>,
    /// The oldest calls in flight, 20 at most.
    pub calls: Vec<CallShown>,
}

/// A driver at a glance.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopDriver {
    /// Its name.
    pub name: DriverName,
    /// How many nodes have it.
    pub nodes: usize,
    /// How many of them have a link.
    pub nodes_linked: usize,
    /// How many volumes, snapshots and groups are known.
    pub homes: usize,
    /// How many creates have an outcome that nobody knows.
    pub intents_open: usize,
    /// Calls in flight.
    pub calls_in_flight: usize,
    /// Calls that were answered.
    pub calls_answered: u64,
    /// Those that were answered with another code than OK.
    pub calls_failed: u64,
    /// How long those that were answered took altogether, in ms.
    pub calls_ms: u64,
}

/// Removes a node for good.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveNode {
    /// Its name.
    pub node: NodeName,
    /// Do it, and not only say what it would do.
    #[serde(default)]
    pub yes: bool,
}

/// Lets a node that was removed in again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitNode {
    /// Its name.
    pub node: NodeName,
}

/// Says what came of a create.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveIntent {
    /// Its driver.
    pub driver: DriverName,
    /// Its RPC method.
    pub method: String,
    /// The name.
    pub name: String,
    /// The id of what it made; none if it made nothing.
    pub made: Option<String>,
}

/// Forgets where something lives.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetVolume {
    /// Its driver.
    pub driver: DriverName,
    /// `volume`, `snapshot` or `group`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Also if it is neither lost nor absent.
    #[serde(default)]
    pub force: bool,
}

/// Learns what lives where.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RebuildHomes {
    /// Of this driver only; of all if there is none.
    pub driver: Option<DriverName>,
    /// From these, and not from the nodes.
    pub homes: Option<Vec<GivenHome>>,
}

/// Where a volume lives, as an operator says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenHome {
    /// Its driver.
    pub driver: DriverName,
    /// Its node.
    pub node: NodeName,
    /// Its id.
    pub id: String,
}

/// What a change did.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Whether anything was done; if not, `text` says what would be.
    pub done: bool,
    /// For an operator.
    pub text: String,
}

/// Why nothing was done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// For an operator.
    pub error: String,
}

impl From<&Ownership> for Holder {
    fn from(own: &Ownership) -> Self {
        let owner = own.owner.as_ref();
        let node =
            owner.map(|owner| &owner.node).or_else(|| own.attached.as_ref().map(|attached| &attached.node));
        let attached = own.attached.as_ref().filter(|attached| Some(&attached.node) == node);
        Self {
            holder_node: node.cloned(),
            holder_pod: owner.map(|owner| owner.pod.to_string()),
            holder_attached: node.map(|_| attached.is_some()),
            holder_node_id: attached.map(|attached| attached.id.to_string()),
            holder_epoch: owner.map(|owner| owner.epoch),
            holder_since_ms: owner
                .map(|owner| owner.since)
                .or_else(|| attached.map(|attached| attached.since)),
        }
    }
}

/// What kind of thing an id is of, for an operator.
pub(crate) fn kind(id: &Id) -> &'static str {
    match id {
        Id::Volume(_) => "volume",
        Id::Snapshot(_) => "snapshot",
        Id::Group(_) => "group",
        Id::Name(method, _) => method.name(),
    }
}

/// The id of something of this kind; none for a kind that nobody knows.
pub(crate) fn id(kind: &str, text: &str) -> Option<Id> {
    let text = text.to_owned();
    match kind {
        "volume" => Some(Id::Volume(text)),
        "snapshot" => Some(Id::Snapshot(text)),
        "group" => Some(Id::Group(text)),
        method => {
            let method = Method::of_name(method).filter(|method| method.creates().is_some());
            method.map(|method| Id::Name(method, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_is_written() {
        let name = |method| Id::Name(method, "x".into());
        for known in [
            Id::Volume("x".into()),
            Id::Snapshot("x".into()),
            Id::Group("x".into()),
            name(Method::CreateVolume),
            name(Method::CreateSnapshot),
            name(Method::CreateVolumeGroupSnapshot),
        ] {
            assert_eq!(id(kind(&known), "x"), Some(known));
        }
        assert_eq!(id("volumes", "x"), None);
    }

    #[test]
    fn a_wrong_key_is_refused_and_not_overlooked() {
        assert!(serde_json::from_str::<AskVolumes>(r#"{"drver": "d"}"#).is_err());
        assert!(serde_json::from_str::<AskVolumes>("{}").is_ok());
    }
}
