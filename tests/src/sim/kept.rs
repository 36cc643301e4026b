//! The disk of a csi-cloud: what it holds outlives the process, and a killed process writes nothing any more.

use cloud::store::{Backend, Change, Memory, StoreError};

use super::fleet::Process;

/// What one csi-cloud sees of the disk.
pub(super) struct Kept {
    /// The disk.
    pub(super) memory: Memory,
    /// Whose it is.
    pub(super) process: Process,
}

impl Backend for Kept {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        self.memory.load(each)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if self.process.end.is_cancelled() {
            return Err(StoreError::Closed);
        }
        self.memory.commit(changes)
    }
}
