//! A store that lasts as long as the process, for tests and for those who ask for it by name.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Backend, Change, StoreError};

/// Keeps changes in memory. Clones are the same store, so that a csi-cloud that is started again in the same
/// process finds what it left.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Vec<Change>>>);

impl Backend for Memory {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        kept.into_iter().for_each(each);
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(changes);
        Ok(())
    }
}
