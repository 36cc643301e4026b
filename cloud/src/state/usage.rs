//! Counts the things of each node and the size of their records, for quotas.
//!
//! Leases are not counted here: their number for one node and the size of each are bounded where
//! they are granted. Nor are ended homes: callers' deletes make them, and a driver has so many.

use std::ops::{Add, Sub};

use ahash::HashMap;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::state::record::{Change, Claim, Home, Intent, NodeDriver};

/// The bytes of a record beside its texts, as an estimate.
const RECORD: usize = 64;

/// The usage of a node, or the difference between two usages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Volumes, snapshots and groups, with those that are being made.
    pub things: i64,
    /// The bytes of their records and of the node's drivers.
    pub bytes: i64,
}

/// A record's share, and the node that it counts for.
pub(super) type Share = (NodeName, Usage);

/// The usages of all nodes.
#[derive(Default)]
pub(super) struct Usages {
    nodes: HashMap<NodeName, Usage>,
    all: Usage,
}

impl Usage {
    fn of(things: i64, texts: impl IntoIterator<Item = usize>) -> Self {
        let bytes = texts.into_iter().fold(RECORD, usize::saturating_add);
        Self { things, bytes: i64::try_from(bytes).unwrap_or(i64::MAX) }
    }

    /// This usage and one more thing, of which nothing is known yet.
    #[must_use]
    pub fn plus_one(self) -> Self {
        self + Self::of(1, [])
    }

    /// The share of something with a home.
    pub fn of_home(driver: &DriverName, id: &Id, home: &Home) -> Self {
        let parameters = home.parameters.iter().flat_map(|parameters| parameters.iter());
        let parameters = parameters.map(|(key, value)| key.len() + value.len()).sum();
        let conflicts = home.conflicts.iter().map(|node| node.as_str().len()).sum();
        let name = home.name.as_deref().map_or(0, str::len);
        let source = home.source.as_ref().map_or(0, |source| source.text().len());
        let fixed = [driver.as_str().len(), id.text().len(), home.node.as_str().len()];
        let texts = [name, home.entry.len(), claim(home.claim.as_deref()), parameters, source];
        Self::of(1, fixed.into_iter().chain(texts).chain([conflicts]))
    }

    /// The share of a create; one whose outcome is known counts by its home.
    pub fn of_intent(driver: &DriverName, name: &Id, intent: &Intent) -> Self {
        let made = intent.made.as_deref().map_or(0, str::len);
        let texts =
            [driver.as_str().len(), name.text().len(), made, claim(intent.claim.as_deref())];
        Self::of(i64::from(intent.made.is_none()), texts)
    }

    /// The share of a driver at a node.
    pub fn of_driver(driver: &DriverName, at: &NodeDriver) -> Self {
        let answers = at.answers.iter().map(|(method, answer)| method.len() + answer.len());
        let segments = at.segments.iter().map(|segment| segment.0.len() + segment.1.len());
        let info = at.info.as_ref().map_or(0, bytes::Bytes::len);
        Self::of(0, answers.chain(segments).chain([driver.as_str().len(), info]))
    }
}

impl Change {
    /// The share of the record that the change writes; none if it counts for no node.
    pub(super) fn share(&self) -> Option<Share> {
        match self {
            Self::Home(driver, id, home) => {
                let home = home.as_ref()?;
                Some((home.node.clone(), Usage::of_home(driver, id, home)))
            }
            Self::Intent(driver, name, intent) => {
                let intent = intent.as_ref()?;
                Some((intent.node.clone(), Usage::of_intent(driver, name, intent)))
            }
            Self::NodeDriver(driver, node, at) => {
                Some((node.clone(), Usage::of_driver(driver, at.as_ref()?)))
            }
            Self::EndedHome(..)
            | Self::Node(..)
            | Self::Elected(..)
            | Self::Profile(..)
            | Self::Lease(..)
            | Self::Epoch(_)
            | Self::LeaderEpoch(_)
            | Self::Start(..)
            | Self::Trust(_) => None,
        }
    }
}

fn claim(claim: Option<&Claim>) -> usize {
    claim.map_or(0, |claim| claim.namespace.len() + claim.name.len() + claim.volume.len())
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            things: self.things.saturating_add(other.things),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            things: self.things.saturating_sub(other.things),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

impl Usages {
    /// The usage of a node.
    pub(super) fn of(&self, node: &NodeName) -> Usage {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    /// The usage of all nodes together.
    pub(super) fn all(&self) -> Usage {
        self.all
    }

    /// Replaces a record's share.
    pub(super) fn replace(&mut self, before: Option<Share>, after: Option<Share>) {
        if let Some((node, share)) = before {
            self.all = self.all - share;
            self.set(&node, self.of(&node) - share);
        }
        if let Some((node, share)) = after {
            self.all = self.all + share;
            self.set(&node, self.of(&node) + share);
        }
    }

    fn set(&mut self, node: &NodeName, usage: Usage) {
        if usage == Usage::default() {
            self.nodes.remove(node);
        } else {
            self.nodes.insert(node.clone(), usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_for_its_node_until_it_is_gone() {
        let [one, two]: [NodeName; 2] = ["n1", "n2"].map(|node| node.parse().unwrap());
        let share = |bytes| Usage { things: 1, bytes };
        let mut usages = Usages::default();
        usages.replace(None, Some((one.clone(), share(100))));
        usages.replace(None, Some((one.clone(), share(50))));
        assert_eq!(usages.of(&one), Usage { things: 2, bytes: 150 });
        usages.replace(Some((one.clone(), share(100))), Some((two.clone(), share(120))));
        assert_eq!((usages.of(&one), usages.of(&two)), (share(50), share(120)));
        assert_eq!(usages.all(), share(50) + share(120));
        usages.replace(Some((one, share(50))), None);
        usages.replace(Some((two, share(120))), None);
        assert!(usages.nodes.is_empty(), "what is empty is not kept");
        assert_eq!(usages.all(), Usage::default());
    }

    #[test]
    fn a_share_has_all_texts_of_its_record() {
        let driver: DriverName = "d.example".parse().unwrap();
        let id = Id::Volume("v".into());
        let empty = Home::at("n1".parse().unwrap(), 1);
        let bare = Usage::of_home(&driver, &id, &empty);
        assert_eq!(bare, Usage { things: 1, bytes: 64 + 9 + 1 + 2 });
        let large = Home { entry: vec![0; 1000].into(), ..empty };
        assert_eq!(Usage::of_home(&driver, &id, &large) - bare, Usage { things: 0, bytes: 1000 });
    }
}
