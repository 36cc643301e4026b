//! The state that the sidecars of a run share.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::api::Api;
use super::client::Unusual;
use crate::fleet::Fleet;
use crate::keys::LIAR_AT;
use crate::liar_record::LiarRecord;
use crate::record::Record;
use crate::trace::Trace;

/// Where claims want their volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// At the node that the scheduler selected, and nowhere else: external-provisioner's
    /// `--strict-topology`.
    Strict,
    /// There, or else at any other node.
    Preferred,
    /// Anywhere: they are bound before a pod is scheduled.
    Anywhere,
}

/// Violations that were found during the run. A clone is the same.
#[derive(Clone, Default)]
pub struct Found(Arc<Mutex<(u64, Vec<String>)>>);

impl Found {
    /// Adds what was found by looking once more.
    pub fn add(&self, wrong: impl IntoIterator<Item = String>) {
        let mut found = self.0.lock();
        found.0 += 1;
        found.1.extend(wrong);
    }

    /// How often was looked, and all that was found.
    pub fn all(&self) -> (u64, Vec<String>) {
        self.0.lock().clone()
    }
}

/// The state that the sidecars of a run share.
#[derive(Clone)]
pub struct World {
    /// The programs that they call.
    pub fleet: Arc<Fleet>,
    /// The API server.
    pub api: Api,
    /// Their calls.
    pub record: Record,
    /// The events.
    pub trace: Trace,
    /// Whether deadlines are unusual now.
    pub unusual: Arc<Unusual>,
    /// The sidecars' `--timeout`.
    pub timeout: Duration,
    /// The sidecars' `--retry-interval-max`.
    pub most: Duration,
    /// The topology in claims.
    pub topology: Topology,
    /// Violations that watchers found.
    pub found: Found,
    /// What came to the liar.
    pub liar: LiarRecord,
    /// The seed of the run.
    pub seed: u64,
}

impl World {
    /// The nodes where volumes may be made.
    pub(crate) fn places(&self) -> Vec<usize> {
        let is_liar_there = self.fleet.shape().is_liar_a_place() && !self.liar.is_removed();
        let liar = is_liar_there.then_some(LIAR_AT);
        (0..self.fleet.drivers.len()).chain(liar).collect()
    }
}
