//! Who may see the page: whoever has a token, a session that began with one, or a certificate that
//! the configured CA signed. No browser gets anything before this room has let it in.

use ring::digest::{SHA256, digest};

mod attempts;
pub(crate) mod guard;
mod sessions;
mod tokens;

/// The SHA-256 of something that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    /// The hash of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(hash)
    }

    /// Returns the hash.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}
