//! Decides the lease of a volume after each step. Pure: the record, the step and the next epoch go
//! in.
//!
//! A volume has at most one holder. Another node gets it only after the holder has released it, an
//! operator has revoked it, or a later epoch proves one of the two. Reports of a node are handled
//! in its order.

use proto::names::NodeName;

use crate::state::record::{Attached, Broken, Holder, LeaseRecord};

/// An action on a volume at a node, or a report of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It is about to be attached to the node, which has this id at the driver.
    Attach(&'a str),
    /// It was detached from the node with this id; from all nodes, if the id is empty.
    Detach(&'a str),
    /// A pod of the node wants it; the node does not hold it.
    Ask(&'a str),
    /// The node holds it since this epoch for this pod; 0 if it was never told an epoch.
    Hold(u64, &'a str),
    /// The node does not hold it.
    Release,
    /// An operator says that the node does not use it, and never will with its current lease.
    Break,
}

/// The moment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// A new epoch, later than all granted and reported ones.
    pub epoch: u64,
    /// In ms since 1970.
    pub now: u64,
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node holds it from this epoch on.
    Held(u64),
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
) -> (LeaseRecord, Verdict) {
    let verdict = match step {
        Step::Attach(_) | Step::Ask(_) if is_elsewhere(&record, node) => {
            Verdict::HeldElsewhere(record.clone())
        }
        Step::Attach(id) => {
            let before = record.attached.take().filter(|before| *before.id == *id);
            let since = before.map_or(at.now, |before| before.since);
            record.attached = Some(Attached { node: node.clone(), id: id.into(), since });
            Verdict::Done
        }
        Step::Detach(id) => {
            record.attached.take_if(|attached| id.is_empty() || *attached.id == *id);
            Verdict::Done
        }
        Step::Ask(pod) => grant(&mut record, node, pod, at.epoch, at.now),
        Step::Hold(epoch, pod) => hold(&mut record, node, (epoch, pod), at),
        Step::Release => {
            record.holder.take_if(|holder| holder.node == *node);
            Verdict::Done
        }
        Step::Break => revoke(&mut record, node, at.epoch),
    };
    (record, verdict)
}

/// True if another node holds it, or is about to.
fn is_elsewhere(record: &LeaseRecord, node: &NodeName) -> bool {
    let holder = record.holder.as_ref().map(|holder| &holder.node);
    let attached = record.attached.as_ref().map(|attached| &attached.node);
    // The current holder outranks a stale attachment from an older copy of the store.
    holder.or(attached).is_some_and(|other| other != node)
}

/// Grants it to the node.
fn grant(record: &mut LeaseRecord, node: &NodeName, pod: &str, epoch: u64, now: u64) -> Verdict {
    let before = record.holder.take().filter(|holder| holder.node == *node);
    let same = before.filter(|before| pod.is_empty() || *before.pod == *pod);
    let (pod, since) = same.map_or_else(|| (pod.into(), now), |same| (same.pod, same.since));
    record.holder = Some(Holder { node: node.clone(), epoch, pod, since });
    record.broken.retain(|broken| broken.node != *node);
    Verdict::Held(epoch)
}

/// The node reports that it holds it since `reported`. Of two such nodes the one with the later
/// epoch is right, also if the store is an older copy: it was granted only after the other had
/// released it, or after an operator had revoked it.
fn hold(
    record: &mut LeaseRecord,
    node: &NodeName,
    (reported, pod): (u64, &str),
    at: Moment,
) -> Verdict {
    let mut broken = record.broken.iter();
    // A revocation concerns its own node only: later holders that are gone have released it.
    let is_broken = broken.any(|broken| broken.node == *node && reported <= broken.epoch);
    let own = record.holder.as_ref().filter(|holder| holder.node == *node);
    let other = record.holder.as_ref().filter(|holder| holder.node != *node);
    if is_broken || other.is_some_and(|other| reported <= other.epoch) {
        return Verdict::Fenced(other.cloned());
    }
    // The latest grant may not have arrived. A report never gets a later epoch: that would outrank
    // the right holder, which may still be away.
    let epoch = own.map_or(reported, |own| own.epoch.max(reported));
    grant(record, node, pod, epoch, at.now)
}

/// Revokes the lease of a node, whatever the node reports from now on.
fn revoke(record: &mut LeaseRecord, node: &NodeName, epoch: u64) -> Verdict {
    let before = record.clone();
    let attached = record.attached.take_if(|attached| attached.node == *node).is_some();
    if record.holder.as_ref().is_some_and(|holder| holder.node != *node) {
        // The lease of another holder stays valid.
        return if attached { Verdict::Done } else { Verdict::HeldElsewhere(before) };
    }
    if record.holder.take().is_none() && record.attached.is_some() {
        return Verdict::HeldElsewhere(before);
    }
    record.broken.retain(|broken| broken.node != *node);
    record.broken.push(Broken { node: node.clone(), epoch });
    Verdict::Done
}

#[cfg(test)]
mod copies;
#[cfg(test)]
mod tests;
