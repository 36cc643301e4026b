//! The answers of a front about its driver: capabilities and scope.
//!
//! They are computed from the answers of the driver's nodes, and cached until one of them changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use proto::csi::{Capabilities, Local, Method, topology};
use proto::names::NodeName;

use crate::state::capabilities::{Agreed, Mismatch, agree, inferred_scope, lacking};
use crate::state::policy::Scope;
use crate::state::record::{NodeDriver, Profile};

const PLUGIN: Local = Local::Capabilities(Capabilities::Plugin);

/// The front's answers about its driver.
pub struct DriverInfo {
    /// Answers by method; none before any node has reported.
    answers: Option<BTreeMap<String, Bytes>>,
    inferred: Scope,
    mismatches: Vec<Mismatch>,
    /// Capabilities that all nodes have, and that the profile lacks.
    more: Vec<String>,
    is_reported: AtomicBool,
}

/// No node has reported the driver's answers yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

impl DriverInfo {
    /// From the profile; without one, computed from the nodes that have reported the driver's
    /// answers.
    pub fn of<'a>(
        profile: Option<&Profile>,
        nodes: impl IntoIterator<Item = (&'a NodeName, &'a NodeDriver)>,
    ) -> Self {
        let nodes: Vec<_> = nodes.into_iter().filter(|(_, at)| at.has_spoken()).collect();
        let spoken = || nodes.iter().copied();
        let mut answers: Option<BTreeMap<_, _>> =
            spoken().next().map(|(_, at)| (*at.answers).clone());
        let mut mismatches = Vec::new();
        for capabilities in Capabilities::ALL {
            let Some(answers) = &mut answers else { continue };
            let local = Local::Capabilities(capabilities);
            let reported = spoken().map(|(node, at)| (node, at.answer(local)));
            let Agreed { answer, mismatches: here } = agree(capabilities, reported);
            mismatches.extend(here);
            let method = Method::answering(local).name();
            match answer {
                Some(answer) => answers.insert(method.into(), answer),
                None => answers.remove(method),
            };
        }
        let infos = spoken().map(|(_, at)| at.answer(Local::NodeInfo));
        let Some(profile) = profile else {
            let inferred = inferred_scope(spoken().filter_map(|(_, at)| at.answer(PLUGIN)), infos);
            let is_reported = AtomicBool::new(false);
            return Self { answers, inferred, mismatches, more: Vec::new(), is_reported };
        };
        let more = answers.as_ref().map(|answers| more(profile, answers)).unwrap_or_default();
        Self {
            answers: Some((*profile.answers).clone()),
            inferred: inferred_scope(profile.answer(PLUGIN), infos),
            mismatches,
            more,
            // The nodes that lack something are set apart, which is logged for each.
            is_reported: AtomicBool::new(true),
        }
    }

    /// The unframed answer to a method; none if the driver does not implement it. `ours` is true if
    /// nodes use our topology.
    ///
    /// # Errors
    /// No node has reported yet.
    pub fn answer(&self, local: Local, ours: bool) -> Result<Option<Bytes>, Unknown> {
        let answer = self
            .answers
            .as_ref()
            .map(|answers| answers.get(Method::answering(local).name()).cloned())
            .ok_or(Unknown)?;
        // With our topology, volumes are not accessible from every node. An undecodable answer is
        // kept.
        let shown = |answer| topology::into_plugin_capabilities(&answer).unwrap_or(answer);
        Ok(if ours && local == PLUGIN { answer.map(shown) } else { answer })
    }

    /// The scope inferred from the driver; `node` before any node has reported.
    pub fn scope(&self) -> Scope {
        if self.answers.is_none() { Scope::Node } else { self.inferred }
    }

    /// Capabilities that all nodes have, and that the front does not report.
    pub fn more(&self) -> &[String] {
        &self.more
    }

    /// Capabilities that only some nodes have.
    pub fn mismatches(&self) -> &[Mismatch] {
        &self.mismatches
    }

    /// The same, for the first caller only.
    pub fn unreported(&self) -> &[Mismatch] {
        if self.mismatches.is_empty() || self.is_reported.swap(true, Ordering::Relaxed) {
            &[]
        } else {
            &self.mismatches
        }
    }
}

/// The capabilities that these answers have and the profile lacks.
fn more(profile: &Profile, answers: &BTreeMap<String, Bytes>) -> Vec<String> {
    let of = |kind| {
        let local = Local::Capabilities(kind);
        lacking(kind, answers.get(Method::answering(local).name()), profile.answer(local))
    };
    Capabilities::ALL.into_iter().flat_map(of).collect()
}
