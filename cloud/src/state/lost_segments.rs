//! Nodes that are set apart because they claim a topology segment that another node has.

use proto::csi::Segments;
use proto::names::{DriverName, NodeName};

use crate::state::claims::{Claimant, Contested, contested};
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::policy::{KeyKind, Policy};
use crate::state::record::NodeDriver;
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::store::writer::Store;

/// Sets the claimant of a segment apart.
pub(super) fn set_apart(store: &Store, driver: &DriverName, contested: &Contested) {
    let Contested { key, value, owner, claimant } = contested.clone();
    let reason = Reason::OthersSegment { key, value, owner };
    store.set_apart(&claimant, Some(driver), reason);
}

/// True if a node is set apart for a segment.
pub(super) fn is_loser(store: &Store, driver: &DriverName, node: &NodeName) -> bool {
    store.read(|state| {
        let mut reasons = state.apart().of(node, driver);
        reasons.any(|apart| apart.reason.kind() == ReasonKind::OthersSegment)
    })
}

/// Sets apart the nodes that are recorded with a segment of another one: the operator may declare
/// a key after nodes said it, and an older csi-cloud protected no name before two nodes reported
/// theirs.
pub(super) fn judge_recorded(store: &Store, driver: &DriverName, policy: &Policy) {
    let lost = store.read(|state| {
        let of = state.driver(driver)?;
        let lost = of.members().filter_map(|(node, at)| {
            let segments = doubtful(state, of, policy, (node, at));
            let claimant = Claimant { node, segments: &segments, is_new: false };
            let contested = contested(state, driver, Some(policy), &claimant);
            contested.into_iter().find(|contested| contested.claimant == *node)
        });
        Some(lost.collect::<Vec<_>>())
    });
    lost.iter().flatten().for_each(|contested| set_apart(store, driver, contested));
}

/// The segments of a node that another one may have: they are its name, or it is recorded with them
/// too and the key is declared to be of one node.
fn doubtful(
    state: &State,
    of: &DriverState,
    policy: &Policy,
    (node, at): (&NodeName, &NodeDriver),
) -> Segments {
    let mut doubtful = Segments::new();
    for segment in &at.segments {
        let (key, value) = (&segment.0, &segment.1);
        let kind = policy.topology.get(key);
        let one = Segments::from([(key.clone(), value.clone())]);
        let is_shared = kind == Some(&KeyKind::Node) && of.located(&one).nth(1).is_some();
        let named = value.parse::<NodeName>().ok().filter(|named| named != node);
        let is_anothers = named.is_some_and(|named| state.node(&named).is_some());
        if kind != Some(&KeyKind::Any) && (is_shared || is_anothers) {
            doubtful.extend(one);
        }
    }
    doubtful
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto::host::tasks::Tasks;

    use super::*;
    use crate::state::record::Node;
    use crate::state::store::memory::Memory;

    const KEY: &str = "d.example/node";

    #[tokio::test]
    async fn a_key_that_is_declared_later_sets_the_later_of_two_nodes_apart() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let of = driver.clone();
        let recorded = [("n1", 2, "same"), ("n2", 1, "same"), ("n3", 3, "n2"), ("n4", 4, "own")];
        let write = store.write(move |txn| {
            for (node, since, value) in recorded {
                let node: NodeName = node.parse().unwrap();
                let segments = [Arc::new((KEY.to_owned(), value.to_owned()))].into();
                txn.set_node(&node, Some(Node { since, removed: None, ..Node::default() }));
                txn.set_at(&of, &node, Some(NodeDriver { segments, ..NodeDriver::default() }));
            }
        });
        write.await.unwrap();
        let mut policy = Policy::new(None);
        let apart = |policy: &Policy| {
            judge_recorded(&store, &driver, policy);
            let nodes = ["n1", "n2", "n3", "n4"];
            nodes.map(|node| is_loser(&store, &driver, &node.parse().unwrap()))
        };
        policy.topology.insert(KEY.into(), KeyKind::Any);
        assert_eq!(apart(&policy), [false; 4]);
        policy.topology.clear();
        assert_eq!(apart(&policy), [false; 4], "n2 does not report its own name");
        policy.topology.insert(KEY.into(), KeyKind::Node);
        assert_eq!(apart(&policy), [true, false, true, false]);
    }

    #[tokio::test]
    async fn a_node_that_was_recorded_with_anothers_name_is_set_apart() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let of = driver.clone();
        let write = store.write(move |txn| {
            for (node, value) in [("n1", "n2"), ("n2", "n2"), ("n3", "a"), ("n4", "a")] {
                let node: NodeName = node.parse().unwrap();
                let segments = [Arc::new((KEY.to_owned(), value.to_owned()))].into();
                txn.set_node(&node, Some(Node { since: 1, ..Node::default() }));
                txn.set_at(&of, &node, Some(NodeDriver { segments, ..NodeDriver::default() }));
            }
        });
        write.await.unwrap();
        judge_recorded(&store, &driver, &Policy::new(None));
        let nodes = ["n1", "n2", "n3", "n4"];
        let apart = nodes.map(|node| is_loser(&store, &driver, &node.parse().unwrap()));
        assert_eq!(apart, [true, false, false, false]);
    }
}
