//! Who has a direct volume: the node, its pod, and where the volume is attached.

use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::state::record::LeaseRecord;

/// Who has a volume's exclusive lease, or where the volume is attached; all none if nobody has it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// The node.
    #[serde(default)]
    pub holder_node: Option<NodeName>,
    /// The pod's UID; none if the volume is only attached, empty if the pod is unknown.
    #[serde(default)]
    pub holder_pod: Option<String>,
    /// Whether the volume is attached to the node (ControllerPublishVolume).
    #[serde(default)]
    pub holder_attached: Option<bool>,
    /// The driver's id of the node to which it is attached.
    #[serde(default)]
    pub holder_node_id: Option<String>,
    /// The lease's epoch, which grows with each new holder; none if the volume is only attached.
    #[serde(default)]
    pub holder_epoch: Option<u64>,
    /// True if the node has the lease by its own word, which no MAC proved.
    #[serde(default)]
    pub holder_unproven: Option<bool>,
    /// Since when the pod has the volume, or it is attached, in ms since 1970.
    #[serde(default)]
    pub holder_since_ms: Option<u64>,
}

impl From<&LeaseRecord> for LeaseHolder {
    fn from(lease: &LeaseRecord) -> Self {
        let owner = lease.holder.as_ref();
        let attached_to = lease.attached.as_ref().map(|attached| &attached.node);
        let node = owner.map(|owner| &owner.node).or(attached_to);
        let attached = lease.attached.as_ref().filter(|attached| Some(&attached.node) == node);
        let owned_since = owner.map(|owner| owner.since);
        Self {
            holder_node: node.cloned(),
            holder_pod: owner.map(|owner| owner.pod.to_string()),
            holder_attached: node.map(|_| attached.is_some()),
            holder_node_id: attached.map(|attached| attached.id.to_string()),
            holder_epoch: owner.map(|owner| owner.epoch),
            holder_unproven: owner.map(|owner| owner.unproven),
            holder_since_ms: owned_since.or_else(|| attached.map(|attached| attached.since)),
        }
    }
}

/// What a node has of a direct volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// This pod has it there; empty if the pod is unknown.
    Pod(Box<str>),
    /// The node says that it has it, and the record does not.
    Claimed,
    /// It is attached there, and no pod has it.
    Attached,
}

/// What this node has of a direct volume, if anything.
pub(super) fn hold(lease: &LeaseRecord, node: &NodeName) -> Option<Hold> {
    if let Some(owner) = lease.holder.as_ref().filter(|owner| owner.node == *node) {
        return Some(Hold::Pod(owner.pod.clone()));
    }
    if lease.claims.iter().any(|claim| claim.node == *node) {
        return Some(Hold::Claimed);
    }
    let attached = lease.attached.as_ref().filter(|attached| attached.node == *node);
    attached.map(|_| Hold::Attached)
}
