//! What a front says of its driver, made of what the driver says at its nodes, and kept until one of them says
//! something else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use proto::csi::{Capabilities, Local, Method, topology};
use proto::names::NodeName;

use crate::state::capabilities::{Agreed, Mismatch, agree, scope};
use crate::state::policy::Scope;
use crate::state::record::NodeDriver;

const PLUGIN: Local = Local::Capabilities(Capabilities::Plugin);

/// What a front says of itself.
pub struct DriverInfo {
    /// By method; none before any node has said anything.
    answers: Option<BTreeMap<String, Bytes>>,
    inferred: Scope,
    mismatches: Vec<Mismatch>,
    told: AtomicBool,
}

/// Nothing has been learned of the driver yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

impl DriverInfo {
    /// Made of what the driver says at its nodes; those that have not said anything yet do not count.
    pub fn of(nodes: &BTreeMap<NodeName, NodeDriver>) -> Self {
        let spoken = || nodes.iter().filter(|(_, at)| at.has_spoken());
        let mut answers: Option<BTreeMap<_, _>> =
            spoken().next().map(|(_, at)| (*at.answers).clone());
        let mut mismatches = Vec::new();
        for capabilities in Capabilities::ALL {
            let Some(answers) = &mut answers else { continue };
            let local = Local::Capabilities(capabilities);
            let said = spoken().map(|(node, at)| (node, at.answer(local)));
            let Agreed { answer, mismatches: here } = agree(capabilities, said);
            mismatches.extend(here);
            let method = Method::answering(local).name();
            match answer {
                Some(answer) => answers.insert(method.into(), answer),
                None => answers.remove(method),
            };
        }
        Self {
            answers,
            inferred: scope(None, spoken().filter_map(|(_, at)| at.answer(PLUGIN))),
            mismatches,
            told: AtomicBool::new(false),
        }
    }

    /// The (unframed) answer to a method; none if the driver does not implement it. `ours` is whether nodes have our
    /// topology.
    ///
    /// # Errors
    /// No node has said anything yet.
    pub fn answer(&self, local: Local, ours: bool) -> Result<Option<Bytes>, Unknown> {
        let answer = self
            .answers
            .as_ref()
            .map(|answers| answers.get(Method::answering(local).name()).cloned())
            .ok_or(Unknown)?;
        // With our topology, volumes are not accessible from everywhere. An answer that is no protobuf stays.
        let shown = |answer| topology::into_plugin_capabilities(&answer).unwrap_or(answer);
        Ok(if ours && local == PLUGIN { answer.map(shown) } else { answer })
    }

    /// How far volumes reach, by the driver's own word; at one node only, before it has said anything.
    pub fn scope(&self) -> Scope {
        if self.answers.is_none() { Scope::Node } else { self.inferred }
    }

    /// What some nodes can and others cannot.
    pub fn mismatches(&self) -> &[Mismatch] {
        &self.mismatches
    }

    /// The same, the first time that it is asked for.
    pub fn unreported(&self) -> &[Mismatch] {
        if self.mismatches.is_empty() || self.told.swap(true, Ordering::Relaxed) {
            &[]
        } else {
            &self.mismatches
        }
    }
}
