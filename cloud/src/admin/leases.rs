//! `csi-cloud owners`: who has the exclusive leases of direct volumes.

use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::lease_holder::{LeaseHolder, hold};
use crate::admin::page::{Cursor, Page, Records, Walk, ids_after};
use crate::state::record::LeaseRecord;

/// The path of the command.
pub(crate) const PATH: &str = "/owners";

/// Asks for leases.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeasesQuery {
    /// Of this driver only.
    pub driver: Option<DriverName>,
    /// At this node only.
    pub node: Option<NodeName>,
    /// The end of the page before.
    pub after: Option<Cursor>,
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
