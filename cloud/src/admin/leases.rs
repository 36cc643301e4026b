//! `csi-cloud leases`: who has the exclusive leases of direct volumes.

use clap::Args;
use proto::admin::command::{Command, Page, Refusal, Row};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::cells::{optional, short, since};
use crate::admin::page::{Cursor, Records, Walk, ids_after};
use crate::state::record::LeaseRecord;

/// Show which node has each direct volume, and from which nodes one was taken.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeasesQuery {
    /// Of this driver only
    #[arg(long, value_name = "NAME")]
    pub driver: Option<DriverName>,
    /// At this node only
    #[arg(long, value_name = "NODE")]
    pub node: Option<NodeName>,
    /// The end of the page before.
    #[arg(skip)]
    pub after: Option<Cursor>,
}

impl Command<AdminState> for LeasesQuery {
    const NAME: &'static str = "leases";
    const PATH: &'static str = "/owners";
    const READS: bool = true;
    type Answer = Page<LeaseView, Cursor>;

    async fn carry_out(self, admin: &AdminState) -> Result<Page<LeaseView, Cursor>, Refusal> {
        Ok(admin.leases(&self))
    }
}

/// The lease of a direct volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The volume's id.
    pub id: String,
    /// Its driver.
    pub driver: DriverName,
    /// Its holder.
    #[serde(flatten)]
    pub holder: LeaseHolder,
    /// Whether the holder's node has a link.
    pub linked: Option<bool>,
    /// The last epoch at which an operator took the volume from a node.
    pub broken: Option<u64>,
    /// The nodes from which it was taken and which have not had it since.
    #[serde(default)]
    pub taken_from: Vec<NodeName>,
    /// The nodes that say that they have it, without a proof and against the record or each other.
    #[serde(default)]
    pub claimed_by: Vec<NodeName>,
}

impl Row for LeaseView {
    const HEADERS: &'static [&'static str] = &[
        "ID",
        "DRIVER",
        "NODE",
        "LINK",
        "POD",
        "ATTACHED",
        "EPOCH",
        "AGE",
        "TAKEN FROM",
        "CLAIMED BY",
    ];

    fn row(&self) -> Vec<String> {
        let holder = &self.holder;
        let link = self.linked.map(|linked| if linked { "linked" } else { "away" });
        let attached = holder.holder_attached.map(|attached| if attached { "yes" } else { "no" });
        let pod = holder.holder_pod.as_deref().map(|pod| if pod.is_empty() { "?" } else { pod });
        let taken_from: Vec<_> = self.taken_from.iter().map(ToString::to_string).collect();
        let claimed_by: Vec<_> = self.claimed_by.iter().map(ToString::to_string).collect();
        vec![
            short(&self.id),
            self.driver.to_string(),
            optional(holder.holder_node.as_ref()),
            optional(link),
            optional(pod),
            optional(attached),
            optional(holder.holder_epoch),
            holder.holder_since_ms.map(since).unwrap_or_default(),
            taken_from.join(" "),
            claimed_by.join(" "),
        ]
    }
}

impl AdminState {
    /// Leases by driver and volume.
    pub(super) fn leases(&self, query: &LeasesQuery) -> Page<LeaseView, Cursor> {
        let walk = Walk { driver: query.driver.as_ref(), after: query.after.as_ref() };
        let mut items = Vec::new();
        let next = self.store.read(|state| {
            walk.visit(
                state,
                |of, after| -> Records<'_, LeaseRecord> {
                    Box::new(of.leases().range(ids_after(after)))
                },
                |driver, id, lease| {
                    if query.node.as_ref().is_none_or(|node| hold(lease, node).is_some()) {
                        items.push(view(driver, id, lease));
                    }
                },
            )
        });
        for item in &mut items {
            let node = item.holder.holder_node.as_ref();
            item.linked = node.map(|node| self.links.now(node).is_some());
        }
        Page { items, next }
    }
}

fn view(driver: &DriverName, id: &Id, lease: &LeaseRecord) -> LeaseView {
    LeaseView {
        id: id.text().into(),
        driver: driver.clone(),
        holder: LeaseHolder::from(lease),
        linked: None,
        broken: lease.broken.iter().map(|broken| broken.epoch).max(),
        taken_from: lease.broken.iter().map(|broken| broken.node.clone()).collect(),
        claimed_by: lease.claims.iter().map(|claim| claim.node.clone()).collect(),
    }
}

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
