//! Finds out that the store is an older copy, and goes on when an operator has accepted it.
//!
//! `state::starts` counts the creates. Here each node is told their number, and what a node tells
//! again is compared.

use proto::control::watermark::Watermark;
use proto::names::NodeName;
use tracing::error;
use uuid::Uuid;

use crate::state::listed;
use crate::state::starts::{IMPORTED, LEASES, StartRecord};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The purpose of a MAC. Another use of the key needs another text.
const PURPOSE: &[u8] = b"edge-csi watermark of a store, 1";

/// The watermark of the store for a node; none before the first create, and while creates are known
/// to be missing: the nodes keep what they know then.
pub fn watermark(store: &Store, node: &NodeName) -> Option<Watermark> {
    store.read(|state| {
        let (start, number) = state.starts().newest()?;
        let key = &state.trust().secrets()?.leases;
        let mac = key.mac(&signed(node, &start, number));
        Some(Watermark { start, number, mac })
    })
}

/// Takes the watermark that a node was told. Returns true if it is the first to show that the
/// store lacks this create, which is durable then and told to the operator. A watermark that
/// csi-cloud has not made, or made for another node, counts for nothing.
///
/// # Errors
/// The change is not durable.
pub(crate) async fn take(
    store: &Store,
    node: &NodeName,
    told: &Watermark,
) -> Result<bool, StoreError> {
    let start = told.start;
    let beyond = told.number;
    let is_missing = store.read(|state| {
        let key = state.trust().secrets().map(|secrets| &secrets.leases);
        let signed = signed(node, &start, beyond);
        let is_ours = key.is_some_and(|key| key.has_signed(&signed, &told.mac));
        is_ours && state.starts().lacks(&start, beyond)
    });
    if !is_missing {
        return Ok(false);
    }
    let known_by = node.clone();
    store.write(move |txn| note(txn, start, beyond, known_by)).await?;
    tell(node);
    Ok(true)
}

/// Notes that a node has proven a lease of this epoch. Returns true if it is the first to show that
/// the store lacks it: [`tell`] the operator when that is durable.
pub(crate) fn note_lease(txn: &mut Txn<'_>, node: &NodeName, epoch: u64) -> bool {
    if epoch <= txn.epoch() || txn.start(&LEASES).is_some() {
        return false;
    }
    note(txn, LEASES, epoch, node.clone());
    true
}

/// Notes that creates of a start are missing in the store. No node counts as listed then, because
/// the lists may be from before those creates.
fn note(txn: &mut Txn<'_>, start: Uuid, beyond: u64, known_by: NodeName) {
    let known = txn.start(&start).cloned().unwrap_or_default();
    let beyond = known.beyond.max(beyond);
    txn.set_start(start, Some(StartRecord { beyond, known_by: Some(known_by), ..known }));
    listed::forget_in(txn);
}

/// Tells the operator that a node has shown that the store is an older copy.
pub(crate) fn tell(node: &NodeName) {
    error!(
        %node,
        "the store is an older copy: this node was told of a later create or lease. Nothing is \
         created, and no lease granted, until `csi-cloud store accept`"
    );
}

/// Accepts what is missing in the store. Returns of how many starts something was missing.
///
/// # Errors
/// The change is not durable.
pub async fn accept(store: &Store) -> Result<usize, StoreError> {
    let accept = |txn: &mut Txn<'_>| {
        let all = txn.state().starts().all();
        let incomplete = all.iter().filter(|(_, record)| record.is_incomplete());
        let incomplete: Vec<_> = incomplete.map(|(start, of)| (*start, of.clone())).collect();
        for (start, record) in &incomplete {
            // The epoch of leases is beyond it by now, and an import counts no creates.
            let is_start = *start != LEASES && *start != IMPORTED;
            let accepted = StartRecord { accepted: true, ..record.clone() };
            txn.set_start(*start, is_start.then_some(accepted));
        }
        incomplete.len()
    };
    store.write(accept).await
}

/// The name comes last, and all before it has a fixed length.
fn signed(node: &NodeName, start: &Uuid, number: u64) -> Vec<u8> {
    [PURPOSE, start.as_bytes(), &number.to_be_bytes(), node.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests;
