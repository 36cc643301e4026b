//! The drivers whose topology csi-cloud alone publishes, by node. Each edge is told those of its
//! own node, so that the node's front leaves it out.
//!
//! The room `kubernetes` is above this one and says what is published. Until it does, no edge is
//! told anything, and edges keep what they were told before.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Mutex, MutexGuard};
use proto::names::{DriverName, NodeName};

/// Drivers of one node, each with the period in s after which Kubernetes wants its NodeGetInfo
/// asked again, if its CSIDriver object has one.
pub(crate) type PublishedDrivers = BTreeMap<DriverName, Option<u32>>;

/// Drivers by node. Nodes without one are left out.
pub(crate) type ByNode = BTreeMap<NodeName, PublishedDrivers>;

/// The topology that is published now; unknown at first.
#[derive(Default)]
pub(super) struct PublishedTopology(Mutex<Option<ByNode>>);

impl PublishedTopology {
    /// The drivers for one node's welcome; none while they are unknown.
    pub(super) fn at(&self, node: &NodeName) -> Option<PublishedDrivers> {
        self.known().as_ref().map(|known| known.get(node).cloned().unwrap_or_default())
    }

    /// Keeps the topology that is published now. Returns the nodes that have to be told; none means
    /// all nodes.
    pub(super) fn set(&self, now: ByNode) -> Option<BTreeSet<NodeName>> {
        let mut known = self.known();
        let before = known.replace(now)?;
        let now = known.as_ref().into_iter().flatten();
        let news = now.filter(|(node, drivers)| before.get(*node) != Some(*drivers));
        let mut nodes: BTreeSet<_> = news.map(|(node, _)| node.clone()).collect();
        let gone = |node: &&NodeName| known.as_ref().is_some_and(|now| !now.contains_key(*node));
        nodes.extend(before.keys().filter(gone).cloned());
        Some(nodes)
    }

    fn known(&self) -> MutexGuard<'_, Option<ByNode>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_told_when_its_own_drivers_change() {
        let [n1, n2, n3]: [NodeName; 3] = ["n1", "n2", "n3"].map(|name| name.parse().unwrap());
        let of = |drivers: &[&str]| -> PublishedDrivers {
            drivers.iter().map(|driver| (driver.parse().unwrap(), None)).collect()
        };
        let published = PublishedTopology::default();
        assert_eq!(published.at(&n1), None, "it is not known");
        let first: ByNode = [(n1.clone(), of(&["a.b"])), (n2.clone(), of(&["a.b"]))].into();
        assert_eq!(published.set(first.clone()), None, "nobody was told before");
        assert_eq!((published.at(&n1), published.at(&n3)), (Some(of(&["a.b"])), Some(of(&[]))));
        assert_eq!(published.set(first), Some(BTreeSet::new()), "the same is no news");
        let next = [(n1.clone(), of(&["a.b", "c.d"])), (n3.clone(), of(&["a.b"]))];
        assert_eq!(published.set(next.into()), Some([n1.clone(), n2.clone(), n3.clone()].into()));
        assert_eq!(published.at(&n2), Some(of(&[])));
        let mut often = of(&["a.b", "c.d"]);
        often.insert("c.d".parse().unwrap(), Some(60));
        let next = [(n1.clone(), often), (n3.clone(), of(&["a.b"]))];
        assert_eq!(published.set(next.into()), Some([n1].into()), "a period is news, too");
    }
}
