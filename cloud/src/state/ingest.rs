//! Records what edges and answers report.
//!
//! Each function here is one durable change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use proto::control::hello::Driver;
use proto::csi;
use proto::csi::topology::NODE_SEGMENT;
use proto::csi::wire::Malformed;
use proto::csi::{Id, Local, Method, Segments};
use proto::names::{DriverName, NodeName};
use tracing::info;

use crate::state::authority::{Authority, Unserved};
use crate::state::clock::now;
use crate::state::contest;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::profile;
use crate::state::record::{Home, Node, NodeDriver};
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The most characters that are kept of a wrong plugin name.
const MAX_NAME: usize = 128;
/// The most drivers without a front that are shown of one node.
const MAX_UNSERVED: usize = 64;

/// Records the drivers that a node reports. A driver without answers keeps its earlier ones. A
/// driver that the node no longer names is marked with the time. Nothing is written if nothing is
/// new.
///
/// Nothing is recorded of a driver that has no front, because a node could invent any number of
/// them. These are returned: the first 64. Nor is anything recorded of a driver that the node may
/// not have, or of one that says another plugin name; the node is set apart.
///
/// # Errors
/// The change is not durable.
pub async fn drivers(
    store: &Store,
    authority: &Authority,
    node: &NodeName,
    drivers: Vec<Driver>,
) -> Result<Vec<Unserved>, StoreError> {
    let named: BTreeSet<_> = drivers.iter().map(|driver| driver.name.clone()).collect();
    let (drivers, unserved) = admissible(store, authority, node, drivers).await?;
    let names: Vec<_> = drivers.iter().map(|driver| driver.name.clone()).collect();
    let news = store.read(|state| news(state, node, drivers));
    let gone = store.read(|state| gone(state, node, &named));
    if news.is_empty() && gone.is_empty() && store.read(|state| state.node(node).is_some()) {
        update_profiles(store, node, &names).await?;
        return Ok(unserved);
    }
    for (driver, at) in &news {
        info!(%node, %driver, away = !at.has_spoken(), "learned of a driver");
    }
    for driver in &gone {
        info!(%node, %driver, "the node does not have the driver any more");
    }
    let at_node = node.clone();
    let node = node.clone();
    let write = store.write(move |txn| {
        if txn.node(&node).is_none() {
            txn.set_node(&node, Some(Node { since: now(), removed: None }));
        }
        for (driver, at) in news {
            let listed = txn.at(&driver, &node).map_or(0, |before| before.listed);
            txn.set_at(&driver, &node, Some(NodeDriver { listed, ..at }));
        }
        for driver in gone {
            if let Some(at) = txn.at(&driver, &node).cloned() {
                txn.set_at(&driver, &node, Some(NodeDriver { gone: Some(now()), ..at }));
            }
        }
    });
    write.await?;
    for driver in &names {
        contest::after_record(store, authority, &at_node, driver).await?;
    }
    update_profiles(store, &at_node, &names).await?;
    Ok(unserved)
}

/// The part of a node's report that may be recorded, and the first names of drivers without a
/// front.
async fn admissible(
    store: &Store,
    authority: &Authority,
    node: &NodeName,
    drivers: Vec<Driver>,
) -> Result<(Vec<Driver>, Vec<Unserved>), StoreError> {
    let mut recorded = Vec::new();
    let mut unserved = Vec::new();
    for driver in drivers {
        if !authority.serves(&driver.name) {
            if unserved.len() < MAX_UNSERVED {
                unserved.push(Unserved::of(driver));
            }
        } else if authority.check(store, &driver.name, node) && check_name(store, &driver, node) {
            recorded.push(contest::before_record(store, authority, node, driver).await?);
        }
    }
    Ok((recorded, unserved))
}

async fn update_profiles(
    store: &Store,
    node: &NodeName,
    drivers: &[DriverName],
) -> Result<(), StoreError> {
    for driver in drivers {
        profile::update(store, driver, node).await?;
    }
    Ok(())
}

