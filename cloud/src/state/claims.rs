//! Resolves conflicting claims to topology segments. Pure.
//!
//! Creates go where a segment is, so a node that claims another's gets its volumes and secrets. The
//! first node that claims a value keeps it, and a node's own name beats every other claim to it.
//! This holds for keys that the operator declares to be of one node.
//!
//! A key that nobody declared may be a zone, which any number of nodes share. Of such a key only a
//! node's own name is protected, and only while that node reports the key with it. Nothing else
//! that nodes report says whose a value is, or one report could take a zone from all nodes in it.

use proto::csi::Segments;
use proto::csi::topology::NODE_SEGMENT;
use proto::names::{DriverName, NodeName};

use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::policy::{KeyKind, Policy};

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
        let segment = Segments::from([(key.clone(), value.clone())]);
        let claim = SegmentClaim { state, of, claimant, key, value, segment };
        match policy.and_then(|policy| policy.topology.get(key)) {
            Some(KeyKind::Any) => {}
            Some(KeyKind::Node) => contested.extend(claim.conflicts()),
            None if key == NODE_SEGMENT => contested.extend(claim.conflicts()),
            None => contested.extend(claim.name_conflicts()),
        }
    }
    contested
}

/// The claim of a node to one segment.
struct SegmentClaim<'a> {
    state: &'a State,
    of: &'a DriverState,
    claimant: &'a Claimant<'a>,
    key: &'a str,
    value: &'a str,
    segment: Segments,
}

impl SegmentClaim<'_> {
    /// The conflicts with the claims of others, if the key tells nodes apart.
    fn conflicts(&self) -> Vec<Contested> {
        if self.is_own_name() {
            return self.won();
        }
        self.named()
            .or_else(|| self.first())
            .map(|owner| self.lost_to(&owner))
            .into_iter()
            .collect()
    }

    /// The conflicts over a node's own name, if nobody declared the key.
    fn name_conflicts(&self) -> Vec<Contested> {
        if self.is_own_name() {
            return self.won();
        }
        let Ok(named) = self.value.parse::<NodeName>() else { return Vec::new() };
        let reports_its_name = self.of.at(&named).is_some_and(|at| at.is_at(&self.segment));
        if reports_its_name && self.of.is_member(&named) {
            vec![self.lost_to(&named)]
        } else {
            Vec::new()
        }
    }

    fn is_own_name(&self) -> bool {
        self.value == self.claimant.node.as_str()
    }

    /// The conflicts of a node's own name, which beats an earlier claim of another node.
    fn won(&self) -> Vec<Contested> {
        self.others().map(|other| self.contested(self.claimant.node, other)).collect()
    }

    fn lost_to(&self, owner: &NodeName) -> Contested {
        self.contested(owner, self.claimant.node)
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

    /// Nodes with these values, and with these ids at the driver.
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
                Change::Node(name(node), Some(Node { since: 1, ..Node::default() })),
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
        let claimant = Claimant { node: &node, segments: &segments, is_new: false };
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
        assert_eq!(claim(&state, node, "n3", "i-2"), None, "a node id says nothing");
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
        state.apply(Change::Node(name("n1"), Some(Node { since: 2, ..Node::default() })));
        assert_eq!(claim(&state, node, "n1", "serial"), lost("n2", "n1"));
        assert_eq!(claim(&state, node, "n2", "serial"), None);
    }

    #[test]
    fn of_a_key_that_nobody_declared_only_a_reported_name_is_protected() {
        let state = state(&[("n1", "n1", "x"), ("n2", "serial-2", "i-2"), ("n3", "serial-3", "y")]);
        assert_eq!(claim(&state, None, "n4", "n1"), lost("n1", "n4"));
        assert_eq!(claim(&state, None, "n4", "n2"), None, "n2 reports another value");
        assert_eq!(claim(&state, None, "n4", "n9"), None, "nobody has that name");
        assert_eq!(claim(&state, None, "n4", "serial-2"), None, "it is a name of nobody");
        let thief = self::state(&[("thief", "victim", "t")]);
        assert_eq!(claim(&thief, None, "victim", "victim"), lost("victim", "thief"));
    }

    #[test]
    fn a_key_may_identify_nodes_if_each_node_has_its_own_value() {
        let driver = "d.example".parse().unwrap();
        for (nodes, keys) in [
            (vec![("n1", "a", "")], vec![]),
            (vec![("n1", "a", ""), ("n2", "b", "")], vec![KEY]),
            (vec![("n1", "a", ""), ("n2", "b", ""), ("n3", "a", "")], vec![]),
        ] {
            let state = state(&nodes);
            let found = state.driver(&driver).unwrap().keys_with_own_values();
            assert_eq!(found.into_iter().collect::<Vec<_>>(), keys, "{nodes:?}");
        }
    }

    #[test]
    fn a_removed_node_protects_no_name() {
        let mut state = state(&[("n1", "n1", "x")]);
        state.apply(Change::Node(
            name("n1"),
            Some(Node { since: 1, removed: Some(2), ..Node::default() }),
        ));
        assert_eq!(claim(&state, None, "n2", "n1"), None);
    }

    #[test]
    fn a_node_id_takes_no_zone_from_other_nodes() {
        // The first and the last say the zone's name as their node id.
        let fleet = [("liar", "zone-a", "zone-a"), ("n1", "zone-a", "n1"), ("n2", "zone-b", "n2")];
        let zones = state(&fleet);
        for kind in [None, Some(KeyKind::Any)] {
            for node in ["liar", "n1", "n3"] {
                assert_eq!(claim(&zones, kind, node, "zone-a"), None, "{node} {kind:?}");
            }
        }
        let many: Vec<_> = (0..9).map(|n| (format!("n{n}"), format!("rack-{n}"))).collect();
        let many: Vec<_> = many.iter().map(|(node, rack)| (&**node, &**rack, &**rack)).collect();
        assert_eq!(claim(&state(&many), None, "new", "rack-3"), None, "nor do many values");
    }
}
