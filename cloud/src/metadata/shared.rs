//! The index as watches and links share it.

use parking_lot::{Mutex, MutexGuard};
use proto::control::metadata::{Kind, Position};
use proto::names::NodeName;
use tokio::sync::watch;

use crate::metadata::decide::Undecided;
use crate::metadata::handlers::Handlers;
use crate::metadata::index::{Change, Index};
use crate::metadata::transfer::Transfer;
use crate::metadata::view::Wanted;
use crate::state::record::Claim;

/// The metadata of all nodes; empty for ever without `metadata` in the configuration.
pub struct Metadata(Mutex<Index>);

impl Default for Metadata {
    fn default() -> Self {
        // Never zero, which an edge with nothing states. Small enough for any reader of JSON.
        Self(Mutex::new(Index::new(rand::random_range(1..1 << 53))))
    }
}

impl Metadata {
    /// Says that the watches run, and which handlers take direct volumes.
    pub(crate) fn begin(&self, handlers: Handlers) {
        self.index().begin(handlers);
    }

    /// True if there are watches.
    pub(crate) fn is_on(&self) -> bool {
        self.index().handlers().is_some()
    }

    /// Takes a change from a watch.
    pub(crate) fn take(&self, kind: Kind, change: Change) {
        self.index().take(kind, change);
    }

    /// Tells when the metadata of a node changes.
    pub(crate) fn follow(&self, node: &NodeName) -> watch::Receiver<u64> {
        self.index().follow(node.as_str())
    }

    /// The transfer for an edge with this position.
    pub(crate) fn since(
        &self,
        node: &NodeName,
        position: Position,
        wanted: Wanted,
    ) -> Option<Transfer> {
        self.index().since(node.as_str(), position, wanted)
    }

    /// Whether the pods that use a claim take their volume directly. `name` is the volume's.
    ///
    /// # Errors
    /// It is not known, or they do not agree.
    pub(crate) fn decide(&self, claim: Option<&Claim>, name: &str) -> Result<bool, Undecided> {
        self.index().decide(claim, name)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.0.lock()
    }
}
