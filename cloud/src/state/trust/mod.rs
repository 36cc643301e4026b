//! What csi-cloud keeps to know whom it trusts: its own secret keys.
//!
//! The records are here, and [`Trust`] is all of them in memory. None belongs to a driver.

mod secrets;

pub use secrets::{NoRandomness, SecretKey, Secrets};

/// A change of a trust record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustChange {
    /// The secret keys. They are made once, and never removed.
    Secrets(Secrets),
}

/// All trust records.
#[derive(Debug, Default)]
pub struct Trust {
    secrets: Option<Secrets>,
}

impl Trust {
    /// The secret keys; none before a csi-cloud was started with this store.
    pub fn secrets(&self) -> Option<&Secrets> {
        self.secrets.as_ref()
    }

    /// Applies a durable change.
    pub(super) fn apply(&mut self, change: TrustChange) {
        match change {
            TrustChange::Secrets(secrets) => self.secrets = Some(secrets),
        }
    }
}
