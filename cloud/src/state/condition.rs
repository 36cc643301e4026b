//! The condition of a home and of a node, in one word, for the lists, `explain` and the Events.

use proto::names::NodeName;
use proto::names::certificate::Subject;

use crate::state::known::State;
use crate::state::record::Home;

/// The condition of a volume, snapshot or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeCondition {
    /// Nothing is known to be wrong.
    Ok,
    /// Its node's last list did not have it.
    Absent,
    /// Another node reports it too.
    Claimed,
    /// Its node was removed.
    Lost,
}

impl HomeCondition {
    /// The worst known condition of a home.
    pub fn of(state: &State, home: &Home) -> Self {
        if home.lost || state.is_removed(&home.node) {
            Self::Lost
        } else if !home.conflicts.is_empty() {
            Self::Claimed
        } else if home.absent {
            Self::Absent
        } else {
            Self::Ok
        }
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Claimed => "claimed",
            Self::Lost => "lost",
        }
    }
}

/// The condition of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCondition {
    /// It has a link.
    Linked,
    /// It had a link once, and has none now.
    Away,
    /// It never had a link.
    Unknown,
    /// It has no link, and its certificates were revoked.
    Revoked,
    /// An operator removed it.
    Removed,
}

impl NodeCondition {
    /// The condition of a node with or without a link.
    pub fn of(state: &State, node: &NodeName, is_linked: bool) -> Self {
        let revocation = state.trust().revocation(&Subject::Node(node.clone()));
        if state.is_removed(node) {
            Self::Removed
        } else if is_linked {
            Self::Linked
        } else if revocation.is_some_and(|revocation| !revocation.is_overcome()) {
            Self::Revoked
        } else if state.node(node).is_none() {
            Self::Unknown
        } else {
            Self::Away
        }
    }

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linked => "linked",
            Self::Away => "away",
            Self::Unknown => "unknown",
            Self::Revoked => "revoked",
            Self::Removed => "removed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::{Change, Node};

    fn node(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    #[test]
    fn the_worst_of_a_home_counts() {
        let removed =
            Change::Node(node("n2"), Some(Node { since: 1, removed: Some(2), ..Node::default() }));
        let state = State::of([removed]);
        let good = Home::at(node("n1"), 1);
        let absent = Home { absent: true, ..good.clone() };
        let claimed = Home { conflicts: vec![node("n3")], ..absent.clone() };
        let lost = Home { lost: true, ..claimed.clone() };
        let elsewhere = Home::at(node("n2"), 1);
        let words = [&good, &absent, &claimed, &lost, &elsewhere]
            .map(|home| HomeCondition::of(&state, home).name());
        assert_eq!(words, ["ok", "absent", "claimed", "lost", "lost"]);
    }

    #[test]
    fn a_removed_node_is_removed_whatever_else_it_is() {
        let known = Change::Node(node("n1"), Some(Node { since: 1, ..Node::default() }));
        let removed =
            Change::Node(node("n2"), Some(Node { since: 1, removed: Some(2), ..Node::default() }));
        let state = State::of([known, removed]);
        let word = |name: &str, is_linked| NodeCondition::of(&state, &node(name), is_linked).name();
        assert_eq!([word("n1", true), word("n1", false)], ["linked", "away"]);
        assert_eq!([word("n2", true), word("n2", false)], ["removed", "removed"]);
        assert_eq!([word("n3", true), word("n3", false)], ["linked", "unknown"]);
    }
}
