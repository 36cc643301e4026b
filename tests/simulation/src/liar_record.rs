//! What came to the liar and what it answered. The models and the checks must tell its volumes from
//! those of honest nodes.

use std::collections::BTreeSet;
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

    /// The number of its own calls, and of what it said to have made.
    pub(super) fn counted(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.own.len() as u64, inner.made.len() as u64)
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
