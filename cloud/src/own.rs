//! Volumes that one guest owns: which node has one is durable here before that node may use it.
//!
//! The store's own task decides, one step after another, so of two nodes that ask at once one is refused. What is decided
//! is in [`decide`], which is pure; `docs/direct-volumes.md` says why no two nodes have a volume at a time.

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use prost::Message;
use proto::csi;
use proto::error::{Error, chain};
use proto::identity::{DriverName, NodeName};
use proto::own::{Answer, Own, Step as Said};
use proto::rpc::Id;
use tracing::{info, warn};

use crate::learn::now;
use crate::links::Links;
use crate::make::text;
use crate::store::{OfDriver, Owner, Ownership, State, Store, StoreError, Txn};

use self::decide::{Moment, Step, Verdict};

pub mod decide;

/// The longest id of a volume that an edge may speak of, in bytes. CSI's limit is 128; drivers exceed it.
const MAX_ID: usize = 4096;

/// Makes a step.
pub(crate) fn step(
    txn: &mut Txn<'_>,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    step: Step<'_>,
) -> Verdict {
    let now = now();
    // Larger than all that were given, also by a store of which this is an older copy.
    let at = Moment { epoch: now.max(txn.epoch().saturating_add(1)), now };
    let before = txn.owner(driver, id).cloned().unwrap_or_default();
    let (after, verdict) = decide::decide(before.clone(), node, step, at);
    if after != before {
        txn.set_epoch(at.epoch);
        txn.set_owner(driver, id, Some(after).filter(|after| *after != Ownership::default()));
    }
    verdict
}

/// Who is said to have a volume, and what to do about it.
fn whose(driver: &DriverName, id: &Id, owner: &Owner, links: &Links) -> String {
    let Owner { node, held, since, .. } = owner;
    let volume = text(id);
    let has = match held.as_deref() {
        None => format!("it is attached to node {node}"),
        Some("") => format!("node {node} has it for a pod"),
        Some(pod) => format!("node {node} has it for pod {pod}"),
    };
    let since = i64::try_from(*since).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let since = since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
    let until = match (links.now(node).is_some(), held) {
        (true, Some(_)) => {
            "is linked: it lets go when that pod is gone and the volume is unpublished there".to_owned()
        }
        (true, None) => "is linked: it is free when it is detached (ControllerUnpublishVolume)".to_owned(),
        (false, _) => format!(
            "has no link: it lets go when it has linked and the pod there is gone; if it is off for good, and only then, \
             `csi-cloud volume release {driver} {volume} --node {node}` takes it from that node"
        ),
    };
    format!("{has}{since}, and {until}")
}

fn anothers(driver: &DriverName, id: &Id, owner: &Owner, links: &Links) -> Error {
    Error::Owned { volume: text(id).into(), why: whose(driver, id, owner, links) }
}

fn not_durable(source: StoreError) -> Error {
    Error::NotDurable { source: source.into() }
}

/// The nodes that a driver calls by this id: one, if the driver keeps to CSI.
fn called(driver: &OfDriver, node_id: &str) -> Vec<NodeName> {
    let is = |info: &Bytes| {
        csi::NodeGetInfoResponse::decode(info.clone()).is_ok_and(|info| info.node_id == node_id)
    };
    // As most drivers have it; what is behind it looks at each node.
    let named = node_id
        .parse()
        .ok()
        .filter(|node: &NodeName| driver.at(node).is_some_and(|at| at.info.as_ref().is_some_and(is)));
    if let Some(node) = named {
        return vec![node];
    }
    let nodes = driver.nodes().iter().filter(|(_, at)| at.info.as_ref().is_some_and(is));
    nodes.map(|(node, _)| node.clone()).collect()
}

/// Before a direct volume is attached: notes for which node, or refuses it since it is another's.
///
/// # Errors
/// Whose it is; or it could not be made durable.
pub(crate) async fn attaching(
    store: &Store,
    links: &Links,
    driver: &DriverName,
    id: &Id,
    node_id: &str,
) -> Result<(), Error> {
    let (of, volume, node_id) = (driver.clone(), id.clone(), node_id.to_owned());
    let written = store.write(move |txn| {
        let nodes = txn.state().driver(&of).map(|driver| called(driver, &node_id)).unwrap_or_default();
        let owner = txn.owner(&of, &volume).and_then(|own| own.owner.clone());
        match (nodes.as_slice(), owner) {
            ([node], _) => step(txn, &of, &volume, node, Step::Attach),
            (nodes, Some(owner)) if !nodes.contains(&owner.node) => Verdict::Anothers(owner),
            // A node that is not ours, or several with one id: which of them is not known before it asks.
            _ => Verdict::Done,
        }
    });
    match written.await.map_err(not_durable)? {
        Verdict::Anothers(owner) => Err(anothers(driver, id, &owner, links)),
        _ => Ok(()),
    }
}

