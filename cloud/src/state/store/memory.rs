//! A store that lasts as long as the process, for tests and trials.
//!
//! It stores the same bytes as every other backend, so that a test in memory is valid for a disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::state::record::Change;
use crate::state::store::backend::{Backend, StoreError};
use crate::state::store::codec;
use crate::state::store::codec::Decoder;
use crate::state::store::table::Table;

/// Keeps changes in memory. Clones share the store, so that a restarted csi-cloud in the same
/// process finds its records.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    kept: Arc<Mutex<Rows>>,
    /// Belongs to this clone: one csi-cloud crashes, and the next one opens the same store.
    crash: Option<Crash>,
}

type Rows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// The commit at which a csi-cloud crashes; zero is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Before this commit is durable.
    Before(u64),
    /// After this commit is durable, and before anybody is told.
    After(u64),
}

impl Memory {
    /// The same store, but this clone fails at the given commit and at all later ones.
    #[must_use]
    pub fn crashing(&self, at: Crash) -> Self {
        Self { kept: self.kept.clone(), crash: Some(at) }
    }

    /// A backup: a copy of the records, which later commits do not change.
    #[must_use]
    pub fn copied(&self) -> Self {
        Self { kept: Arc::new(Mutex::new(self.kept().clone())), crash: None }
    }

    fn kept(&self) -> MutexGuard<'_, Rows> {
        self.kept.lock()
    }
}

impl Backend for Memory {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        let mut decoder = Decoder::default();
        for ((table, key), value) in &*self.kept() {
            each(decoder.decode(*table, key, value)?);
        }
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let crash = self.crash;
        match &mut self.crash {
            Some(Crash::Before(0)) => return Err(StoreError::Closed),
            // This commit is durable; later ones fail.
            Some(after @ Crash::After(0)) => *after = Crash::Before(0),
            Some(Crash::Before(left) | Crash::After(left)) => *left -= 1,
            None => {}
        }
        let mut kept = self.kept();
        for row in changes.iter().map(codec::encode) {
            let at = (row.table, row.key);
            match row.value {
                Some(value) => kept.insert(at, value),
                None => kept.remove(&at),
            };
        }
        if crash == Some(Crash::After(0)) { Err(StoreError::Closed) } else { Ok(()) }
    }

    fn waits(&self) -> bool {
        false
    }
}
