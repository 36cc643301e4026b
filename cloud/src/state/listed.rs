//! The mark of nodes that were listed completely once: later volumes of theirs have a home.
//!
//! An older store has the mark too, and lacks homes that were made since. So it is taken away from
//! a store that is imported, or of which the operator says that it may be older.

use crate::state::record::{Change, NodeDriver};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The same change without the mark.
pub(super) fn unmarked(change: Change) -> Change {
    match change {
        Change::NodeDriver(driver, node, Some(at)) => {
            Change::NodeDriver(driver, node, Some(NodeDriver { listed: 0, ..at }))
        }
        other => other,
    }
}

/// Takes the mark from all nodes; each is listed again when it links.
///
/// # Errors
/// The change is not durable.
pub async fn forget(store: &Store) -> Result<(), StoreError> {
    store.write(forget_in).await
}

/// The same, as a part of a change.
pub(super) fn forget_in(txn: &mut Txn<'_>) {
    let drivers = txn.state().drivers();
    let all = drivers.iter().flat_map(|(driver, of)| {
        let marked = of.nodes().iter().filter(|(_, at)| at.listed > 0);
        marked.map(|(node, at)| (driver.clone(), node.clone(), at.clone()))
    });
    for (driver, node, at) in all.collect::<Vec<_>>() {
        txn.set_at(&driver, &node, Some(NodeDriver { listed: 0, ..at }));
    }
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;
    use proto::names::{DriverName, NodeName};

    use super::*;
    use crate::state::store::memory::Memory;

    #[tokio::test]
    async fn of_an_older_store_no_node_counts_as_listed() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let driver: DriverName = "d.example".parse().unwrap();
        let nodes: [NodeName; 2] = ["n1", "n2"].map(|node| node.parse().unwrap());
        let of = driver.clone();
        let all = nodes.clone();
        let write = store.write(move |txn| {
            for (node, listed) in all.iter().zip([0, 7]) {
                let at = NodeDriver { listed, gone: Some(5), ..NodeDriver::default() };
                txn.set_at(&of, node, Some(at));
            }
        });
        write.await.unwrap();
        forget(&store).await.unwrap();
        let found = store.read(|state| {
            let of = state.driver(&driver).unwrap();
            nodes.each_ref().map(|node| of.at(node).map(|at| (at.listed, at.gone)))
        });
        assert_eq!(found, [Some((0, Some(5))); 2]);
    }
}
