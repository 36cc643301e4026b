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
            None => key == NODE_SEGMENT || tells_nodes_apart(of, key, claimant.node),
        };
        if is_of_nodes {
            contested.extend(rivals(state, of, claimant, key, value));
        }
    }
    contested
}

/// True if a key has identified nodes so far: every other node reports its own name or id, or many
/// nodes report different values.
fn tells_nodes_apart(of: &DriverState, key: &str, node: &NodeName) -> bool {
    let others = of.said_by_others(key, node);
    let is_of_names = others.by >= ENOUGH && others.own == others.by;
    is_of_names || (others.by >= MANY && of.values_of_others(key, node) == others.by)
}

/// The conflicting claims to one segment whose key identifies nodes.
fn rivals(
    state: &State,
    of: &DriverState,
    claimant: &Claimant<'_>,
    key: &str,
    value: &str,
) -> Vec<Contested> {
    let Claimant { node, node_id, is_new, .. } = claimant;
    let segment = Segments::from([(key.to_owned(), value.to_owned())]);
    let others = || of.located(&segment).filter(|other| other != node && of.is_member(other));
    let contest = |owner: &NodeName, loser: &NodeName| Contested {
        key: key.into(),
        value: value.into(),
        owner: owner.clone(),
        claimant: loser.clone(),
    };
    if value == node.as_str() {
        // A node's own name beats an earlier claim of another one.
        return others().map(|other| contest(node, other)).collect();
    }
    let named = value.parse::<NodeName>().ok();
    let named = named.filter(|named| state.node(named).is_some() && !state.is_removed(named));
    let had = || !is_new && of.at(node).is_some_and(|at| at.is_at(&segment));
    // Of two nodes that are recorded with it, the one that linked first has it.
    let since = |node: &NodeName| state.node(node).map_or(u64::MAX, |node| node.since);
    let is_older = |other: &&NodeName| (since(other), *other) < (since(node), *node);
    let first = || match had() {
        false => others().next().cloned(),
        true => others().find(is_older).cloned(),
    };
    let by_id = || {
        let mut others = of.members().filter(|(other, _)| other != node);
        let its = |at| id_of(at).is_some_and(|id| id == value);
        let rival = (value != *node_id).then(|| others.find(|(_, at)| its(at)));
        rival.flatten().map(|(other, _)| other.clone())
    };
    let owner = named.or_else(first).or_else(by_id);
    owner.iter().map(|owner| contest(owner, node)).collect()
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
