//! Whose a volume is after each step. Pure: the record, who says what, and the next epoch go in.
//!
//! It has one owner at most, and another one only after the first has let go, or an operator has said so. What a node
//! says is heard in the order in which it said it.

use proto::identity::NodeName;

use crate::store::{Owner, Ownership};

/// What is done to a volume, or said of it, at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It is about to be attached to the node.
    Attach,
    /// It was detached from the node.
    Detach,
    /// A pod of the node wants it; the node does not have it.
    Ask(&'a str),
    /// The node has it, for this pod, since this epoch.
    Hold(u64, &'a str),
    /// The node does not have it.
    Release,
    /// An operator says that nobody at the node uses it any more, nor will.
    Break,
}

/// When a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// An epoch that was never given out.
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
    Anothers(Owner),
    /// It was taken from the node; it is whose it is said to be, or nobody's.
    Fenced(Option<Owner>),
}

/// Decides.
pub fn decide(before: Ownership, node: &NodeName, step: Step<'_>, at: Moment) -> (Ownership, Verdict) {
    let Ownership { owner, broken } = before;
    // Of no epoch that was given before is it the node's still.
    if let Step::Hold(epoch, _) = step
        && broken.is_some_and(|broken| epoch <= broken)
    {
        let others = owner.clone().filter(|owner| owner.node != *node);
        return (Ownership { owner, broken }, Verdict::Fenced(others));
    }
    let (mine, others) = match owner {
        Some(owner) if owner.node == *node => (Some(owner), None),
        owner => (None, owner),
    };
    if let Some(others) = others {
        return of_another(others, broken, node, step, at);
    }
    let new = || Owner { node: node.clone(), epoch: at.epoch, attached: false, held: None, since: at.now };
    let (owner, verdict) = match step {
        Step::Attach => (Some(Owner { attached: true, ..mine.unwrap_or_else(new) }), Verdict::Done),
        Step::Detach => (mine.map(|mine| Owner { attached: false, ..mine }), Verdict::Done),
        Step::Ask(pod) => {
            let mine = mine.unwrap_or_else(new);
            (Some(Owner { epoch: at.epoch, held: Some(pod.into()), ..mine }), Verdict::Held(at.epoch))
        }
        Step::Hold(_, pod) => {
            let mine = mine.unwrap_or_else(new);
            // What it was told last may not have arrived, and another pod may have come while it was cut off.
            let epoch = if mine.held.is_some() { mine.epoch } else { at.epoch };
            let held = mine.held.clone().filter(|_| pod.is_empty()).unwrap_or_else(|| pod.into());
            (Some(Owner { epoch, held: Some(held), ..mine }), Verdict::Held(epoch))
        }
        Step::Release => (mine.map(|mine| Owner { held: None, ..mine }), Verdict::Done),
        Step::Break => return (Ownership { owner: None, broken: Some(at.epoch) }, Verdict::Done),
    };
    // Nobody's, once it is neither attached nor held.
    let owner = owner.filter(|owner| owner.attached || owner.held.is_some());
    (Ownership { owner, broken }, verdict)
}

/// The same while another node is the owner.
fn of_another(
    others: Owner,
    broken: Option<u64>,
    node: &NodeName,
    step: Step<'_>,
    at: Moment,
) -> (Ownership, Verdict) {
    let verdict = match step {
        Step::Attach | Step::Ask(_) | Step::Break => Verdict::Anothers(others.clone()),
        Step::Hold(..) if others.held.is_some() => Verdict::Fenced(Some(others.clone())),
        // Of a store that was put back from a copy: who has it counts more than who may be about to.
        Step::Hold(_, pod) => {
            let (node, held) = (node.clone(), Some(pod.into()));
            let owner = Owner { node, epoch: at.epoch, attached: false, held, since: at.now };
            return (Ownership { owner: Some(owner), broken }, Verdict::Held(at.epoch));
        }
        Step::Detach | Step::Release => Verdict::Done,
    };
    (Ownership { owner: Some(others), broken }, verdict)
}

#[cfg(test)]
mod tests;