/// Sets a node apart if its driver reports another plugin name, and readmits it if not. Returns
/// true if the name is right, or unknown because the driver is away.
fn check_name(store: &Store, driver: &Driver, node: &NodeName) -> bool {
    let Some(info) = driver.answers.get(Method::answering(Local::Info).name()) else { return true };
    let info = csi::GetPluginInfoResponse::decode(info.0.clone()).unwrap_or_default();
    let is_right = info.name == driver.name.as_str();
    if is_right {
        store.clear_apart(node, Some(&driver.name), ReasonKind::OtherName);
    } else {
        let says = info.name.chars().take(MAX_NAME).collect();
        store.set_apart(node, Some(&driver.name), Reason::OtherName { says });
    }
    is_right
}

/// The drivers of a node whose record changes.
fn news(state: &State, node: &NodeName, drivers: Vec<Driver>) -> Vec<(DriverName, NodeDriver)> {
    let mut news = Vec::new();
    for driver in drivers {
        let before = state.driver(&driver.name).and_then(|known| known.at(node));
        let at = reported(node, &driver, before);
        if before != Some(&at) {
            news.push((driver.name, at));
        }
    }
    news
}

/// The drivers that a node had and no longer names.
fn gone(state: &State, node: &NodeName, named: &BTreeSet<DriverName>) -> Vec<DriverName> {
    let unnamed = state.drivers().iter().filter(|(driver, _)| !named.contains(*driver));
    let has = |driver: &DriverState| driver.at(node).is_some_and(|at| at.gone.is_none());
    unnamed.filter(|(_, of)| has(of)).map(|(driver, _)| driver.clone()).collect()
}

/// The record of a driver as its node reports it.
fn reported(node: &NodeName, driver: &Driver, before: Option<&NodeDriver>) -> NodeDriver {
    let mut at = NodeDriver { gone: None, ..before.cloned().unwrap_or_default() };
    if !driver.answers.is_empty() {
        let mut answers: BTreeMap<_, _> = driver
            .answers
            .iter()
            .map(|(method, answer)| (method.clone(), answer.0.clone()))
            .collect();
        at.info = answers.remove(Method::answering(Local::NodeInfo).name());
        // A driver says that alone while its node does not know the rest.
        if !answers.is_empty() {
            at.answers = answers.into();
        }
    }
    let mut segments = at.info.as_ref().map(segments_of).unwrap_or_default();
    // Ours is the certificate's name, whatever the driver says.
    segments.insert(NODE_SEGMENT.to_owned(), node.to_string());
    at.segments = segments.into_iter().map(Arc::new).collect();
    at
}

fn segments_of(info: &Bytes) -> Segments {
    let info = csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default();
    info.accessible_topology
        .map(|topology| topology.segments.into_iter().collect())
        .unwrap_or_default()
}

/// Records a deletion: removes the home, the intent and the lease; with a group also its snapshots.
///
/// # Errors
/// The change is not durable.
pub async fn deleted(store: &Store, driver: &DriverName, id: &Id) -> Result<(), StoreError> {
    let driver = driver.clone();
    let id = id.clone();
    let write = store.write(move |txn| {
        end_lease(txn, &driver, &id);
        remove(txn, &driver, &id);
    });
    write.await
}

/// Removes the home and the intent, but not the lease, because the deletion is not certain.
///
/// # Errors
/// The change is not durable.
pub async fn forget(store: &Store, driver: &DriverName, id: &Id) -> Result<(), StoreError> {
    let driver = driver.clone();
    let id = id.clone();
    store.write(move |txn| remove(txn, &driver, &id)).await
}

fn remove(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) {
    let Some(home) = txn.home(driver, id).cloned() else {
        // Recorded all the same: an earlier list may still contain it.
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
            let snapshot = Id::Snapshot(snapshot.snapshot_id);
            // The entry is the word of the group's node, which counts for its own snapshots only.
            if txn.home(driver, &snapshot).is_none_or(|of| of.node == home.node) {
                txn.set_home(driver, &snapshot, None);
            }
        }
    }
    txn.set_home(driver, id, None);
}

