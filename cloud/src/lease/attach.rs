//! Leases at the controller's calls: attach, detach and delete of a volume.
//!
//! An attach reserves the volume for its node, so that a pod elsewhere is refused early. Only a
//! lease lets a node use the volume.

use bytes::Bytes;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::error::Error;
use crate::lease::decide::{LeaseVerdict, Step};
use crate::lease::holder_link::explain;
use crate::lease::step::step;
use crate::nodes::links::Links;
use crate::state::driver_state::has_node_id;
use crate::state::known::State;
use crate::state::record::LeaseRecord;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// Reserves a volume for a node before it is attached there. Without `direct`, an
/// ordinary volume is checked only if a node has its lease.
///
/// # Errors
/// Another node has it, or the change is not durable.
pub(crate) async fn reserve(
    store: &Store,
    links: &Links,
    (driver, id): (&DriverName, &Id),
    node_id: &str,
    direct: bool,
) -> Result<(), Error> {
    let named = named(store, driver, node_id);
    let volume = (driver.clone(), id.clone());
    let node_id = node_id.to_owned();
    let written = store.write(move |txn| {
        let (driver, id) = &volume;
        reserve_in(txn, (driver, id), &named, &node_id, direct)
    });
    match written.await.map_err(not_durable)? {
        LeaseVerdict::HeldElsewhere(record) => Err(held(store, links, driver, id, &record)),
        LeaseVerdict::Held(_)
        | LeaseVerdict::HeldByWord(_)
        | LeaseVerdict::Contested(_)
        | LeaseVerdict::Done
        | LeaseVerdict::Fenced(_) => Ok(()),
    }
}

fn reserve_in(
    txn: &mut Txn<'_>,
    (driver, id): (&DriverName, &Id),
    named: &Named,
    node_id: &str,
    direct: bool,
) -> LeaseVerdict {
    let record = txn.lease(driver, id).cloned().unwrap_or_default();
    let attached = record.attached.as_ref();
    let holder = record.holder.as_ref().map(|holder| &holder.node);
    let claimant = record.claims.first().map(|claim| &claim.node);
    let user = holder.or(claimant).or_else(|| attached.map(|attached| &attached.node));
    let again = attached.filter(|attached| *attached.id == *node_id).map(|attached| &attached.node);
    match (named.nodes.as_slice(), user) {
        (_, None) if !direct => LeaseVerdict::Done,
        ([node], _) => step(txn, driver, id, node, Step::Attach(node_id)),
        // The id was known at the first attach.
        ([], Some(user)) if again == Some(user) => LeaseVerdict::Done,
        (nodes, Some(user)) if !nodes.contains(user) && !named.unknown.contains(user) => {
            LeaseVerdict::HeldElsewhere(record)
        }
        // A foreign node, or several nodes with one id: the node is known once it asks for a lease.
        _ => LeaseVerdict::Done,
    }
}

/// Records the detach of a volume. `node_id` is the node's id now, or at the attach; an empty id
/// means all nodes.
///
/// # Errors
/// The change is not durable.
pub(crate) async fn detached(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node_id: String,
) -> Result<(), StoreError> {
    let attached = store.read(|state| state.driver(driver)?.lease(id)?.attached.clone());
    let Some(attached) = attached else { return Ok(()) };
    let by_id = node_id.is_empty() || *attached.id == *node_id;
    let named = if by_id { Named::default() } else { named(store, driver, &node_id) };
    let driver = driver.clone();
    let id = id.clone();
    let written = store.write(move |txn| {
        let attached = txn.lease(&driver, &id).and_then(|record| record.attached.clone());
        let Some(attached) = attached else { return };
        let name = if named.nodes.contains(&attached.node) { &*attached.id } else { &*node_id };
        step(txn, &driver, &id, &attached.node, Step::Detach(name));
    });
    written.await
}

/// True if a volume has a holder, is claimed, or is attached.
pub(crate) fn is_in_use(store: &Store, driver: &DriverName, id: &Id) -> bool {
    let in_use = |record: &LeaseRecord| has_user(record) || record.attached.is_some();
    store.read(|state| state.driver(driver).and_then(|driver| driver.lease(id)).is_some_and(in_use))
}

/// True if a node holds it, or says so.
fn has_user(record: &LeaseRecord) -> bool {
    record.holder.is_some() || !record.claims.is_empty()
}

/// Refuses to delete a volume that has a holder, or that a node claims.
///
/// # Errors
/// The holder.
pub(crate) fn check_delete(
    store: &Store,
    links: &Links,
    driver: &DriverName,
    id: &Id,
) -> Result<(), Error> {
    let record = store.read(|state| state.driver(driver)?.lease(id).cloned());
    match record.filter(has_user) {
        None => Ok(()),
        Some(record) => Err(held(store, links, driver, id, &record)),
    }
}

fn held(store: &Store, links: &Links, driver: &DriverName, id: &Id, record: &LeaseRecord) -> Error {
    Error::Owned { volume: id.text().into(), why: explain(driver, id, record, store, links) }
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}

/// The nodes with an id at the driver: one, if the driver conforms to CSI.
#[derive(Default)]
struct Named {
    nodes: Vec<NodeName>,
    /// Nodes whose id is not known now.
    unknown: Vec<NodeName>,
}

/// The nodes with this id. All nodes may be looked at, so this runs outside the store's task.
fn named(store: &Store, driver: &DriverName, node_id: &str) -> Named {
    // Most drivers use the node's name as its id.
    let likely: Option<NodeName> = node_id.parse().ok();
    if let Some(node) = likely
        && store
            .read(|state| info(state, driver, &node))
            .is_some_and(|info| has_node_id(&info, node_id))
    {
        return Named { nodes: vec![node], unknown: Vec::new() };
    }
    let infos: Vec<_> = store.read(|state| {
        let nodes = state.driver(driver).into_iter().flat_map(|driver| driver.nodes());
        nodes.map(|(node, at)| (node.clone(), at.info.clone())).collect()
    });
    let mut named = Named::default();
    for (node, info) in infos {
        match info {
            None => named.unknown.push(node),
            Some(info) if has_node_id(&info, node_id) => named.nodes.push(node),
            Some(_) => {}
        }
    }
    named
}

fn info(state: &State, driver: &DriverName, node: &NodeName) -> Option<Bytes> {
    state.driver(driver)?.at(node)?.info.clone()
}
