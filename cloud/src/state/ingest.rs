//! What the cloud keeps of what edges and answers say. Each of these is one durable change.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use proto::control::hello::Driver;
use proto::csi;
use proto::csi::wire::Malformed;
use proto::csi::{Id, Local, Method, Segments};
use proto::names::{DriverName, NodeName};
use tracing::info;

use crate::state::clock::now;
use crate::state::known::DriverState;
use crate::state::record::{Home, Node, NodeDriver};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;
use proto::csi::topology::NODE_SEGMENT;

/// Keeps what a node says of its drivers; a driver that has no answers right now keeps those it gave, and of one that
/// the node had and does not name any more it is kept since when that is so. Nothing is written if all of it is known.
///
/// # Errors
/// It could not be made durable.
pub async fn drivers(
    store: &Store,
    node: &NodeName,
    drivers: Vec<Driver>,
) -> Result<(), StoreError> {
    let named: BTreeSet<_> = drivers.iter().map(|driver| driver.name.clone()).collect();
    let news: Vec<_> = store.read(|state| {
        let known = |driver: &Driver| state.driver(&driver.name).and_then(|known| known.at(node));
        let news = drivers.into_iter().map(|driver| {
            let before = known(&driver).cloned();
            let at = learned(node, &driver, before.as_ref());
            (driver.name, at, before)
        });
        news.filter(|(_, at, before)| before.as_ref() != Some(at)).collect()
    });
    let gone: Vec<DriverName> = store.read(|state| {
        let gone = |(driver, of): &(&DriverName, &DriverState)| {
            !named.contains(*driver) && of.at(node).is_some_and(|at| at.gone.is_none())
        };
        state.drivers().into_iter().filter(gone).map(|(driver, _)| driver.clone()).collect()
    });
    if news.is_empty() && gone.is_empty() && store.read(|state| state.node(node).is_some()) {
        return Ok(());
    }
    for (driver, at, _) in &news {
        info!(%node, %driver, away = !at.has_spoken(), "learned of a driver");
    }
    for driver in &gone {
        info!(%node, %driver, "the node does not have the driver any more");
    }
    let node = node.clone();
    let write = store.write(move |txn| {
        if txn.node(&node).is_none() {
            txn.set_node(&node, Some(Node { since: now(), removed: None }));
        }
        for (driver, at, _) in news {
            let listed = txn.at(&driver, &node).map_or(0, |before| before.listed);
            txn.set_at(&driver, &node, Some(NodeDriver { listed, ..at }));
        }
        for driver in gone {
            if let Some(at) = txn.at(&driver, &node).cloned() {
                txn.set_at(&driver, &node, Some(NodeDriver { gone: Some(now()), ..at }));
            }
        }
    });
    write.await
}

fn learned(node: &NodeName, driver: &Driver, before: Option<&NodeDriver>) -> NodeDriver {
    let mut at = NodeDriver { gone: None, ..before.cloned().unwrap_or_default() };
    if !driver.answers.is_empty() {
        let mut answers: std::collections::BTreeMap<_, _> = driver
            .answers
            .iter()
            .map(|(method, answer)| (method.clone(), answer.0.clone()))
            .collect();
        at.info = answers.remove(Method::answering(Local::NodeInfo).name());
        at.answers = answers.into();
    }
    let mut segments = Segments::from([(NODE_SEGMENT.to_owned(), node.to_string())]);
    segments.extend(at.info.as_ref().map(segments_of).unwrap_or_default());
    at.segments = segments.into_iter().map(Arc::new).collect();
    at
}

fn segments_of(info: &Bytes) -> Segments {
    let info = csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default();
    info.accessible_topology
        .map(|topology| topology.segments.into_iter().collect())
        .unwrap_or_default()
}

/// Keeps that something was deleted, the intent of its name and whose it was too; with a group also its snapshots.
///
/// # Errors
/// It could not be made durable.
pub async fn deleted(store: &Store, driver: &DriverName, id: &Id) -> Result<(), StoreError> {
    let (driver, id) = (driver.clone(), id.clone());
    let write = store.write(move |txn| {
        ended(txn, &driver, &id);
        remove(txn, &driver, &id);
    });
    write.await
}

/// The same of what nobody knows to be deleted: whose it was stays.
///
/// # Errors
/// It could not be made durable.
pub async fn forget(store: &Store, driver: &DriverName, id: &Id) -> Result<(), StoreError> {
    let (driver, id) = (driver.clone(), id.clone());
    store.write(move |txn| remove(txn, &driver, &id)).await
}

