//! The answer: the chain that was followed, and the verdict.

use std::collections::BTreeSet;
use std::fmt::Display;

use clap::ValueEnum;
use proto::admin::view::ExplainStep;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The chain from what was asked about to its node.
    pub steps: Vec<ExplainStep>,
    /// The first cause that was found.
    pub verdict: Verdict,
}

/// Why something waits, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cause, in a word that does not change.
    pub cause: Cause,
    /// The node at which the cause is, if it is at one.
    pub node: Option<NodeName>,
    /// The cause, for an operator.
    pub text: String,
    /// What to do next; empty if there is nothing to do.
    pub next: String,
}

/// Why something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Nothing is wrong with its storage.
    Fine,
    /// There is no such object.
    NotFound,
    /// It cannot be seen from here.
    NotVisible,
    /// csi-cloud's store takes no more changes.
    StoreFails,
    /// Its StorageClass is missing.
    NoClass,
    /// Its driver has no front at this csi-cloud.
    NoFront,
    /// A finalizer keeps what is being deleted.
    Terminating,
    /// No pod uses the claim yet.
    NoPod,
    /// The scheduler finds no node.
    Unschedulable,
    /// No call about it has come from its sidecar.
    NoCall,
    /// A call about it has been running for long.
    CallHangs,
    /// The last call about it failed.
    CallFailed,
    /// Its volume's home is not known.
    VolumeUnknown,
    /// Its node was removed, and its data with it.
    VolumeLost,
    /// Its node no longer lists it.
    VolumeAbsent,
    /// Several nodes say that they have it.
    VolumeClaimedTwice,
    /// The node has no link.
    NodeAway,
    /// csi-cloud began a moment ago, and the node has not linked since.
    CloudBegan,
    /// The node's certificate has ended.
    CertificateEnded,
    /// Two csi-edges, or another machine, have the node's certificate.
    CertificateShared,
    /// The node never had a link.
    NodeUnknown,
    /// The node was removed.
    NodeRemoved,
    /// The node's certificates were revoked.
    NodeRevoked,
    /// The node gets no new volumes.
    NodeSetApart,
    /// The node does not have the driver.
    DriverMissing,
    /// The driver is down at the node.
    DriverDown,
    /// The CSIDriver object says otherwise than the driver.
    DriverContradicted,
    /// The node's kubelet does not have the driver.
    NotRegistered,
    /// The volume is not attached yet.
    NotAttached,
    /// Another node has the direct volume, or several claim it.
    OwnedElsewhere,
    /// The pod's runtime did not take its direct volume as a device.
    NotTaken,
    /// The node's kubelet fails to mount.
    NotMounted,
    /// The volume is released, and its node has not unstaged it.
    NotUnstaged,
}

impl Verdict {
    /// A cause that is not at one node.
    pub(super) fn of(cause: Cause, text: impl Into<String>, next: impl Into<String>) -> Self {
        Self { cause, node: None, text: text.into(), next: next.into() }
    }

    /// A cause at a node.
    #[must_use]
    pub(super) fn at(self, node: &NodeName) -> Self {
        Self { node: Some(node.clone()), ..self }
    }

    /// Nothing is wrong.
    pub(super) fn fine(text: impl Into<String>) -> Self {
        Self::of(Cause::Fine, text, "")
    }

    /// The verdict as one sentence.
    pub fn sentence(&self) -> String {
        match self.next.as_str() {
            "" => self.text.clone(),
            next => format!("{}; {next}", self.text),
        }
    }
}

/// The chain while it is followed. The first cause counts, since others follow from it.
#[derive(Default)]
pub(super) struct Chain {
    steps: Vec<ExplainStep>,
    verdict: Option<Verdict>,
    /// The verdict if no cause is found.
    weak: Option<Verdict>,
    /// The drivers that were met.
    drivers: BTreeSet<DriverName>,
}

impl Chain {
    /// Adds a link, unless it is there.
    pub(super) fn step(
        &mut self,
        object: impl Display,
        state: impl Into<String>,
        found: impl Into<String>,
    ) {
        let step =
            ExplainStep { object: object.to_string(), state: state.into(), found: found.into() };
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// Notes a cause, if one was found.
    pub(super) fn judge(&mut self, verdict: Option<Verdict>) {
        if self.verdict.is_none() {
            self.verdict = verdict;
        }
    }

    /// Notes a cause that counts only if no other is found later: it says what did not happen.
    pub(super) fn judge_weakly(&mut self, verdict: impl Into<Option<Verdict>>) {
        if self.weak.is_none() {
            self.weak = verdict.into();
        }
    }

    /// Drops such a cause: what it would explain does not wait.
    pub(super) fn drop_weak(&mut self) {
        self.weak = None;
    }

    /// Notes what cannot be seen. It is no cause.
    pub(super) fn not_visible(&mut self, object: impl Display, why: &str) {
        self.step(object, "not visible", why);
    }

    /// Notes a driver that was met.
    pub(super) fn met(&mut self, driver: &DriverName) {
        self.drivers.insert(driver.clone());
    }

    /// The drivers that were met.
    pub(super) fn drivers(&self) -> &BTreeSet<DriverName> {
        &self.drivers
    }

    /// Whether a cause was found.
    pub(super) fn is_judged(&self) -> bool {
        self.verdict.is_some()
    }

    /// Ends the chain. `fine` is the verdict without a cause.
    pub(super) fn end(self, fine: impl FnOnce() -> Verdict) -> Explanation {
        Explanation { steps: self.steps, verdict: self.verdict.or(self.weak).unwrap_or_else(fine) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_counts_and_ends_the_sentence_with_what_to_do() {
        let mut chain = Chain::default();
        chain.step("claim a/b", "Pending", "");
        chain.step("claim a/b", "Pending", "");
        chain.judge(None);
        chain.judge_weakly(Verdict::of(Cause::NoPod, "no pod", ""));
        chain.judge(Some(Verdict::of(Cause::NodeAway, "node n1 is away", "look there")));
        chain.judge(Some(Verdict::of(Cause::NotMounted, "it is not mounted", "wait")));
        let ended = chain.end(|| Verdict::fine("all is well"));
        assert_eq!(ended.steps.len(), 1);
        assert_eq!(ended.verdict.sentence(), "node n1 is away; look there");
        let mut weak = Chain::default();
        weak.judge_weakly(Verdict::of(Cause::NoPod, "no pod", ""));
        assert_eq!(weak.end(|| Verdict::fine("all is well")).verdict.cause, Cause::NoPod);
        let mut dropped = Chain::default();
        dropped.judge_weakly(Verdict::of(Cause::CallFailed, "a call failed", ""));
        dropped.drop_weak();
        assert_eq!(dropped.end(|| Verdict::fine("all is well")).verdict.cause, Cause::Fine);
        let fine = Chain::default().end(|| Verdict::fine("all is well"));
        assert_eq!(fine.verdict.sentence(), "all is well");
    }

    #[test]
    fn a_cause_is_one_word_for_programs() {
        let json = serde_json::to_string(&Cause::VolumeClaimedTwice).unwrap();
        assert_eq!(json, "\"volume-claimed-twice\"");
    }
}
