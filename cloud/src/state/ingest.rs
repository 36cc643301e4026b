//! Records what edges and answers report.
//!
//! Each function here is one durable change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use proto::control::hello::Driver;
use proto::control::machine::MachineId;
use proto::csi;
use proto::csi::topology::NODE_SEGMENT;
use proto::csi::wire::Malformed;
use proto::csi::{Id, Local, Method, Segments};
use proto::host::peer_log::{LogPeer, peer_info};
use proto::names::{DriverName, NodeName};

use crate::state::authority::{Authority, Unserved};
use crate::state::clock::now;
use crate::state::contest;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::profile;
use crate::state::recent::Stale;
use crate::state::record::{EndedHome, Home, Node, NodeDriver};
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The most characters that are kept of a wrong plugin name.
const MAX_NAME: usize = 128;
/// The longest node id that CSI allows, in bytes.
const MAX_NODE_ID: usize = 256;
/// The most former ids that are kept of a driver at a node.
const MAX_FORMER_IDS: usize = 8;
/// The most drivers without a front that are shown of one node.
const MAX_UNSERVED: usize = 64;

/// Records the machine of a node that has none yet, and the issue number of a certificate that is
/// on the node's disk, if that is the highest. Older edges tell neither. Nothing is written if
/// nothing is new.
///
/// # Errors
/// The change is not durable.
pub async fn identity(
    store: &Store,
    node: &NodeName,
    machine: Option<MachineId>,
    issue: Option<u64>,
) -> Result<(), StoreError> {
    let known = store.read(|state| state.node(node).cloned()).unwrap_or_default();
    if with_identity(known.clone(), machine, issue) == known {
        return Ok(());
    }
    let node = node.clone();
    let write = store.write(move |txn| {
        let known = txn.node(&node).cloned();
        let known = known.unwrap_or_else(|| Node { since: now(), ..Node::default() });
        txn.set_node(&node, Some(with_identity(known, machine, issue)));
    });
    write.await
}

fn with_identity(known: Node, machine: Option<MachineId>, issue: Option<u64>) -> Node {
    Node { machine: known.machine.or(machine), issue: known.issue.max(issue), ..known }
}

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
        peer_info!(
            LogPeer::Node(node), %node, %driver, away = !at.has_spoken(), "learned of a driver"
        );
    }
    for driver in &gone {
        peer_info!(
            LogPeer::Node(node), %node, %driver, "the node does not have the driver any more"
        );
    }
    let at_node = node.clone();
    let node = node.clone();
    let write = store.write(move |txn| {
        if txn.node(&node).is_none() {
            txn.set_node(&node, Some(Node { since: now(), ..Node::default() }));
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
        let info = answers.remove(Method::answering(Local::NodeInfo).name());
        let former = std::mem::replace(&mut at.info, info);
        note_former_id(&mut at, former.as_ref());
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

/// Keeps the id of a former answer to NodeGetInfo, if the present one has another: a kubelet may
/// know the node by it for as long as nobody starts its registrar again.
fn note_former_id(at: &mut NodeDriver, former: Option<&Bytes>) {
    let present = at.info.as_ref().and_then(node_id);
    let former = former.and_then(node_id).filter(|id| id.len() <= MAX_NODE_ID);
    let Some(former) = former.filter(|former| present.as_ref() != Some(former)) else { return };
    let mut ids = at.former_ids.to_vec();
    ids.retain(|id| **id != *former && present.as_deref() != Some(&**id));
    ids.push(former.into());
    let too_many = ids.len().saturating_sub(MAX_FORMER_IDS);
    at.former_ids = ids.split_off(too_many).into();
}

fn node_id(info: &Bytes) -> Option<String> {
    Some(message_of(info).node_id).filter(|id| !id.is_empty())
}

fn message_of(info: &Bytes) -> csi::NodeGetInfoResponse {
    csi::NodeGetInfoResponse::decode(info.clone()).unwrap_or_default()
}

fn segments_of(info: &Bytes) -> Segments {
    message_of(info)
        .accessible_topology
        .map(|topology| topology.segments.into_iter().collect())
        .unwrap_or_default()
}

/// Whose word it is that something is deleted.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// That of this node, which had it.
    At(NodeName),
    /// That of all nodes, or of the node that a shared driver's calls go to.
    Everywhere,
}

/// Records a deletion: removes the home, the intent and the lease; with a group also its snapshots.
/// If one node deleted them, their homes become ended ones, and a home at another node stays.
///
/// # Errors
/// The change is not durable.
pub async fn deleted(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    by: Deleted,
) -> Result<(), StoreError> {
    let driver = driver.clone();
    let id = id.clone();
    let write = store.write(move |txn| {
        end_lease(txn, &driver, &id);
        let Deleted::At(node) = by else { return drop(remove(txn, &driver, &id)) };
        if txn.home(&driver, &id).is_some_and(|home| home.node != node) {
            return;
        }
        for (id, is_confirmed) in remove(txn, &driver, &id) {
            // What ended there before may be claimed again since, by an older list.
            let was = txn.ended_home(&driver, &id).filter(|was| was.node == node);
            let confirmed = is_confirmed || was.is_some_and(|was| was.confirmed);
            txn.end_home(&driver, &id, EndedHome { node: node.clone(), ended: now(), confirmed });
        }
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
    store.write(move |txn| drop(remove(txn, &driver, &id))).await
}

/// Removes a home, with a group also those of its snapshots. Returns the ids that had one, and
/// whether it was confirmed.
fn remove(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) -> Vec<(Id, bool)> {
    let Some(home) = txn.home(driver, id).cloned() else {
        // FindOutcome all the same: an earlier list may still contain it.
        txn.set_home(driver, id, None);
        return Vec::new();
    };
    let mut removed = vec![(id.clone(), home.is_confirmed())];
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
            let of = txn.home(driver, &snapshot).map(|of| (of.node.clone(), of.is_confirmed()));
            if of.as_ref().is_none_or(|(of, _)| *of == home.node) {
                txn.set_home(driver, &snapshot, None);
            }
            if let Some((_, is_confirmed)) = of.filter(|(of, _)| *of == home.node) {
                removed.push((snapshot, is_confirmed));
            }
        }
    }
    txn.set_home(driver, id, None);
    removed
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
        let mut home = claimed(txn, &driver, &id, &node, entry);
        home.adopted |= home.node == node;
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
            let home = Home { conflicts: Vec::new(), absent: false, adopted: true, ..home };
            txn.set_home(&driver, &id, Some(home));
            return node;
        }
        home.node
    });
    write.await
}

