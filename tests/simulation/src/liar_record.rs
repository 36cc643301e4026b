//! What came to the liar and what it answered. The models and the checks must tell its volumes from
//! those of honest nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// The record. A clone is the same one.
#[derive(Clone, Default)]
pub struct LiarRecord(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// The numbers of the callers' calls that are the liar's own: it may answer them as it likes.
    own: BTreeSet<usize>,
    /// The names of its creates.
    names: BTreeSet<String>,
    /// The names and ids that it answered creates with.
    made: BTreeSet<(String, String)>,
    /// What happened, and how often.
    counted: BTreeMap<&'static str, u64>,
    is_removed: bool,
}

impl LiarRecord {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// A caller's call is the liar's own.
    pub(super) fn add_own(&self, number: usize) {
        self.lock().own.insert(number);
    }

    /// Whether a caller's call is the liar's own.
    pub(super) fn is_own(&self, number: usize) -> bool {
        self.lock().own.contains(&number)
    }

    /// A create of this name came to it, rightly.
    pub(super) fn add_name(&self, name: &str) {
        self.lock().names.insert(name.to_owned());
    }

    /// Whether a create of this name came to it before.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.lock().names.contains(name)
    }

    /// It answers a create of this name with this id.
    pub(super) fn make(&self, name: &str, id: &str) {
        self.lock().made.insert((name.to_owned(), id.to_owned()));
    }

    /// Whether it answered a create of this name with this id.
    pub(super) fn has_made(&self, name: &str, id: &str) -> bool {
        self.lock().made.contains(&(name.to_owned(), id.to_owned()))
    }

    /// The ids that it answered creates with.
    pub(super) fn ids(&self) -> Vec<String> {
        self.lock().made.iter().map(|(_, id)| id.clone()).collect()
    }

    /// Counts something that happened beside a liar.
    pub(super) fn count(&self, what: &'static str, times: u64) {
        *self.lock().counted.entry(what).or_default() += times;
    }

    /// How often each thing happened.
    pub(super) fn counted(&self) -> BTreeMap<&'static str, u64> {
        let inner = self.lock();
        let mut counted = inner.counted.clone();
        counted.insert("call of the liar's own", inner.own.len() as u64);
        counted.insert("thing that the liar said to have made", inner.made.len() as u64);
        counted
    }

    /// An operator removed it.
    pub(super) fn remove(&self) {
        self.lock().is_removed = true;
    }

    /// Whether an operator removed it.
    pub(super) fn is_removed(&self) -> bool {
        self.lock().is_removed
    }
}