fn remove(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) {
    let Some(home) = txn.home(driver, id).cloned() else {
        // A list that was read before may still tell of it.
        return txn.set_home(driver, id, None);
    };
    if let (Some(name), Some(kind)) = (home.name, id.kind()) {
        txn.set_intent(driver, &Id::Name(Method::creating(kind), name.into()), None);
    }
    if matches!(id, Id::Group(_)) {
        let group = csi::CreateVolumeGroupSnapshotResponse::decode(home.entry)
            .unwrap_or_default()
            .group_snapshot;
        for snapshot in group.into_iter().flat_map(|group| group.snapshots) {
            txn.set_home(driver, &Id::Snapshot(snapshot.snapshot_id), None);
        }
    }
    txn.set_home(driver, id, None);
}

/// Keeps what a call did to a volume, in its entry. It is durable before its caller is answered: a list tells it also
/// after a crash, while the node is away. A volume without a home stays without one, and lists that were read before
/// the call are no word of it.
///
/// # Errors
/// It could not be made durable.
pub async fn update(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    change: impl FnOnce(&[u8]) -> Result<Vec<u8>, Malformed> + Send + 'static,
) -> Result<(), StoreError> {
    let (driver, id) = (driver.clone(), id.clone());
    let write = store.write(move |txn| {
        let Some(home) = txn.home(&driver, &id).cloned() else {
            return txn.set_stale(&driver, &id);
        };
        // What was found by asking for it alone has no entry yet; one without an id would be about nothing.
        let entry = if home.entry.is_empty() { bare(&id) } else { home.entry.clone() };
        // What cannot be edited stays as it is: the node's next list replaces it.
        let Ok(entry) = change(&entry) else { return };
        // Also if it is the same: a list that was read before the call tells nothing newer.
        txn.set_home(&driver, &id, Some(Home { entry: entry.into(), ..home }));
    });
    write.await
}

/// A volume is deleted, and with it whose it was; unless a node says that it has it still.
fn ended(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) {
    if txn.lease(driver, id).is_some_and(|own| own.holder.is_none()) {
        txn.set_lease(driver, id, None);
    }
}

/// The entry of a volume of which nothing but its id is known.
fn bare(id: &Id) -> Bytes {
    let volume = csi::Volume { volume_id: id.text().into(), ..Default::default() };
    csi::list_volumes_response::Entry { volume: Some(volume), status: None }.encode_to_vec().into()
}

/// Keeps that a node has something that nobody knew of. It stays where it is if another node was first.
///
/// # Errors
/// It could not be made durable.
pub async fn discovered(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    entry: Bytes,
) -> Result<(), StoreError> {
    let (driver, id, node) = (driver.clone(), id.clone(), node.clone());
    let write = store.write(move |txn| {
        let mut home =
            txn.home(&driver, &id).cloned().unwrap_or_else(|| Home::at(node.clone(), now()));
        if home.node == node {
            // Copied: a part of what was read from a link would keep all of that in memory.
            let kept = if entry.is_empty() { home.entry } else { Bytes::copy_from_slice(&entry) };
            (home.absent, home.entry) = (false, kept);
        } else if !home.rivals.contains(&node) {
            home.rivals.push(node);
        }
        if txn.home(&driver, &id) != Some(&home) {
            txn.set_home(&driver, &id, Some(home));
        }
    });
    write.await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto::host::tasks::Tasks;

    use super::*;
    use crate::state::store::memory::Memory;

    fn hello(names: &[&str]) -> Vec<Driver> {
        let driver = |name: &&str| Driver { name: name.parse().unwrap(), answers: BTreeMap::new() };
        names.iter().map(driver).collect()
    }

    #[tokio::test]
    async fn a_driver_that_is_not_named_any_more_is_kept_and_marked_until_it_is_back() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let node = "n1".parse().unwrap();
        let gone = |name: &str| {
            let name = name.parse().unwrap();
            store.read(|state| state.driver(&name).unwrap().at(&node).unwrap().gone.is_some())
        };
        drivers(&store, &node, hello(&["a.example", "b.example"])).await.unwrap();
        drivers(&store, &node, hello(&["b.example"])).await.unwrap();
        assert!(gone("a.example") && !gone("b.example"));
        drivers(&store, &node, hello(&["a.example", "b.example"])).await.unwrap();
        assert!(!gone("a.example"));
    }

    #[tokio::test]
    async fn what_was_found_by_its_id_has_that_id_in_lists_when_it_is_attached() {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let (driver, node) = ("test.edge-csi.io".parse().unwrap(), "n1".parse().unwrap());
        let id = Id::Volume("v".into());
        discovered(&store, &driver, &id, &node, Bytes::new()).await.unwrap();
        update(&store, &driver, &id, |entry| crate::state::list_entry::attach(entry, "n1"))
            .await
            .unwrap();
        let entry =
            store.read(|state| state.driver(&driver)?.home(&id).map(|home| home.entry.clone()));
        let entry = csi::list_volumes_response::Entry::decode(entry.unwrap()).unwrap();
        assert_eq!(entry.volume.unwrap().volume_id, "v");
        assert_eq!(entry.status.unwrap().published_node_ids, ["n1"]);
    }
}
