//! The holder of a direct volume: its node, its pod, and the node to which it is attached.

use proto::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::state::record::LeaseRecord;

/// The holder of a volume's exclusive lease, or its attachment; all none if there is neither.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// The node.
    #[serde(default)]
    pub holder_node: Option<NodeName>,
    /// The pod's UID; none if the volume is only attached, empty if the pod is unknown.
    #[serde(default)]
    pub holder_pod: Option<String>,
    /// True if the volume is attached to the node (ControllerPublishVolume).
    #[serde(default)]
    pub holder_attached: Option<bool>,
    /// The driver's id of the node to which it is attached.
    #[serde(default)]
    pub holder_node_id: Option<String>,
    /// The lease's epoch, which grows with each new holder; none if the volume is only attached.
    #[serde(default)]
    pub holder_epoch: Option<u64>,
    /// True if only the node itself claims the lease, without a MAC that proves it.
    #[serde(default)]
    pub holder_unproven: Option<bool>,
    /// The begin of the lease or of the attachment, in ms since 1970.
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

/// A node's relation to a direct volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// This pod holds it; empty if the pod is unknown.
    Pod(Box<str>),
    /// The node claims it, and the record names another holder or none.
    Claimed,
    /// It is attached there, and no pod holds it.
    Attached,
}

/// The node's relation to a direct volume, if there is one.
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
