//! A store that lasts as long as the process, for tests and for those who ask for it by name. It keeps the same
//! bytes as every other, so that what a test finds out in memory is true on disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::state::record::Change;
use crate::state::store::backend::{Backend, StoreError};
use crate::state::store::codec;
use crate::state::store::codec::Decoder;
use crate::state::store::table::Table;

/// Keeps changes in memory. Clones are the same store, so that a csi-cloud that is started again in the same
/// process finds what it left.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    kept: Arc<Mutex<Kept>>,
    /// This clone's, not the store's: a csi-cloud crashes, and the next one finds what it left.
    crash: Option<Crash>,
}

type Kept = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// When a csi-cloud loses its store, as if it were killed; commits are counted down from here, zero is the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Before this commit is durable.
    Before(u64),
    /// After it is durable, and before anybody knows.
    After(u64),
}

impl Memory {
    /// The same store, which is lost at a commit: that one and all after it fail.
    #[must_use]
    pub fn crashing(&self, at: Crash) -> Self {
        Self { kept: self.kept.clone(), crash: Some(at) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
            // Its own commit is made; those after it are not.
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
