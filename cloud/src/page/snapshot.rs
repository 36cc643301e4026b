//! The whole fleet at one moment, as plain values. All views are made of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::names::{DriverName, NodeName};

use super::node_state::NodeState;
use super::problem::{Problem, near};
use crate::admin::replicas::ReplicaView;

/// The fleet at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// When, in ms since 1970.
    pub(super) at: u64,
    /// All nodes by name.
    pub(super) nodes: Vec<NodeCell>,
    /// The drivers that have a front.
    pub(super) drivers: Vec<DriverCell>,
    /// What is wrong, the worst first.
    pub(super) problems: Vec<Problem>,
    /// The calls in flight.
    pub(super) in_flight: InFlight,
    /// When csi-cloud's own certificate and its CA end, in ms since 1970.
    pub(super) own_ends: Vec<(&'static str, u64)>,
    /// The csi-clouds that share the store; none if this one has it alone.
    pub(super) several: Option<Several>,
}

/// The csi-clouds that share a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Several {
    /// All of them by name.
    pub(super) replicas: Vec<ReplicaCell>,
    /// Whether etcd gave no answer since.
    pub(super) is_old: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicaCell {
    /// As `csi-cloud replicas` has it.
    pub(super) view: ReplicaView,
    /// Since when it does what it does, in ms since 1970, as far as is known.
    pub(super) since: Option<u64>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeCell {
    /// Its name.
    pub(super) name: NodeName,
    /// How it is.
    pub(super) state: NodeState,
    /// Since when it is so, in ms since 1970, as far as is known.
    pub(super) since: Option<u64>,
    /// The drivers that it has.
    pub(super) drivers: Vec<Arc<DriverName>>,
    /// Volumes that live or are being made there.
    pub(super) volumes: u64,
    /// When the certificate of its link ends, in ms since 1970.
    pub(super) ends: Option<u64>,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverCell {
    /// Its name.
    pub(super) name: Arc<DriverName>,
    /// Volumes, snapshots and groups.
    pub(super) homes: usize,
    /// Creates whose outcome is not known.
    pub(super) intents: usize,
    /// Calls answered since csi-cloud began.
    pub(super) answered: u64,
    /// Those of them that failed.
    pub(super) failed: u64,
}

/// The calls in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlight {
    /// All of them.
    pub(super) calls: usize,
    /// Those that wait for their node's next link.
    pub(super) waiting: usize,
    /// Those that take longer than they should.
    pub(super) long: usize,
    /// When the oldest began, in ms since 1970.
    pub(super) oldest: Option<u64>,
}

impl Snapshot {
    /// The number of nodes in each state.
    pub(super) fn counts(&self) -> BTreeMap<NodeState, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.state).or_default() += 1;
        }
        counts
    }

    /// A node.
    pub(super) fn node(&self, name: &str) -> Option<&NodeCell> {
        let at = self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok()?;
        self.nodes.get(at)
    }

    /// The nodes that are in another state than before; none if some are new or gone.
    pub(super) fn changed(&self, before: &Self) -> Option<Vec<&NodeCell>> {
        if self.nodes.len() != before.nodes.len() {
            return None;
        }
        let mut changed = Vec::new();
        for (now, then) in self.nodes.iter().zip(&before.nodes) {
            if now.name != then.name {
                return None;
            }
            if now.state != then.state {
                changed.push(now);
            }
        }
        Some(changed)
    }

    /// Whether the same is wrong as before.
    pub(super) fn has_same_problems(&self, before: &Self) -> bool {
        self.problems.len() == before.problems.len()
            && self.problems.iter().zip(&before.problems).all(|(now, then)| now.is_same(then))
    }

    /// Whether the same calls are in flight as before, as far as it is shown.
    pub(super) fn has_same_calls(&self, before: &Self) -> bool {
        let [now, then] = [self, before].map(|of| &of.in_flight);
        let numbers = |of: &InFlight| (of.calls, of.waiting, of.long);
        numbers(now) == numbers(then)
            && near(now.oldest, then.oldest)
            && self.drivers == before.drivers
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A node of one driver.
    pub(in crate::page) fn node(name: &str, state: NodeState) -> NodeCell {
        NodeCell {
            name: name.parse().unwrap(),
            state,
            since: Some(1_000),
            drivers: vec![Arc::new("d.example".parse().unwrap())],
            volumes: 2,
            ends: Some(1_000_000_000),
        }
    }

    /// A csi-cloud that follows another one.
    pub(in crate::page) fn replica(name: &str) -> ReplicaView {
        ReplicaView {
            name: name.into(),
            leads: false,
            epoch: None,
            lag: 0,
            version: Some("1".into()),
            drained: false,
            endpoints: Vec::new(),
            this: false,
        }
    }

    /// Some nodes.
    pub(in crate::page) fn fleet(nodes: &[(&str, NodeState)]) -> Snapshot {
        let nodes = nodes.iter().map(|(name, state)| node(name, *state)).collect();
        Snapshot { at: 61_000, nodes, ..Snapshot::default() }
    }

    #[test]
    fn a_change_names_its_nodes_and_a_new_node_changes_everything() {
        let before = fleet(&[("a", NodeState::Linked), ("b", NodeState::Linked)]);
        let now = fleet(&[("a", NodeState::Linked), ("b", NodeState::Away)]);
        let changed: Vec<_> = now.changed(&before).unwrap();
        assert_eq!(changed, [&node("b", NodeState::Away)]);
        assert_eq!(before.changed(&before), Some(Vec::new()));
        let more = fleet(&[("a", NodeState::Linked)]);
        assert_eq!(more.changed(&before), None);
        let other = fleet(&[("a", NodeState::Linked), ("c", NodeState::Linked)]);
        assert_eq!(other.changed(&before), None);
        assert_eq!(now.node("b").map(|node| node.state), Some(NodeState::Away));
        assert_eq!(now.node("c"), None);
        assert_eq!(now.counts().get(&NodeState::Away), Some(&1));
    }
}
