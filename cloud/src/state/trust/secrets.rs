//! The secret keys of csi-cloud, which outlive restarts.
//!
//! They cannot be printed, and an export leaves them out unless it is asked for them: whoever has
//! them can end links and forge leases.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::Bytes;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::state::field::{Field, Names, RecordError, record, sized};
use crate::state::json;

/// A secret key of 32 bytes. Its `Debug` does not show it. It is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretKey(#[serde(with = "json")] [u8; 32]);

record! {
    /// The secret keys of csi-cloud, which it makes when it first starts with a store.
    #[serde(deny_unknown_fields)]
    pub struct Secrets {
        /// For QUIC's stateless resets and address tokens.
        pub resets: SecretKey = 1 (bytes = "bytes"),
        /// For the MACs of leases of direct volumes.
        pub leases: SecretKey = 2 (bytes = "bytes"),
        /// The time at which they were made for an empty store, in s since 1970; 0 if the store
        /// had records already, or an older csi-cloud made them. An export leaves it out, because
        /// what is made from an export is not empty.
        #[serde(skip)]
        pub begun: u64 = 3 (uint64),
    }
}

/// The system has no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers for a secret key; is /dev/urandom there?")]
pub struct NoRandomness;

impl Secrets {
    /// New secret keys of a store that began long ago.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, NoRandomness> {
        Ok(Self { resets: SecretKey::generate()?, leases: SecretKey::generate()?, begun: 0 })
    }
}

impl SecretKey {
    /// A new key.
    fn generate() -> Result<Self, NoRandomness> {
        let mut key = Self([0; 32]);
        SystemRandom::new().fill(&mut key.0).map_err(|_| NoRandomness)?;
        Ok(key)
    }

    /// The key of these bytes.
    pub const fn of(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The MAC of these bytes, HMAC-SHA256 as base64. Each purpose needs bytes that begin with a
    /// text of its own.
    pub fn mac(&self, bytes: &[u8]) -> String {
        BASE64_STANDARD_NO_PAD.encode(hmac::sign(&self.hmac(), bytes))
    }

    /// True if this MAC was made with this key for exactly these bytes.
    pub fn has_signed(&self, bytes: &[u8], mac: &str) -> bool {
        let mac = BASE64_STANDARD_NO_PAD.decode(mac);
        mac.is_ok_and(|mac| hmac::verify(&self.hmac(), bytes, &mac).is_ok())
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// The secret bytes. Never log them.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Field for SecretKey {
    type Stored = Bytes;

    fn store(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    fn load(stored: Bytes, _: &mut Names) -> Result<Self, RecordError> {
        sized("secret key", &stored).map(Self)
    }
}

impl Zeroize for SecretKey {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for SecretKey {}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_not_printed() {
        let one = Secrets::generate().unwrap();
        let other = Secrets::generate().unwrap();
        assert_ne!(one.resets, other.resets);
        assert_ne!(one.resets, one.leases);
        assert_eq!(format!("{one:?}"), "Secrets { resets: ***, leases: ***, begun: 0 }");
    }

    #[test]
    fn a_key_is_overwritten() {
        fn is_on_drop<T: ZeroizeOnDrop>(_: &T) {}
        let mut key = SecretKey::of([7; 32]);
        is_on_drop(&key);
        key.zeroize();
        assert_eq!(key.expose(), &[0; 32]);
    }
}
