//! What a store's backend does, and how it fails.

use std::sync::Arc;

use crate::state::record::Change;

/// What keeps changes over a restart.
pub trait Backend: Send {
    /// Gives everything that is kept, in any order, each key once.
    ///
    /// # Errors
    /// What is kept cannot be read, or not be trusted.
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError>;

    /// Makes all these changes durable, or none of them. A later change of a key overrides an earlier one.
    ///
    /// # Errors
    /// They are not durable, and none will be there after a restart unless the error says that it is not known.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Whether a commit may wait for a disk; it is then made in a thread that may.
    fn waits(&self) -> bool {
        true
    }
}

/// Why the store cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened or read.
    #[error("the store {store} cannot be opened")]
    Open {
        /// Its URL, without a password.
        store: String,
        /// What is wrong and what to do.
        #[source]
        why: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A record cannot be understood.
    #[error(
        "a record of the store cannot be read, in {table} under the key {key:?}; restore the store from a copy or an \
         export, or start the csi-cloud that wrote it"
    )]
    Record {
        /// Its table.
        table: &'static str,
        /// Its key, with what is not printable escaped.
        key: String,
        /// What is wrong.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A commit failed.
    #[error("a change could not be made durable in the store; is its disk full or gone?")]
    Commit(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The store takes no more changes.
    #[error("the store is closed; csi-cloud is stopping, or a commit failed before")]
    Closed,
}
