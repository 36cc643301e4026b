//! Finds the topology keys that have identified all nodes of a driver so far.
//!
//! A key identifies nodes if every node reports its own name or node id as its value. The nodes are
//! counted, because each node that links asks again.

use std::collections::HashMap;

use prost::Message;
use proto::csi;
use proto::csi::Local;
use proto::names::NodeName;

use crate::state::record::NodeDriver;

/// The number of nodes that report a key, and of those that report their own name or id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyCounts {
    pub(super) by: usize,
    pub(super) own: usize,
}

impl KeyCounts {
    /// What this node says of the key.
    pub(super) fn by(node: &NodeName, at: &NodeDriver, key: &str) -> Self {
        let found = at.segments.iter().find(|segment| segment.0 == key);
        found.map_or_else(Self::default, |segment| Self::segment(node, at, &segment.1))
    }

    fn segment(node: &NodeName, at: &NodeDriver, value: &str) -> Self {
        let is_own = value == node.as_str() || id_of(at).is_some_and(|id| id == value);
        Self { by: 1, own: usize::from(is_own) }
    }

    /// The counts without these.
    pub(super) fn without(self, others: Self) -> Self {
        Self { by: self.by - others.by, own: self.own - others.own }
    }
}

/// The counts of each key.
#[derive(Default)]
pub(super) struct OwnKeys(HashMap<String, KeyCounts>);

impl OwnKeys {
    /// What all nodes say of a key.
    pub(super) fn of(&self, key: &str) -> KeyCounts {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// Counts a node.
    pub(super) fn add(&mut self, node: &NodeName, at: &NodeDriver) {
        for segment in &at.segments {
            let counts = KeyCounts::segment(node, at, &segment.1);
            if !self.0.contains_key(&segment.0) {
                self.0.insert(segment.0.clone(), KeyCounts::default());
            }
            let Some(all) = self.0.get_mut(&segment.0) else { continue };
            all.by += counts.by;
            all.own += counts.own;
        }
    }

    /// Takes a counted node out.
    pub(super) fn remove(&mut self, node: &NodeName, at: &NodeDriver) {
        for segment in &at.segments {
            let Some(all) = self.0.get_mut(&segment.0) else { continue };
            *all = all.without(KeyCounts::segment(node, at, &segment.1));
            if all.by == 0 {
                self.0.remove(&segment.0);
            }
        }
    }
}

/// The id that a driver gave its node.
pub(super) fn id_of(at: &NodeDriver) -> Option<String> {
    let info = csi::NodeGetInfoResponse::decode(at.answer(Local::NodeInfo)?.clone()).ok()?;
    Some(info.node_id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::state::known::State;
    use crate::state::record::{Change, Node};

    const KEY: &str = "d.example/node";

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    fn at(node: &str, value: Option<&str>) -> Change {
        let segment = |value: &str| Arc::new((KEY.to_owned(), value.to_owned()));
        let segments = value.map(segment).into_iter().collect();
        let at = NodeDriver { segments, ..NodeDriver::default() };
        Change::NodeDriver("d.example".parse().unwrap(), name(node), Some(at))
    }

    #[test]
    fn counts_follow_each_record_and_leave_out_who_does_not_count() {
        let mut state = State::of([
            at("n1", Some("n1")),
            at("n2", Some("n2")),
            at("n3", Some("x")),
            at("n4", None),
        ]);
        let counts = |state: &State, without: &str| {
            let driver = state.driver(&"d.example".parse().unwrap()).unwrap();
            let counts = driver.counts_of_others(KEY, &name(without));
            (counts.by, counts.own)
        };
        assert_eq!(counts(&state, "n4"), (3, 2));
        assert_eq!(counts(&state, "n1"), (2, 1));
        assert_eq!(counts(&state, "n9"), (3, 2), "of a node that is not known");
        let removed = Node { since: 1, removed: Some(2) };
        state.apply(Change::Node(name("n3"), Some(removed)));
        assert_eq!((counts(&state, "n4"), counts(&state, "n3")), ((2, 2), (2, 2)), "n3 is removed");
        state.apply(at("n2", Some("y")));
        assert_eq!(counts(&state, "n4"), (2, 1));
        state.apply(at("n2", None));
        assert_eq!((counts(&state, "n4"), counts(&state, "n1")), ((1, 1), (0, 0)));
    }
}
