//! The homes of each node, and the order of their latest changes.
//!
//! A node's list is read before it is recorded, so any change in between is newer than the list.
//! Changes are counted in memory only: a restart drops pending lists too.

use std::collections::{BTreeMap, VecDeque};

use ahash::HashMap;
use proto::csi::Id;
use proto::names::NodeName;

/// The number of remembered changes of things without a home.
const REMEMBERED: usize = 4096;

/// The reason why an older list is stale about something without a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stale {
    /// Its home was removed.
    Forgotten,
    /// A call changed it.
    Changed,
}

/// The recent changes of one driver's homes.
#[derive(Default)]
pub(super) struct RecentChanges {
    changes: u64,
    /// The things at each node, with the number of each one's last change.
    at: HashMap<NodeName, BTreeMap<Id, u64>>,
    /// Changes of things without a home, the oldest first.
    without: VecDeque<(u64, Id, Stale)>,
    /// The number of the last change that was dropped from `without`.
    dropped: u64,
}

impl RecentChanges {
    /// Notes that a home moved from `before` to `after`, or changed there.
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
            Some(node) => {
                self.at.entry(node.clone()).or_default().insert(id.clone(), self.changes);
            }
            None => self.remember(id.clone(), Stale::Forgotten),
        }
    }

    /// Notes that a call changed something without a home.
    pub(super) fn set_stale(&mut self, id: Id) {
        self.changes += 1;
        self.remember(id, Stale::Changed);
    }

    fn remember(&mut self, id: Id, why: Stale) {
        self.without.push_back((self.changes, id, why));
        if self.without.len() > REMEMBERED {
            self.dropped = self.without.pop_front().map_or(self.dropped, |(change, ..)| change);
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

    pub(super) fn stale_since(&self, since: u64) -> Option<HashMap<&Id, Stale>> {
        if since < self.dropped {
            return None;
        }
        let mut ids = HashMap::default();
        for (_, id, why) in self.without.iter().rev().take_while(|(change, ..)| *change > since) {
            ids.entry(id).and_modify(|known: &mut Stale| *known = *why.max(known)).or_insert(*why);
        }
        Some(ids)
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
        let mut recent = RecentChanges::default();
        let node = "n1".parse::<NodeName>().unwrap();
        recent.changed(&volume(0), None, Some(&node));
        let since = recent.changes();
        recent.changed(&volume(0), Some(&node), None);
        assert_eq!(
            recent.stale_since(since).unwrap(),
            HashMap::from_iter([(&volume(0), Stale::Forgotten)])
        );
        assert!(recent.stale_since(recent.changes()).unwrap().is_empty());
        for number in 0..=REMEMBERED {
            recent.changed(&volume(number), None, None);
        }
        assert_eq!(recent.stale_since(since), None, "it is not known any more");
        assert_eq!(recent.of(&node).count(), 0);
    }

    #[test]
    fn what_was_both_forgotten_and_changed_was_changed() {
        let mut recent = RecentChanges::default();
        recent.set_stale(volume(0));
        recent.changed(&volume(0), None, None);
        assert_eq!(
            recent.stale_since(0).unwrap(),
            HashMap::from_iter([(&volume(0), Stale::Changed)])
        );
        assert_eq!(
            recent.stale_since(1).unwrap(),
            HashMap::from_iter([(&volume(0), Stale::Forgotten)])
        );
    }

    #[test]
    fn a_home_that_moves_is_at_one_node() {
        let [one, two] = ["n1", "n2"].map(|node| node.parse::<NodeName>().unwrap());
        let mut recent = RecentChanges::default();
        recent.changed(&volume(0), None, Some(&one));
        recent.changed(&volume(0), Some(&one), Some(&two));
        assert_eq!((recent.of(&one).count(), recent.last_change(&two, &volume(0))), (0, Some(2)));
    }
}
