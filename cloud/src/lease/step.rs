//! Volumes that one guest owns: which node has one is durable here before that node may use it.
//!
//! The store's own task decides, one step after another, so of two nodes that ask at once one is refused. What is decided
//! is in [`decide`], which is pure; `docs/direct-volumes.md` says why no two nodes have a volume at a time.

use crate::error::Error;
use bytes::Bytes;
use prost::Message;
use proto::csi;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::nodes::links::Links;
use crate::state::clock::now;
use crate::state::known::State;
use crate::state::record::LeaseRecord;
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

use super::decide::{self, Moment, Step, Verdict};
use super::standing::whose;

/// Makes a step.
pub(crate) fn step(
    txn: &mut Txn<'_>,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    step: Step<'_>,
) -> Verdict {
    let now = now();
    let said = if let Step::Hold(epoch, _) = step { epoch } else { 0 };
    // Larger than all that were given, also by a store of which this is an older copy.
    let epoch = now.max(txn.epoch().saturating_add(1)).max(said.saturating_add(1));
    let at = Moment { epoch, now };
    let before = txn.lease(driver, id).cloned().unwrap_or_default();
    let (after, verdict) = decide::decide(before.clone(), node, step, at);
    if after != before {
        txn.set_epoch(at.epoch);
        txn.set_lease(driver, id, Some(after).filter(|after| *after != LeaseRecord::default()));
    }
    verdict
}

fn anothers(
    store: &Store,
    links: &Links,
    driver: &DriverName,
    id: &Id,
    own: &LeaseRecord,
) -> Error {
    Error::Owned { volume: id.text().into(), why: whose(driver, id, own, store, links) }
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}

/// The nodes that a driver calls by this id: one, if the driver keeps to CSI.
#[derive(Default)]
struct Called {
    nodes: Vec<NodeName>,
    /// What of whose name is not known now.
    unknown: Vec<NodeName>,
}

/// Who is called so. All nodes may have to be looked at, so it is done before the store's task has its turn.
fn called(store: &Store, driver: &DriverName, node_id: &str) -> Called {
    let is = |info: &Bytes| {
        csi::NodeGetInfoResponse::decode(info.clone()).is_ok_and(|info| info.node_id == node_id)
    };
    // As most drivers have it; what is behind it looks at each node.
    let named: Option<NodeName> = node_id.parse().ok();
    let info = |state: &State, node: &NodeName| state.driver(driver)?.at(node)?.info.clone();
    if let Some(node) = named
        && store.read(|state| info(state, &node)).as_ref().is_some_and(is)
    {
        return Called { nodes: vec![node], unknown: Vec::new() };
    }
    let infos: Vec<_> = store.read(|state| {
        let nodes = state.driver(driver).into_iter().flat_map(|driver| driver.nodes());
        nodes.map(|(node, at)| (node.clone(), at.info.clone())).collect()
    });
    let mut called = Called::default();
    for (node, info) in infos {
        match info {
            None => called.unknown.push(node),
            Some(info) if is(&info) => called.nodes.push(node),
            Some(_) => {}
        }
    }
    called
}

/// Before a volume is attached: notes for which node, or refuses it since it is another's. `direct`: it is asked for as
/// a direct one; if not, that is done only if it is somebody's.
///
/// # Errors
/// Whose it is; or it could not be made durable.
pub(crate) async fn attaching(
    store: &Store,
    links: &Links,
    (driver, id): (&DriverName, &Id),
    node_id: &str,
    direct: bool,
) -> Result<(), Error> {
    let called = called(store, driver, node_id);
    let (of, volume, node_id) = (driver.clone(), id.clone(), node_id.to_owned());
    let written = store.write(move |txn| {
        let own = txn.lease(&of, &volume).cloned().unwrap_or_default();
        let attached = own.attached.as_ref();
        let had = own.holder.as_ref().map(|owner| &owner.node);
        let had = had.or_else(|| attached.map(|attached| &attached.node));
        let again =
            attached.filter(|attached| *attached.id == *node_id).map(|attached| &attached.node);
        match (called.nodes.as_slice(), had) {
            (_, None) if !direct => Verdict::Done,
            ([node], _) => step(txn, &of, &volume, node, Step::Attach(&node_id)),
            // Its name was known when it was attached first.
            ([], Some(had)) if again == Some(had) => Verdict::Done,
            (nodes, Some(had)) if !nodes.contains(had) && !called.unknown.contains(had) => {
                Verdict::HeldElsewhere(own)
            }
            // A node that is not ours, or several with one id: which of them is not known before it asks.
            _ => Verdict::Done,
        }
    });
    match written.await.map_err(not_durable)? {
        Verdict::HeldElsewhere(own) => Err(anothers(store, links, driver, id, &own)),
        _ => Ok(()),
    }
}

/// A volume was detached from the node that the driver calls so, or called so when it was attached; from all, if that is
/// empty.
///
/// # Errors
/// It could not be made durable.
pub(crate) async fn detached(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node_id: String,
) -> Result<(), StoreError> {
    let attached = store.read(|state| state.driver(driver)?.lease(id)?.attached.clone());
    let Some(attached) = attached else { return Ok(()) };
    let by_name = node_id.is_empty() || *attached.id == *node_id;
    let called = if by_name { Called::default() } else { called(store, driver, &node_id) };
    let (driver, id) = (driver.clone(), id.clone());
    let written = store.write(move |txn| {
        let attached = txn.lease(&driver, &id).and_then(|own| own.attached.clone());
        let Some(attached) = attached else { return };
        let name = if called.nodes.contains(&attached.node) { &*attached.id } else { &*node_id };
        step(txn, &driver, &id, &attached.node, Step::Detach(name));
    });
    written.await
}

/// Whether a volume is somebody's.
pub(crate) fn is_had(store: &Store, driver: &DriverName, id: &Id) -> bool {
    let had = |own: &LeaseRecord| own.holder.is_some() || own.attached.is_some();
    store.read(|state| state.driver(driver).and_then(|driver| driver.lease(id)).is_some_and(had))
}

/// Refuses to delete what a guest may have.
///
/// # Errors
/// Whose it is.
pub(crate) fn may_be_deleted(
    store: &Store,
    links: &Links,
    driver: &DriverName,
    id: &Id,
) -> Result<(), Error> {
    let own = store.read(|state| state.driver(driver)?.lease(id).cloned());
    let own = own.filter(|own| own.holder.is_some());
    own.map_or(Ok(()), |own| Err(anothers(store, links, driver, id, &own)))
}

#[cfg(test)]
mod tests;
