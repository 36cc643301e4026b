//! What the cloud keeps of what edges and answers say. Each of these is one durable change.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::hello::Driver;
use proto::identity::{DriverName, NodeName};
use proto::rpc::{Id, Segments};
use proto::wire::Malformed;
use tracing::info;

use crate::store::{At, Home, Node, Store, StoreError};
use crate::topology::NODE_SEGMENT;

/// This moment, in ms since 1970.
pub fn now() -> u64 {
    after(Duration::ZERO)
}

/// The moment that comes in this time, in ms since 1970.
pub fn after(time: Duration) -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from((since + time).as_millis()).unwrap_or(u64::MAX)
}

/// Keeps what a node says of its drivers; a driver that has no answers right now keeps those it gave. Nothing is
/// written if all of it is known.
///
/// # Errors
/// It could not be made durable.
pub async fn drivers(store: &Store, node: &NodeName, drivers: Vec<Driver>) -> Result<(), StoreError> {
    let news: Vec<_> = store.read(|state| {
        let known = |driver: &Driver| state.driver(&driver.name).and_then(|known| known.at(node));
        let news = drivers.into_iter().map(|driver| {
            let before = known(&driver).cloned();
            let at = learned(node, &driver, before.as_ref());
            (driver.name, at, before)
        });
        news.filter(|(_, at, before)| before.as_ref() != Some(at)).collect()
    });
    if news.is_empty() && store.read(|state| state.node(node).is_some()) {
        return Ok(());
    }
    for (driver, at, _) in &news {
        info!(%node, %driver, away = !at.has_spoken(), "learned of a driver");
    }
    let node = node.clone();
    let write = store.write(move |txn| {
        if txn.node(&node).is_none() {
            txn.set_node(&node, Some(Node { since: now(), removed: None }));
        }
        for (driver, at, _) in news {
            let listed = txn.at(&driver, &node).map_or(0, |before| before.listed);
            txn.set_at(&driver, &node, Some(At { listed, ..at }));
        }
    });
    write.await
}

fn learned(node: &NodeName, driver: &Driver, before: Option<&At>) -> At {
    let mut at = before.cloned().unwrap_or_default();
    if !driver.answers.is_empty() {
        let mut answers: std::collections::BTreeMap<_, _> =
            driver.answers.iter().map(|(method, answer)| (method.clone(), answer.0.clone())).collect();
        at.info = answers.remove("NodeGetInfo");
        at.alike = answers.into();
    }
    let mut segments = Segments::from([(NODE_SEGMENT.to_owned(), node.to_string())]);
    segments.extend(at.info.as_ref().map(segments_of).unwrap_or_default());
    at.place = segments.into_iter().collect();
    at
}

fn segments_of(info: &Bytes) -> Segments {
    let info = csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default();
    info.accessible_topology.map(|topology| topology.segments.into_iter().collect()).unwrap_or_default()
}

/// Keeps that something is gone, the intent of its name too; with a group also its snapshots.
///
/// # Errors
/// It could not be made durable.
pub async fn gone(store: &Store, driver: &DriverName, id: &Id) -> Result<(), StoreError> {
    let (driver, id) = (driver.clone(), id.clone());
    let write = store.write(move |txn| {
        let Some(home) = txn.home(&driver, &id).cloned() else {
            // A list that was read before may still tell of it.
            return txn.set_home(&driver, &id, None);
        };
        let method = match &id {
            Id::Volume(_) => "CreateVolume",
            Id::Snapshot(_) => "CreateSnapshot",
            Id::Group(_) | Id::Name(..) => "CreateVolumeGroupSnapshot",
        };
        if let Some(name) = home.name {
            txn.set_intent(&driver, &Id::Name(method, name.into()), None);
        }
        if matches!(id, Id::Group(_)) {
            let group =
                csi::CreateVolumeGroupSnapshotResponse::decode(home.entry).unwrap_or_default().group_snapshot;
            for snapshot in group.into_iter().flat_map(|group| group.snapshots) {
                txn.set_home(&driver, &Id::Snapshot(snapshot.snapshot_id), None);
            }
        }
        txn.set_home(&driver, &id, None);
    });
    write.await
}

/// Keeps what a call did to a volume, in its entry. A volume without a home stays without one.
///
/// # Errors
/// It could not be made durable.
pub async fn changed(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    change: impl FnOnce(&[u8]) -> Result<Vec<u8>, Malformed> + Send + 'static,
) -> Result<(), StoreError> {
    let (driver, id) = (driver.clone(), id.clone());
    let write = store.write(move |txn| {
        let Some(home) = txn.home(&driver, &id).cloned() else { return };
        // What cannot be edited stays as it is: the node's next list replaces it.
        let Ok(entry) = change(&home.entry) else { return };
        let entry = Bytes::from(entry);
        if entry != home.entry {
            txn.set_home(&driver, &id, Some(Home { entry, ..home }));
        }
    });
    write.await
}

/// Keeps that a node has something that nobody knew of. It stays where it is if another node was first.
///
/// # Errors
/// It could not be made durable.
pub async fn found(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    entry: Bytes,
) -> Result<(), StoreError> {
    let (driver, id, node) = (driver.clone(), id.clone(), node.clone());
    let write = store.write(move |txn| {
        let mut home = txn.home(&driver, &id).cloned().unwrap_or_else(|| Home::at(node.clone(), now()));
        if home.node == node {
            (home.absent, home.entry) = (false, if entry.is_empty() { home.entry } else { entry });
        } else if !home.rivals.contains(&node) {
            home.rivals.push(node);
        }
        if txn.home(&driver, &id) != Some(&home) {
            txn.set_home(&driver, &id, Some(home));
        }
    });
    write.await
}
