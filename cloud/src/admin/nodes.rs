//! `csi-cloud nodes`: all nodes that ever linked.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use proto::names::certificate::Subject;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::driver_health::HealthView;
use crate::admin::page::{PAGE, Page};
use crate::nodes::handle::Handle;
use crate::state::condition::NodeCondition;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::record::Node;
use crate::state::set_apart::Apart;

/// The path of the command.
pub(crate) const PATH: &str = "/nodes";

/// Asks for nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodesQuery {
    /// The last node of the page before.
    pub after: Option<NodeName>,
}

/// A node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// `linked`, `away`, `revoked` or `removed`.
    pub state: String,
    /// The time since it linked, in s.
    pub linked_s: Option<u64>,
    /// The time for which it has been away, in s; at most since csi-cloud began.
    pub away_s: Option<u64>,
    /// `wss` or `quic`.
    pub transport: Option<String>,
    /// From where it dialed.
    pub address: Option<String>,
    /// The version of csi-edge.
    pub version: Option<String>,
    /// The drivers that it has.
    pub drivers: Vec<DriverName>,
    /// Drivers that it names and that have no front; nothing is stored of them.
    #[serde(default)]
    pub unserved: Vec<DriverName>,
    /// The health of its drivers, as its edge reports it; empty without a link.
    #[serde(default)]
    pub health: BTreeMap<DriverName, HealthView>,
    /// Volumes that live or are being created there, without lost ones.
    pub volumes: u64,
    /// Direct volumes there that no runtime took, by the edge's last report.
    pub not_taken: u64,
    /// The time at which it first linked, in ms since 1970.
    pub since_ms: u64,
    /// The time at which it was removed, in ms since 1970.
    pub removed_ms: Option<u64>,
    /// The end of the certificate of its link, in ms since 1970; none without a link.
    #[serde(default)]
    pub not_after_ms: Option<u64>,
    /// The time at which its certificates were revoked, in ms since 1970, also if it has joined
    /// again.
    #[serde(default)]
    pub revoked_ms: Option<u64>,
    /// The reason why it is set apart, for each driver or for all.
    #[serde(default)]
    pub set_apart: Vec<SetApartView>,
}

/// A reason for which a node is set apart.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetApartView {
    /// The driver for which it is set apart; none for all drivers.
    pub driver: Option<DriverName>,
    /// The kind of the reason, for programs.
    pub reason: String,
    /// The reason, for people.
    pub why: String,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
}

impl SetApartView {
    fn of(driver: Option<&DriverName>, apart: &Apart) -> Self {
        Self {
            driver: driver.cloned(),
            reason: apart.reason.kind().name().into(),
            why: apart.reason.to_string(),
            since_ms: apart.since,
        }
    }
}

impl AdminState {
    /// Nodes by name.
    pub(super) fn nodes(&self, query: &NodesQuery) -> Page<NodeView, String> {
        let from = query.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let stored: Vec<_> = self.store.read(|state| {
            let nodes = state.nodes().range((from, Bound::Unbounded)).take(PAGE);
            let stored = |(name, node)| {
                let link = self.links.now(name);
                (stored(state, name, node, link.is_some()), link)
            };
            nodes.map(stored).collect()
        });
        let items: Vec<_> =
            stored.into_iter().map(|(node, link)| self.with_link(node, link)).collect();
        let next = items.last().filter(|_| items.len() == PAGE).map(|node| node.name.to_string());
        Page { items, next }
    }

    /// One node; none if it never linked.
    pub(crate) fn node(&self, name: &NodeName) -> Option<NodeView> {
        let (node, link) = self.store.read(|state| {
            let link = self.links.now(name);
            Some((stored(state, name, state.node(name)?, link.is_some()), link))
        })?;
        Some(self.with_link(node, link))
    }

    /// Adds the state of the node's link, or the time without one.
    fn with_link(&self, mut node: NodeView, link: Option<Arc<Handle>>) -> NodeView {
        node.not_taken = self.store.not_taken().total(&node.name);
        let Some(link) = link else {
            node.away_s = self.links.away(&node.name).map(|away| away.as_secs());
            return node;
        };
        let end = link.expires().and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        node.not_after_ms = end.and_then(|end| u64::try_from(end.as_millis()).ok());
        node.unserved = link.unserved().into_iter().map(|driver| driver.name).collect();
        let health = |driver: &DriverName| Some((driver.clone(), self.health(&node.name, driver)?));
        node.health = node.drivers.iter().filter_map(health).collect();
        node.linked_s = Some(link.begun.elapsed().as_secs());
        node.transport = Some(link.peer.transport).filter(|name| !name.is_empty()).map(Into::into);
        node.address = link.peer.address.map(|address| address.to_string());
        node.version = Some(link.peer.version.to_string());
        node
    }
}

/// A node as the store knows it.
fn stored(state: &State, name: &NodeName, node: &Node, is_linked: bool) -> NodeView {
    let revocation = state.trust().revocation(&Subject::Node(name.clone()));
    let drivers = state.drivers();
    let has = |of: &DriverState| of.at(name).is_some_and(|at| at.gone.is_none());
    let apart = state.apart().at(name);
    let here = drivers.iter().filter(|(_, of)| has(of));
    NodeView {
        name: name.clone(),
        state: NodeCondition::of(state, name, is_linked).name().into(),
        linked_s: None,
        away_s: None,
        transport: None,
        address: None,
        version: None,
        drivers: here.map(|(driver, _)| (*driver).clone()).collect(),
        unserved: Vec::new(),
        health: BTreeMap::new(),
        volumes: drivers.values().map(|of| of.load(name)).sum(),
        not_taken: 0,
        since_ms: node.since,
        removed_ms: node.removed,
        not_after_ms: None,
        revoked_ms: revocation.map(|revocation| revocation.since),
        set_apart: apart.map(|(driver, apart)| SetApartView::of(driver, apart)).collect(),
    }
}
