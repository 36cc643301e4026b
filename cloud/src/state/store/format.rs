//! The format of a store, and which records need which.
//!
//! The number grows only while a record is there that an older csi-cloud could misread. So an
//! older one opens the store whenever it can be trusted with it, and refuses it otherwise.

use std::collections::HashMap;

use crate::state::record::{Change, Node};
use crate::state::store::codec::Row;
use crate::state::store::table::Table;
use crate::state::trust::TrustChange;

/// The format of csi-cloud 0.1.0.
pub(super) const OLDEST: u64 = 1;
/// The format of csi-cloud 0.2.0 while nodes claim a direct volume by their words alone
/// (`LeaseRecord::claims`), or a certificate is revoked. An older csi-cloud drops the claims, and
/// would give the volume to another node; it would also link whoever was revoked.
const CLAIMS_AND_REVOCATIONS: u64 = 2;
/// Once several csi-clouds had the store. An older one sends no epoch with a call, and edges that
/// know one refuse such calls.
const LEADER_EPOCH: u64 = 3;
/// While a node is cordoned, or runs of its csi-edge are refused. An older csi-cloud would link
/// them.
const CORDONS: u64 = 4;
/// The newest format that this csi-cloud reads.
pub(super) const NEWEST: u64 = CORDONS;

/// The formats that records need, by table and key.
pub(super) type Newer = HashMap<(Table, Vec<u8>), u64>;

/// The records of one store that need more than the oldest format.
#[derive(Clone)]
pub(super) struct Needs {
    newer: Newer,
    /// False until all records were seen; the stored format is then no more than kept.
    is_known: bool,
}

impl Needs {
    /// Those of a store that has no records yet.
    pub(super) fn of_empty() -> Self {
        Self { newer: Newer::new(), is_known: true }
    }

    /// Those of a store that has to be read first.
    pub(super) fn unknown() -> Self {
        Self { newer: Newer::new(), is_known: false }
    }

    /// Takes all records of the store, whatever was known before.
    pub(super) fn learn(&mut self, newer: Newer) {
        *self = Self { newer, is_known: true };
    }

    /// Counts a change that is about to be written.
    pub(super) fn note(&mut self, change: &Change, row: &Row) {
        let of = (row.table, row.key.clone());
        let needed = needed(change);
        if row.value.is_some() && needed > OLDEST {
            self.newer.insert(of, needed);
        } else {
            self.newer.remove(&of);
        }
    }

    /// The format that the store must state, if it states this one now.
    pub(super) fn format(&self, stated: u64) -> u64 {
        let needed = self.newer.values().copied().max().unwrap_or(OLDEST);
        if self.is_known { needed } else { needed.max(stated) }
    }
}

/// The format that a record needs.
pub(super) fn needed(change: &Change) -> u64 {
    match change {
        Change::Lease(_, _, Some(lease)) if !lease.claims.is_empty() => CLAIMS_AND_REVOCATIONS,
        Change::Trust(TrustChange::Revocation(_, Some(_))) => CLAIMS_AND_REVOCATIONS,
        Change::LeaderEpoch(_) => LEADER_EPOCH,
        Change::Node(_, Some(Node { cordon: Some(_), .. })) => CORDONS,
        // An older one ignores what it does not know of these, and loses no volume by that.
        Change::Lease(..)
        | Change::Home(..)
        | Change::EndedHome(..)
        | Change::Intent(..)
        | Change::NodeDriver(..)
        | Change::Node(..)
        | Change::Elected(..)
        | Change::Profile(..)
        | Change::Epoch(_)
        | Change::Start(..)
        | Change::Trust(_) => OLDEST,
    }
}
