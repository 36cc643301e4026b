//! Nodes that are set apart because they claim a topology segment that another node has.

use proto::csi::Segments;
use proto::names::{DriverName, NodeName};

use crate::state::claims::{Claimant, Contested, contested};
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::own_keys::id_of;
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
/// a key after nodes said it.
pub(super) fn judge_recorded(store: &Store, driver: &DriverName, policy: &Policy) {
    let lost = store.read(|state| {
        let of = state.driver(driver)?;
        let lost = of.members().filter_map(|(node, at)| {
            let segments = doubtful(state, of, policy, (node, at));
            let node_id = id_of(at).unwrap_or_default();
            let claimant = Claimant { node, node_id: &node_id, segments: &segments, is_new: false };
            let contested = contested(state, driver, Some(policy), &claimant);
            contested.into_iter().find(|contested| contested.claimant == *node)
        });
        Some(lost.collect::<Vec<_>>())
    });
    lost.iter().flatten().for_each(|contested| set_apart(store, driver, contested));
}

/// The segments of a node that another one may have: it is recorded with them too, or they are its
/// name. Only keys count that are declared to be of one node.
fn doubtful(
    state: &State,
    of: &DriverState,
    policy: &Policy,
    (node, at): (&NodeName, &NodeDriver),
) -> Segments {
    let is_of_nodes = |key: &str| policy.topology.get(key) == Some(&KeyKind::Node);
    let is_anothers = |key: &str, value: &str| {
        let one = Segments::from([(key.to_owned(), value.to_owned())]);
        let is_shared = of.located(&one).nth(1).is_some();
        let named = value.parse::<NodeName>().ok().filter(|named| named != node);
        is_shared || named.is_some_and(|named| state.node(&named).is_some())
    };
    let said = at.segments.iter().map(|said| (&said.0, &said.1));
    let doubtful = said.filter(|(key, value)| is_of_nodes(key) && is_anothers(key, value));
    doubtful.map(|(key, value)| (key.clone(), value.clone())).collect()
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
                txn.set_node(&node, Some(Node { since, removed: None }));
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
        policy.topology.insert(KEY.into(), KeyKind::Node);
        assert_eq!(apart(&policy), [true, false, true, false]);
    }
}