/// What a node says of something that it has.
pub struct FoundEntry {
    /// Its list entry; empty if the node did not show it.
    pub entry: Bytes,
    /// The driver's count of changes before the node was asked.
    pub since: u64,
    /// True if the volume's node affinity in Kubernetes names the node too. That is asked again
    /// wherever the home must be confirmed: another PersistentVolume may get the id.
    pub is_in_kubernetes: bool,
}

/// What came of a node's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindOutcome {
    /// The id has a home.
    Home,
    /// The id was deleted after the node was asked, or the node has no room for it.
    Nothing,
    /// This other node deleted the id before, and only that is known.
    EndedElsewhere(NodeName),
}

/// Records something that a node says it has, like [`discovered`], if the node has room for it.
/// A node without room is set apart.
///
/// # Errors
/// The change is not durable.
pub async fn found(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    found: FoundEntry,
) -> Result<FindOutcome, StoreError> {
    let of = driver.clone();
    let id = id.clone();
    let at = node.clone();
    let quotas = *store.quotas();
    let write = store.write(move |txn| {
        let FoundEntry { entry, since, is_in_kubernetes } = found;
        if is_forgotten(txn, &of, &id, since) {
            return Ok(FindOutcome::Nothing);
        }
        let elsewhere = ended_elsewhere(txn, &of, &id, &at);
        if let Some(elsewhere) = elsewhere.filter(|_| !is_in_kubernetes) {
            return Ok(FindOutcome::EndedElsewhere(elsewhere));
        }
        let home = claimed(txn, &of, &id, &at, entry);
        if txn.home(&of, &id) == Some(&home) {
            return Ok(FindOutcome::Home);
        }
        txn.set_home_within(&quotas, &at, (&of, &id), home).map(|()| FindOutcome::Home)
    });
    Ok(write.await?.unwrap_or_else(|over| {
        store.refuse_over_quota(node, Some(driver), &over);
        FindOutcome::Nothing
    }))
}

/// True if the id lost its home after this change, in this commit too, or that is not known.
fn is_forgotten(txn: &Txn<'_>, driver: &DriverName, id: &Id, since: u64) -> bool {
    let Some(of) = txn.state().driver(driver) else { return false };
    if txn.home(driver, id).is_some() {
        return false;
    }
    if txn.is_changing(driver, id) {
        return true;
    }
    match of.stale_since(since) {
        Some(stale) => stale.get(id) == Some(&Stale::Forgotten),
        None => true,
    }
}

/// The node where an id without a home ended, if that is another one and still counts. Its end is
/// worth more than another node's word.
fn ended_elsewhere(
    txn: &Txn<'_>,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
) -> Option<NodeName> {
    let of = txn.state().driver(driver)?;
    let ended = &of.ended().at(id, now())?.node;
    (ended != node && !txn.is_removed(ended)).then(|| ended.clone())
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
