//! Applies one step to a volume's lease record within a transaction of the store.
//!
//! The transactions run one after another, so of two concurrent steps one sees the other. The
//! decision itself is in [`decide`], which is pure.

use proto::csi::Id;
use proto::names::{DriverName, NodeName};

use crate::lease::decide::{LeaseVerdict, Moment, Step, decide};
use crate::state::clock::now;
use crate::state::record::LeaseRecord;
use crate::state::txn::Txn;

/// Makes a step, and records what it changes.
pub(crate) fn step(
    txn: &mut Txn<'_>,
    driver: &DriverName,
    id: &Id,
    node: &NodeName,
    step: Step<'_>,
) -> LeaseVerdict {
    let now = now();
    // A node may invent what it does not prove, and an invented epoch must not move ours. Granted
    // epochs follow the clock, so that those of a store that was lost are earlier.
    let reported = match step {
        Step::Hold(report) if report.proven => report.epoch,
        _ => 0,
    };
    // Larger than all epochs granted so far, also by a newer store of which this is an older copy.
    let epoch = now.max(txn.epoch().saturating_add(1)).max(reported.saturating_add(1));
    let at = Moment { epoch, now };
    let before = txn.lease(driver, id).cloned().unwrap_or_default();
    let (after, verdict) = decide(before.clone(), node, step, at);
    if after != before {
        txn.set_epoch(at.epoch);
        txn.set_lease(driver, id, Some(after).filter(|after| *after != LeaseRecord::default()));
    }
    verdict
}
