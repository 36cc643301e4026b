//! The objects that one node may see, each with its revision, and the recent deletions.
//!
//! Pure. Only the last deletions are kept: an edge that is further behind gets everything anew.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proto::control::metadata::{Key, Kind, Object, Position};

use crate::metadata::transfer::Transfer;

/// The deletions that are kept for a node.
const GONE: usize = 512;

/// The kinds that an edge takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All.
    All,
    /// All but the Node: an edge of 0.2 cannot read a transfer with one.
    WithoutNode,
}

impl Wanted {
    /// The kinds that an edge with this field in its hello takes.
    pub fn new(takes_node: bool) -> Self {
        if takes_node { Self::All } else { Self::WithoutNode }
    }

    fn has(self, kind: Kind) -> bool {
        self == Self::All || kind != Kind::Node
    }
}

/// The objects of a node.
#[derive(Default)]
pub struct View {
    objects: BTreeMap<Key, (u64, Arc<Object>)>,
    gone: VecDeque<(u64, Key)>,
    /// Positions before this one get everything anew.
    floor: u64,
    /// The last change.
    latest: u64,
}

impl View {
    /// An empty view, made at this revision.
    pub fn new(revision: u64) -> Self {
        Self { floor: revision, latest: revision, ..Self::default() }
    }

    /// Makes these the node's objects. Each change takes one revision. Returns the last one, if
    /// there was a change.
    pub fn update(&mut self, now: BTreeMap<Key, Arc<Object>>, revision: &mut u64) -> Option<u64> {
        let before = self.latest;
        let lost: Vec<Key> =
            self.objects.keys().filter(|key| !now.contains_key(*key)).cloned().collect();
        for key in lost {
            self.objects.remove(&key);
            *revision += 1;
            self.latest = *revision;
            self.gone.push_back((*revision, key));
        }
        while self.gone.len() > GONE {
            self.floor = self.gone.pop_front().map_or(self.floor, |(revision, _)| revision);
        }
        for (key, object) in now {
            let same = self.objects.get(&key).is_some_and(|(_, before)| *before == object);
            if !same {
                *revision += 1;
                self.latest = *revision;
                self.objects.insert(key, (*revision, object));
            }
        }
        (self.latest != before).then_some(self.latest)
    }

    /// The transfer from this position to the latest one; none if there is no change.
    pub fn since(&self, epoch: u64, position: Position, wanted: Wanted) -> Option<Transfer> {
        let to = Position { epoch, revision: self.latest };
        if position == to {
            return None;
        }
        let known =
            position.epoch == epoch && (self.floor..self.latest).contains(&position.revision);
        let objects = self.objects.iter().filter(|(key, _)| wanted.has(key.kind));
        let objects = objects.map(|(_, object)| object);
        if !known {
            let objects = objects.map(|(_, object)| object.clone());
            return Some(Transfer::new(None, to, objects.collect(), Vec::new()));
        }
        let is_new = |revision: u64| revision > position.revision;
        let changed = objects.filter(|(revision, _)| is_new(*revision));
        let gone = self.gone.iter().filter(|(revision, key)| {
            // It may have come again since.
            is_new(*revision) && !self.objects.contains_key(key) && wanted.has(key.kind)
        });
        let gone = gone.map(|(_, key)| key.clone()).collect();
        let objects = changed.map(|(_, object)| object.clone()).collect();
        Some(Transfer::new(Some(position), to, objects, gone))
    }
}