/// A volume was detached from the node that the driver calls so; from all, if that is empty.
///
/// # Errors
/// It could not be made durable.
pub(crate) async fn detached(
    store: &Store,
    driver: &DriverName,
    id: &Id,
    node_id: String,
) -> Result<(), StoreError> {
    if store.read(|state| owner(state, driver, id).is_none()) {
        return Ok(());
    }
    let (driver, id) = (driver.clone(), id.clone());
    let written = store.write(move |txn| {
        let Some(owner) = txn.owner(&driver, &id).and_then(|own| own.owner.clone()) else { return };
        let is = |driver: &OfDriver| called(driver, &node_id).contains(&owner.node);
        if node_id.is_empty() || txn.state().driver(&driver).is_some_and(is) {
            step(txn, &driver, &id, &owner.node, Step::Detach);
        }
    });
    written.await
}

/// Who has a volume.
pub(crate) fn owner<'a>(state: &'a State, driver: &DriverName, id: &Id) -> Option<&'a Owner> {
    state.driver(driver)?.owner(id)?.owner.as_ref()
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
    let owner = store.read(|state| owner(state, driver, id).filter(|owner| owner.held.is_some()).cloned());
    owner.map_or(Ok(()), |owner| Err(anothers(driver, id, &owner, links)))
}

/// A volume is gone, and with it whose it was; unless a node says that it has it still.
pub(crate) fn gone(txn: &mut Txn<'_>, driver: &DriverName, id: &Id) {
    let own = txn.owner(driver, id);
    if own.is_some_and(|own| own.owner.as_ref().is_none_or(|owner| owner.held.is_none())) {
        txn.set_owner(driver, id, None);
    }
}

/// What a node said of a volume, on its link; none if that is not the node's any more when it is the message's turn, or
/// has said goodbye: whatever came after it counts.
pub(crate) async fn said(
    store: &Store,
    links: &Links,
    node: &NodeName,
    own: Own,
    counts: impl Fn() -> bool + Send + 'static,
) -> Option<Answer> {
    let (driver, id, said) = (own.driver.clone(), Id::Volume(own.volume), own.step);
    if text(&id).is_empty() || text(&id).len() > MAX_ID {
        return Some(Answer::NotNow { why: format!("the id of a volume has 1 to {MAX_ID} bytes") });
    }
    let (at, volume) = (node.clone(), id.clone());
    let written = store.write(move |txn| {
        if !counts() {
            return None;
        }
        if txn.state().driver(&own.driver).is_none_or(|driver| driver.at(&at).is_none()) {
            return Some(None);
        }
        let said = match &said {
            Said::Ask { pod } => Step::Ask(pod),
            Said::Hold { epoch, pod } => Step::Hold(*epoch, pod),
            Said::Release => Step::Release,
        };
        let before = txn.owner(&own.driver, &volume).cloned();
        let verdict = step(txn, &own.driver, &volume, &at, said);
        let news = txn.owner(&own.driver, &volume) != before.as_ref();
        Some(Some((verdict, news)))
    });
    let verdict = match written.await {
        Ok(verdict) => verdict?,
        Err(error) => return Some(Answer::NotNow { why: chain(&error) }),
    };
    Some(match verdict {
        None => Answer::NotNow { why: format!("node {node} never had driver {driver}") },
        Some((Verdict::Held(epoch), news)) => {
            if news {
                info!(%node, %driver, volume = text(&id), epoch, "a volume is the node's");
            }
            Answer::Held { epoch }
        }
        Some((Verdict::Done, _)) => Answer::Released,
        Some((Verdict::Anothers(owner), _)) => Answer::Anothers { why: whose(&driver, &id, &owner, links) },
        Some((Verdict::Fenced(owner), _)) => {
            warn!(%node, %driver, volume = text(&id), "a node says that it has what was taken from it");
            let now = owner.map(|owner| format!("; now {}", whose(&driver, &id, &owner, links)));
            let why = format!(
                "it was taken from this node{}",
                now.unwrap_or_else(|| ", and is nobody's now".into())
            );
            Answer::Fenced { why }
        }
    })
}

#[cfg(test)]
mod tests;
