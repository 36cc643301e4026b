//! The interface of a store's backend, and its errors.

use std::sync::Arc;

use crate::state::record::Change;

/// Keeps changes over a restart.
pub trait Backend: Send {
    /// Reads all records, each key once, in any order.
    ///
    /// # Errors
    /// The records cannot be read, or not be trusted.
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError>;

    /// Makes all these changes durable, or none of them. The last change of a key counts. A store
    /// in etcd is the exception: see `replicated::commit`.
    ///
    /// # Errors
    /// The changes are not durable. After a restart none exists, unless the error says that this is
    /// unknown.
    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// Tries whether a store that is opened again could make changes durable, and blocks on the
    /// disk. This backend takes no more commits either way, since what is durable of the last one
    /// is not known.
    ///
    /// # Errors
    /// It could not. `None` if only a person can tell.
    fn try_again(&mut self) -> Option<std::io::Result<()>> {
        None
    }

    /// True if a commit may block on a disk; it then runs in a blocking thread.
    fn waits(&self) -> bool {
        true
    }
}

/// The reason why the store cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be opened or read.
    #[error("the store {store} cannot be opened")]
    Open {
        /// Its URL, without a password.
        store: String,
        /// The cause, and the remedy.
        #[source]
        why: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A record cannot be decoded.
    #[error(
        "a record of the store cannot be read, in {table} under the key {key:?}; \
         restore the store from a copy or an export, or start the csi-cloud that wrote it"
    )]
    Record {
        /// Its table.
        table: &'static str,
        /// Its key, with unprintable bytes escaped.
        key: String,
        /// The cause.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A commit failed.
    #[error("a change could not be made durable in the store; is its disk full or gone?")]
    Commit(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The store refused a commit, and nothing was changed. It takes the next one.
    #[error("the store refused a change, so nothing was changed")]
    Refused(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// Another csi-cloud has to make the change.
    #[error("this csi-cloud follows {leader:?} and changes nothing itself; nothing was changed")]
    Follows {
        /// The one that leads.
        leader: Arc<str>,
    },
    /// No csi-cloud makes changes now.
    #[error("no csi-cloud leads at this moment, so nothing was changed; try again")]
    NoLeader,
    /// This csi-cloud led when the change came.
    #[error(
        "this csi-cloud led, and another one may lead by now; that one knows whether the change \
         was made"
    )]
    Deposed,
    /// A csi-cloud, or another command, has the store.
    #[error("another csi-cloud has the store, or changed it meanwhile; stop all of them first")]
    Busy,
    /// The store takes no more changes.
    #[error("the store is closed; csi-cloud is stopping, or a commit failed before")]
    Closed,
}

impl StoreError {
    /// True if the next commit may be made.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}