/// Records a call's effect on a volume, in its cached list entry. The change is durable before the
/// caller is answered, so lists show it after a crash while the node is away. A volume without a
/// home stays without one, and older lists about it are stale.
///
/// # Errors
/// The change is not durable.
pub async fn update(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    change: impl FnOnce(&[u8]) -> Result<Vec<u8>, Malformed> + Send + 'static,
) -> Result<(), StoreError> {
    let driver = driver.clone();
    let id = id.clone();
    let write = store.write(move |txn| {
        let Some(home) = txn.home(&driver, &id).cloned() else {
            return txn.set_stale(&driver, &id);
        };
        // A volume found by its id alone has no entry yet, and an entry needs an id.
        let entry = if home.entry.is_empty() { bare(&id) } else { home.entry.clone() };
        // An undecodable entry is kept; the node's next list replaces it.
        let Ok(entry) = change(&entry) else { return };
        // Set even if unchanged, so that earlier lists of the volume count as older.
        txn.set_home(&driver, &id, Some(Home { entry: entry.into(), ..home }));
    });
    write.await
}

/// Removes the lease of a deleted volume, unless a node still holds or claims it.
fn end_lease(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) {
    if txn.lease(driver, id).is_some_and(|lease| lease.holder.is_none() && lease.claims.is_empty())
    {
        txn.set_lease(driver, id, None);
    }
}

/// The list entry of a volume of which only the id is known.
fn bare(id: &Id) -> Bytes {
    let volume = csi::Volume { volume_id: id.text().into(), ..Default::default() };
    csi::list_volumes_response::Entry { volume: Some(volume), status: None }.encode_to_vec().into()
}

/// Records something that an operator knows to be at a node. If another node was first, it stays
/// there.
///
/// # Errors
/// The change is not durable.
pub async fn discovered(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    entry: Bytes,
) -> Result<(), StoreError> {
    let driver = driver.clone();
    let id = id.clone();
    let node = node.clone();
    let write = store.write(move |txn| {
        let home = claimed(txn, &driver, &id, &node, entry);
        if txn.home(&driver, &id) != Some(&home) {
            txn.set_home(&driver, &id, Some(home));
        }
    });
    write.await
}

/// Records the operator's word that an id lives at a node, and drops all other claims to it. A home
/// at another node stays. Returns the home node.
///
/// # Errors
/// The change is not durable.
pub async fn adopted(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
) -> Result<NodeName, StoreError> {
    let driver = driver.clone();
    let id = id.clone();
    let node = node.clone();
    let write = store.write(move |txn| {
        let before = txn.home(&driver, &id).cloned();
        let home = before.unwrap_or_else(|| Home::at(node.clone(), now()));
        if home.node == node {
            let home = Home { conflicts: Vec::new(), absent: false, ..home };
            txn.set_home(&driver, &id, Some(home));
            return node;
        }
        home.node
    });
    write.await
}

/// Records something that a node says it has, like [`discovered`], if the node has room for it.
/// Otherwise nothing is recorded, and the node is set apart. Returns whether it had room.
///
/// # Errors
/// The change is not durable.
pub async fn found(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    entry: Bytes,
) -> Result<bool, StoreError> {
    let of = driver.clone();
    let id = id.clone();
    let at = node.clone();
    let quotas = *store.quotas();
    let write = store.write(move |txn| {
        let home = claimed(txn, &of, &id, &at, entry);
        if txn.home(&of, &id) == Some(&home) {
            return Ok(());
        }
        txn.set_home_within(&quotas, &at, (&of, &id), home)
    });
    let checked = write.await?;
    if let Err(over) = &checked {
        store.refuse_over_quota(node, Some(driver), over);
    }
    Ok(checked.is_ok())
}

/// The home of something that a node has: the first node keeps it.
fn claimed(txn: &Txn<'_>, driver: &DriverName, id: &Id, node: &NodeName, entry: Bytes) -> Home {
    let mut home = txn.home(driver, id).cloned().unwrap_or_else(|| Home::at(node.clone(), now()));
    if home.node == *node {
        // Copied: a slice would keep the link's whole read buffer in memory.
        let kept = if entry.is_empty() { home.entry } else { Bytes::copy_from_slice(&entry) };
        home.absent = false;
        home.entry = kept;
    } else if !home.conflicts.contains(node) {
        home.conflicts.push(node.clone());
    }
    home
}

#[cfg(test)]
mod tests;
