//! Decides the lease of a volume after each step. Pure: the record, the step and the next epoch go
//! in.
//!
//! A volume has at most one holder. Another node gets it only after the holder has released it, or
//! an operator has revoked it. A later epoch with our MAC proves one of the two. A node's word
//! without a MAC never takes a volume. Reports of a node are handled in its order.

use proto::names::NodeName;

use crate::state::record::{Attached, Broken, Holder, LeaseClaim, LeaseRecord};

/// An action on a volume at a node, or a report of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It is about to be attached to the node, which has this id at the driver.
    Attach(&'a str),
    /// It was detached from the node with this id; from all nodes, if the id is empty.
    Detach(&'a str),
    /// A pod of the node wants it; the node does not hold it.
    Ask(&'a str),
    /// The node holds it.
    Hold(LeaseReport<'a>),
    /// The node does not hold it.
    Release,
    /// An operator says that the node does not use it, and never will with its current lease.
    Break,
}

/// A node's word that it holds a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseReport<'a> {
    /// The epoch of its lease; 0 if it was never told one.
    pub epoch: u64,
    /// The pod's UID; empty if it is unknown.
    pub pod: &'a str,
    /// True if it has our MAC of this lease.
    pub proven: bool,
}

/// The moment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// A new epoch, later than all that were granted, also by a lost newer store.
    pub epoch: u64,
    /// In ms since 1970.
    pub now: u64,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// The node holds it by our grant, from this epoch on.
    Held(u64),
    /// The node holds it by its own word, which nothing contradicts.
    HeldByWord(u64),
    /// The node's word is not proven, and contradicts the record or another node's word. Nobody
    /// gets the volume by it.
    Contested(LeaseRecord),
    /// The step is recorded.
    Done,
    /// Another node has it, so nothing has changed.
    HeldElsewhere(LeaseRecord),
    /// The node's lease was revoked; this is the current holder, if any.
    Fenced(Option<Holder>),
}

/// Decides a step: the record after it, and its outcome.
pub fn decide(
    mut record: LeaseRecord,
    node: &NodeName,
    step: Step<'_>,
    at: Moment,
) -> (LeaseRecord, LeaseVerdict) {
    if matches!(step, Step::Ask(_) | Step::Release) {
        // It says that it does not hold it.
        take_claim(&mut record, node);
    }
    let verdict = match step {
        Step::Attach(_) | Step::Ask(_) if is_elsewhere(&record, node) => {
            LeaseVerdict::HeldElsewhere(record.clone())
        }
        Step::Attach(id) => {
            let before = record.attached.take().filter(|before| *before.id == *id);
            let since = before.map_or(at.now, |before| before.since);
            record.attached = Some(Attached { node: node.clone(), id: id.into(), since });
            LeaseVerdict::Done
        }
        Step::Detach(id) => {
            record.attached.take_if(|attached| id.is_empty() || *attached.id == *id);
            LeaseVerdict::Done
        }
        Step::Ask(pod) => {
            set_holder(&mut record, node, pod, at.epoch, at.now);
            LeaseVerdict::Held(at.epoch)
        }
        Step::Hold(report) if report.proven => hold(&mut record, node, report, at),
        Step::Hold(report) => believe(&mut record, node, report, at),
        Step::Release => {
            record.holder.take_if(|holder| holder.node == *node);
            LeaseVerdict::Done
        }
        Step::Break => revoke(&mut record, node, at.epoch),
    };
    (record, verdict)
}

/// True if another node holds it, or is about to, or says so.
fn is_elsewhere(record: &LeaseRecord, node: &NodeName) -> bool {
    // The current holder outranks a stale attachment from an older copy of the store.
    if let Some(holder) = &record.holder {
        return holder.node != *node;
    }
    let attached = record.attached.as_ref().map(|attached| &attached.node);
    let claims = record.claims.iter().map(|claim| &claim.node);
    claims.chain(attached).any(|other| other != node)
}

/// Makes the node the holder. A grant by csi-cloud ends an operator's revocation.
fn set_holder(record: &mut LeaseRecord, node: &NodeName, pod: &str, epoch: u64, now: u64) {
    let before = record.holder.take().filter(|holder| holder.node == *node);
    let same = before.filter(|before| pod.is_empty() || *before.pod == *pod);
    let (pod, since) = same.map_or_else(|| (pod.into(), now), |same| (same.pod, same.since));
    record.holder = Some(Holder { node: node.clone(), epoch, pod, since, unproven: false });
    record.broken.retain(|broken| broken.node != *node);
    take_claim(record, node);
}

/// The node proves a grant by csi-cloud. Of two grants the later one counts, also if the store is
/// an older copy. It was given only after the other lease had been released or revoked.
fn hold(
    record: &mut LeaseRecord,
    node: &NodeName,
    report: LeaseReport<'_>,
    at: Moment,
) -> LeaseVerdict {
    let reported = report.epoch;
    let mut broken = record.broken.iter();
    // A revocation concerns its own node only: later holders that are gone have released it.
    let is_broken = broken.any(|broken| broken.node == *node && reported <= broken.epoch);
    let other = record.holder.as_ref().filter(|holder| holder.node != *node);
    let granted = other.filter(|other| !other.unproven);
    if is_broken || granted.is_some_and(|other| reported <= other.epoch) {
        let other = other.cloned();
        take_claim(record, node);
        return LeaseVerdict::Fenced(other);
    }
    if let Some(other) = other.filter(|other| other.unproven).cloned() {
        add_claim(record, &other.node, other.epoch, at.now);
    }
    let own = record.holder.as_ref().filter(|holder| holder.node == *node && !holder.unproven);
    // The latest grant may not have arrived. A report never gets a later epoch: that would outrank
    // the right holder, which may still be away.
    let epoch = own.map_or(reported, |own| own.epoch.max(reported));
    set_holder(record, node, report.pod, epoch, at.now);
    LeaseVerdict::Held(epoch)
}

/// The node claims the volume without proof. Its claim counts for its own old lease only: it
/// confirms the record, or takes a volume that nobody has and nobody else claims.
fn believe(
    record: &mut LeaseRecord,
    node: &NodeName,
    report: LeaseReport<'_>,
    at: Moment,
) -> LeaseVerdict {
    let LeaseReport { epoch: reported, pod, .. } = report;
    let other = record.holder.as_ref().filter(|holder| holder.node != *node);
    let is_later = |other: &Holder| !other.unproven && reported <= other.epoch;
    // The stated epoch may be invented, so an operator's revocation counts whatever it is.
    if record.broken.iter().any(|broken| broken.node == *node) || other.is_some_and(is_later) {
        let other = other.cloned();
        take_claim(record, node);
        return LeaseVerdict::Fenced(other);
    }
    if let Some(own) = record.holder.as_ref().filter(|holder| holder.node == *node).cloned() {
        // The epoch stays: a later one would outrank the right holder, which may be away.
        set_holder(record, node, pod, own.epoch, at.now);
        return by_word(record, own.unproven);
    }
    let is_attached = record.attached.as_ref().is_some_and(|attached| attached.node != *node);
    let is_claimed = record.claims.iter().any(|claim| claim.node != *node);
    if record.holder.is_none() && !is_attached && !is_claimed {
        set_holder(record, node, pod, reported, at.now);
        return by_word(record, true);
    }
    if let Some(other) = record.holder.take_if(|other| other.unproven) {
        add_claim(record, &other.node, other.epoch, other.since);
    }
    add_claim(record, node, reported, at.now);
    LeaseVerdict::Contested(record.clone())
}

/// Notes whether the holder has it by its own word.
fn by_word(record: &mut LeaseRecord, unproven: bool) -> LeaseVerdict {
    let epoch = record.holder.as_mut().map_or(0, |holder| {
        holder.unproven = unproven;
        holder.epoch
    });
    if unproven { LeaseVerdict::HeldByWord(epoch) } else { LeaseVerdict::Held(epoch) }
}

fn add_claim(record: &mut LeaseRecord, node: &NodeName, epoch: u64, since: u64) {
    let before = record.claims.iter_mut().find(|claim| claim.node == *node);
    match before {
        Some(before) => before.epoch = epoch,
        None => record.claims.push(LeaseClaim { node: node.clone(), epoch, since }),
    }
}

/// Forgets the node's claim; returns whether there was one.
fn take_claim(record: &mut LeaseRecord, node: &NodeName) -> bool {
    let before = record.claims.len();
    record.claims.retain(|claim| claim.node != *node);
    record.claims.len() < before
}

/// Revokes the lease of a node, and its claim, whatever the node reports from now on.
fn revoke(record: &mut LeaseRecord, node: &NodeName, epoch: u64) -> LeaseVerdict {
    let before = record.clone();
    let attached = record.attached.take_if(|attached| attached.node == *node).is_some();
    let held = record.holder.take_if(|holder| holder.node == *node).is_some();
    let claimed = take_claim(record, node);
    let is_free = record.holder.is_none() && record.attached.is_none() && record.claims.is_empty();
    if !(held || claimed || is_free) {
        // The lease of another holder stays valid.
        return if attached { LeaseVerdict::Done } else { LeaseVerdict::HeldElsewhere(before) };
    }
    record.broken.retain(|broken| broken.node != *node);
    record.broken.push(Broken { node: node.clone(), epoch });
    LeaseVerdict::Done
}

#[cfg(test)]
mod copies;
#[cfg(test)]
mod liar;
#[cfg(test)]
mod tests;
