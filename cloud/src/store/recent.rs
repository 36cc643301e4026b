//! Which homes a node has, and which of a driver's homes changed since a moment: a node's list was read before
//! it is learned, and what happened in between is newer than the list.
//!
//! Counted in changes that were applied, in memory only: a list that was read before a restart is gone with it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use proto::identity::NodeName;
use proto::rpc::Id;

/// So many of the homes that were forgotten last are remembered.
const REMEMBERED: usize = 4096;

/// The changes of one driver's homes.
#[derive(Default)]
pub(super) struct Recent {
    changes: u64,
    /// What each node has, with the number of its last change.
    at: HashMap<NodeName, BTreeMap<Id, u64>>,
    /// What was forgotten last, oldest first.
    gone: VecDeque<(u64, Id)>,
    /// The number of the last change that is no longer in `gone`.
    dropped: u64,
}

impl Recent {
    /// A home that was at `before` is now at `after`, or is changed there.
    pub(super) fn changed(&mut self, id: &Id, before: Option<&NodeName>, after: Option<&NodeName>) {
        self.changes += 1;
        if let Some(node) = before.filter(|before| Some(*before) != after)
            && let Some(homes) = self.at.get_mut(node)
        {
            homes.remove(id);
            if homes.is_empty() {
                self.at.remove(node);
            }
        }
        match after {
            Some(node) => drop(self.at.entry(node.clone()).or_default().insert(id.clone(), self.changes)),
            None => self.gone.push_back((self.changes, id.clone())),
        }
        if self.gone.len() > REMEMBERED {
            self.dropped = self.gone.pop_front().map_or(self.dropped, |(change, _)| change);
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn of(&self, node: &NodeName) -> impl Iterator<Item = (&Id, u64)> {
        self.at.get(node).into_iter().flatten().map(|(id, change)| (id, *change))
    }

    pub(super) fn last_change(&self, node: &NodeName, id: &Id) -> Option<u64> {
        self.at.get(node)?.get(id).copied()
    }

    pub(super) fn gone_since(&self, since: u64) -> Option<HashSet<&Id>> {
        if since < self.dropped {
            return None;
        }
        Some(self.gone.iter().rev().take_while(|(change, _)| *change > since).map(|(_, id)| id).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(number: usize) -> Id {
        Id::Volume(format!("v{number}"))
    }

    #[test]
    fn what_was_forgotten_is_remembered_for_so_long() {
        let (mut recent, node) = (Recent::default(), "n1".parse::<NodeName>().unwrap());
        recent.changed(&volume(0), None, Some(&node));
        let since = recent.changes();
        recent.changed(&volume(0), Some(&node), None);
        assert_eq!(recent.gone_since(since).unwrap(), HashSet::from([&volume(0)]));
        assert!(recent.gone_since(recent.changes()).unwrap().is_empty());
        for number in 0..=REMEMBERED {
            recent.changed(&volume(number), None, None);
        }
        assert_eq!(recent.gone_since(since), None, "it is not known any more");
        assert_eq!(recent.of(&node).count(), 0);
    }

    #[test]
    fn a_home_that_moves_is_at_one_node() {
        let [one, two] = ["n1", "n2"].map(|node| node.parse::<NodeName>().unwrap());
        let mut recent = Recent::default();
        recent.changed(&volume(0), None, Some(&one));
        recent.changed(&volume(0), Some(&one), Some(&two));
        assert_eq!((recent.of(&one).count(), recent.last_change(&two, &volume(0))), (0, Some(2)));
    }
}
