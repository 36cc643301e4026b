//! Resolves conflicting claims to topology segments. Pure.
//!
//! Creates go where a segment is, so a node that claims another's gets its volumes and secrets. The
//! first node that claims a value keeps it. For a key that identifies nodes, a node's own name
//! beats every other claim to it.

use proto::csi::Segments;
use proto::csi::topology::NODE_SEGMENT;
use proto::names::{DriverName, NodeName};

use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::own_keys::id_of;
use crate::state::policy::{KeyKind, Policy};

/// The number of nodes that must have a key before it counts as identifying nodes.
const ENOUGH: usize = 2;
/// The number of nodes that must have different values, if these are neither names nor ids. Fewer
/// may be in different zones by chance.
const MANY: usize = 8;

/// A segment that two nodes claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contested {
    /// The key of the segment.
    pub key: String,
    /// The value of the segment.
    pub value: String,
    /// The node that has it.
    pub owner: NodeName,
    /// The node that does not.
    pub claimant: NodeName,
}

/// A node that claims segments.
pub struct Claimant<'a> {
    /// The node.
    pub node: &'a NodeName,
    /// The node's id at the driver; empty if it is not known.
    pub node_id: &'a str,
    /// The segments that the node's driver reports.
    pub segments: &'a Segments,
    /// True if the node's recorded segments count as claimed just now.
    pub is_new: bool,
}

/// The conflicts between this claimant and all other nodes.
pub fn contested(
    state: &State,
    driver: &DriverName,
    policy: Option<&Policy>,
    claimant: &Claimant<'_>,
) -> Vec<Contested> {
    let none = DriverState::default();
    let of = state.driver(driver).unwrap_or(&none);
    let mut contested = Vec::new();
    for (key, value) in claimant.segments {
        let is_of_nodes = match policy.and_then(|policy| policy.topology.get(key)) {
            Some(kind) => *kind == KeyKind::Node,
            None => key == NODE_SEGMENT || identifies_nodes(of, key, claimant.node),
        };
        if is_of_nodes {
            let segment = Segments::from([(key.clone(), value.clone())]);
            contested.extend(SegmentClaim { state, of, claimant, key, value, segment }.conflicts());
        }
    }
    contested
}

/// True if a key has identified nodes so far: every other node reports its own name or id, or many
/// nodes report different values.
fn identifies_nodes(of: &DriverState, key: &str, node: &NodeName) -> bool {
    let others = of.counts_of_others(key, node);
    let is_of_names = others.by >= ENOUGH && others.own == others.by;
    is_of_names || (others.by >= MANY && of.values_of_others(key, node) == others.by)
}

/// The claim of a node to one segment whose key tells nodes apart.
struct SegmentClaim<'a> {
    state: &'a State,
    of: &'a DriverState,
    claimant: &'a Claimant<'a>,
    key: &'a str,
    value: &'a str,
    segment: Segments,
}

