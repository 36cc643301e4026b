//! Whose a volume is after each step. Pure: the record, who says what, and the next epoch go in.
//!
//! It has one owner at most, and another one only after the first has let go, or an operator has said so, or a later epoch
//! proves that one of the two was so. What a node says is heard in the order in which it said it.

use proto::names::NodeName;

use crate::state::record::{Attached, Broken, Holder, LeaseRecord};

/// What is done to a volume, or said of it, at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It is about to be attached to the node, which its driver calls so.
    Attach(&'a str),
    /// It was detached from who its driver calls so; from all, if that is empty.
    Detach(&'a str),
    /// A pod of the node wants it; the node does not have it.
    Ask(&'a str),
    /// The node has it, for this pod, since this epoch; 0 if it was never told one.
    Hold(u64, &'a str),
    /// The node does not have it.
    Release,
    /// An operator says that nobody at the node uses it any more, nor will.
    Break,
}

/// When a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// An epoch that was never given out, and is later than all that were, and than what is said.
    pub epoch: u64,
    /// In ms since 1970.
    pub now: u64,
}

/// What comes of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node has it, from this epoch on.
    Held(u64),
    /// It is so.
    Done,
    /// It is another's, so nothing has changed.
    HeldElsewhere(LeaseRecord),
    /// It was taken from the node; it is whose it is said to be, or nobody's.
    Fenced(Option<Holder>),
}

/// Decides.
pub fn decide(
    mut own: LeaseRecord,
    node: &NodeName,
    step: Step<'_>,
    at: Moment,
) -> (LeaseRecord, Verdict) {
    let verdict = match step {
        Step::Attach(_) | Step::Ask(_) if is_anothers(&own, node) => {
            Verdict::HeldElsewhere(own.clone())
        }
        Step::Attach(id) => {
            let before = own.attached.take().filter(|before| *before.id == *id);
            let since = before.map_or(at.now, |before| before.since);
            own.attached = Some(Attached { node: node.clone(), id: id.into(), since });
            Verdict::Done
        }
        Step::Detach(id) => {
            own.attached.take_if(|attached| id.is_empty() || *attached.id == *id);
            Verdict::Done
        }
        Step::Ask(pod) => give(&mut own, node, pod, at.epoch, at.now),
        Step::Hold(epoch, pod) => hold(&mut own, node, (epoch, pod), at),
        Step::Release => {
            own.holder.take_if(|owner| owner.node == *node);
            Verdict::Done
        }
        Step::Break => take(&mut own, node, at.epoch),
    };
    (own, verdict)
}

/// Whether another node has it, or is about to.
fn is_anothers(own: &LeaseRecord, node: &NodeName) -> bool {
    let owner = own.holder.as_ref().map(|owner| &owner.node);
    let attached = own.attached.as_ref().map(|attached| &attached.node);
    // Who has it counts more than where an older copy of the store says that it is attached.
    owner.or(attached).is_some_and(|other| other != node)
}

/// Makes it the node's.
fn give(own: &mut LeaseRecord, node: &NodeName, pod: &str, epoch: u64, now: u64) -> Verdict {
    let before = own.holder.take().filter(|owner| owner.node == *node);
    let same = before.filter(|before| pod.is_empty() || *before.pod == *pod);
    let (pod, since) = same.map_or_else(|| (pod.into(), now), |same| (same.pod, same.since));
    own.holder = Some(Holder { node: node.clone(), epoch, pod, since });
    own.broken.retain(|broken| broken.node != *node);
    Verdict::Held(epoch)
}

/// A node says that it has it. Of two that say so, who was given it later is right: it was given only after the other
/// had let go, or an operator had said so, though the store may be a copy of before that.
fn hold(own: &mut LeaseRecord, node: &NodeName, (said, pod): (u64, &str), at: Moment) -> Verdict {
    // Of another node's it says nothing: whoever had it in between, and is not owner now, has let go.
    let broken = own.broken.iter().any(|broken| broken.node == *node && said <= broken.epoch);
    let mine = own.holder.as_ref().filter(|owner| owner.node == *node).map(|owner| owner.epoch);
    let others = own.holder.as_ref().filter(|owner| owner.node != *node);
    if broken || others.is_some_and(|others| said <= others.epoch) {
        return Verdict::Fenced(others.cloned());
    }
    // What it was told last may not have arrived. It gets no later one for what it says: who is right and still away would be
    // taken for who was given it before.
    give(own, node, pod, mine.map_or(said, |mine| mine.max(said)), at.now)
}

/// Takes it from a node, whatever that says from now on.
fn take(own: &mut LeaseRecord, node: &NodeName, epoch: u64) -> Verdict {
    let before = own.clone();
    let attached = own.attached.take_if(|attached| attached.node == *node).is_some();
    if own.holder.as_ref().is_some_and(|owner| owner.node != *node) {
        // What its owner was given goes on.
        return if attached { Verdict::Done } else { Verdict::HeldElsewhere(before) };
    }
    if own.holder.take().is_none() && own.attached.is_some() {
        return Verdict::HeldElsewhere(before);
    }
    own.broken.retain(|broken| broken.node != *node);
    own.broken.push(Broken { node: node.clone(), epoch });
    Verdict::Done
}

#[cfg(test)]
mod copies;
#[cfg(test)]
mod tests;