impl SegmentClaim<'_> {
    /// The conflicts with the claims of others.
    fn conflicts(&self) -> Vec<Contested> {
        let node = self.claimant.node;
        if self.value == node.as_str() {
            // A node's own name beats an earlier claim of another one.
            return self.others().map(|other| self.contested(node, other)).collect();
        }
        let owner = self.named().or_else(|| self.first()).or_else(|| self.with_that_id());
        owner.iter().map(|owner| self.contested(owner, node)).collect()
    }

    /// The other nodes that are recorded with the segment.
    fn others(&self) -> impl Iterator<Item = &NodeName> {
        let located = self.of.located(&self.segment);
        located.filter(|other| *other != self.claimant.node && self.of.is_member(other))
    }

    /// The node whose name is the value.
    fn named(&self) -> Option<NodeName> {
        let named = self.value.parse::<NodeName>().ok()?;
        let is_there = self.state.node(&named).is_some() && !self.state.is_removed(&named);
        is_there.then_some(named)
    }

    /// The node that had the segment before. Of two nodes that are recorded with it, that is the
    /// one that linked first.
    fn first(&self) -> Option<NodeName> {
        let node = self.claimant.node;
        let at = self.of.at(node).filter(|_| !self.claimant.is_new);
        if !at.is_some_and(|at| at.is_at(&self.segment)) {
            return self.others().next().cloned();
        }
        let own = (self.since(node), node);
        self.others().find(|other| (self.since(other), *other) < own).cloned()
    }

    /// When a node linked first.
    fn since(&self, node: &NodeName) -> u64 {
        self.state.node(node).map_or(u64::MAX, |node| node.since)
    }

    /// The other node whose id at the driver is the value.
    fn with_that_id(&self) -> Option<NodeName> {
        if self.value == self.claimant.node_id {
            return None;
        }
        let mut others = self.of.members().filter(|(other, _)| *other != self.claimant.node);
        let found = others.find(|(_, at)| id_of(at).is_some_and(|id| id == self.value));
        found.map(|(other, _)| other.clone())
    }

    fn contested(&self, owner: &NodeName, claimant: &NodeName) -> Contested {
        Contested {
            key: self.key.into(),
            value: self.value.into(),
            owner: owner.clone(),
            claimant: claimant.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message;
    use proto::csi;

    use super::*;
    use crate::state::record::{Change, Node, NodeDriver};

    const KEY: &str = "d.example/node";

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    /// Nodes with these values and node ids.
    fn state(nodes: &[(&str, &str, &str)]) -> State {
        let driver = || "d.example".parse::<DriverName>().unwrap();
        let changes = nodes.iter().flat_map(|(node, value, id)| {
            let info = csi::NodeGetInfoResponse { node_id: (*id).into(), ..Default::default() };
            let segment = Arc::new((KEY.to_owned(), (*value).to_owned()));
            let at = NodeDriver {
                info: Some(info.encode_to_vec().into()),
                segments: [segment].into(),
                ..NodeDriver::default()
            };
            [
                Change::Node(name(node), Some(Node { since: 1, removed: None })),
                Change::NodeDriver(driver(), name(node), Some(at)),
            ]
        });
        State::of(changes)
    }

    /// Who has the value, and who does not, when this node claims it.
    fn claim(
        state: &State,
        kind: Option<KeyKind>,
        node: &str,
        value: &str,
    ) -> Option<(String, String)> {
        let policy = Policy {
            topology: kind.map(|kind| (KEY.to_owned(), kind)).into_iter().collect(),
            ..Policy::new(None)
        };
        let segments = Segments::from([(KEY.to_owned(), value.to_owned())]);
        let node = name(node);
        let claimant = Claimant { node: &node, node_id: "", segments: &segments, is_new: false };
        let contested = contested(state, &"d.example".parse().unwrap(), Some(&policy), &claimant);
        assert!(contested.len() <= 1);
        let first = contested.into_iter().next()?;
        Some((first.owner.to_string(), first.claimant.to_string()))
    }

    fn lost(owner: &str, claimant: &str) -> Option<(String, String)> {
        Some((owner.into(), claimant.into()))
    }

    #[test]
    fn what_is_anothers_is_refused_and_the_newcomer_loses() {
        let state = state(&[("n1", "n1", "n1"), ("n2", "serial-2", "i-2")]);
        let node = Some(KeyKind::Node);
        assert_eq!(claim(&state, node, "n3", "n3"), None);
        assert_eq!(claim(&state, node, "n3", "serial-3"), None);
        assert_eq!(claim(&state, node, "n3", "n1"), lost("n1", "n3"));
        assert_eq!(
            claim(&state, node, "n3", "n2"),
            lost("n2", "n3"),
            "a name, though not its value"
        );
        assert_eq!(claim(&state, node, "n3", "serial-2"), lost("n2", "n3"), "the first keeps it");
        assert_eq!(claim(&state, node, "n3", "i-2"), lost("n2", "n3"), "its node id");
        assert_eq!(claim(&state, node, "n2", "serial-2"), None, "it had it before");
        assert_eq!(claim(&state, Some(KeyKind::Any), "n3", "n1"), None);
    }

    #[test]
    fn a_nodes_own_name_beats_an_earlier_claim() {
        let state = state(&[("thief", "victim", "t")]);
        assert_eq!(claim(&state, Some(KeyKind::Node), "victim", "victim"), lost("victim", "thief"));
        assert_eq!(claim(&state, Some(KeyKind::Any), "victim", "victim"), None);
    }

    #[test]
    fn of_two_that_are_recorded_with_a_value_the_older_one_has_it() {
        let mut state = state(&[("n1", "serial", "x"), ("n2", "serial", "y")]);
        let node = Some(KeyKind::Node);
        assert_eq!(claim(&state, node, "n1", "serial"), None);
        assert_eq!(claim(&state, node, "n2", "serial"), lost("n1", "n2"));
        // By the time at which they linked first, then by name.
        state.apply(Change::Node(name("n1"), Some(Node { since: 2, removed: None })));
        assert_eq!(claim(&state, node, "n1", "serial"), lost("n2", "n1"));
        assert_eq!(claim(&state, node, "n2", "serial"), None);
    }

    #[test]
    fn a_key_counts_if_many_nodes_have_different_values() {
        let names: Vec<_> = (0..MANY).map(|n| (format!("n{n}"), format!("rack-{n}"))).collect();
        let nodes: Vec<_> = names.iter().map(|(node, rack)| (&**node, &**rack, "")).collect();
        let all = state(&nodes);
        assert_eq!(claim(&all, None, "new", "rack-3"), lost("n3", "new"));
        assert_eq!(claim(&all, None, "new", "rack-9"), None);
        assert_eq!(claim(&state(&nodes[1..]), None, "new", "rack-3"), None, "too few");
        let mut zones = nodes.clone();
        zones.push(("other", "rack-3", ""));
        assert_eq!(claim(&state(&zones), None, "new", "rack-3"), None, "it is a zone");
        assert_eq!(claim(&all, Some(KeyKind::Any), "new", "rack-3"), None);
    }

    #[test]
    fn a_key_that_nobody_declared_counts_if_all_say_their_own_name_or_id() {
        let names = state(&[("n1", "n1", "x"), ("n2", "i-2", "i-2")]);
        assert_eq!(claim(&names, None, "n3", "n1"), lost("n1", "n3"));
        let one = state(&[("n1", "n1", "x")]);
        assert_eq!(claim(&one, None, "n3", "n1"), None, "one node tells nothing apart");
        let zones = state(&[("n1", "a", "x"), ("n2", "b", "y")]);
        assert_eq!(claim(&zones, None, "n3", "a"), None);
    }
}
