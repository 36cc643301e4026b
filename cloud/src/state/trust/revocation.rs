//! Revocations: the certificates of a name count for nothing, except those of later tokens.
//!
//! They are told apart by serial, not by time: clocks differ, and certificates begin in the past.

use proto::names::certificate::Serial;

use crate::state::field::record;

/// The serials that are kept of one name. Each renewal adds one, and the last ones count.
const ALLOWED: usize = 16;

record! {
    /// The revocation of a name: of a node, or of a socket relay.
    #[derive(Default)]
    #[serde(deny_unknown_fields)]
    pub struct Revocation {
        /// The time at which the name was revoked, in ms since 1970.
        pub since: u64 = 1 (uint64),
        /// The serials that count all the same, the last one issued last.
        pub allowed: Vec<Serial> = 2 (string, repeated),
    }
}

impl Revocation {
    /// A revocation of all certificates that there are.
    pub fn at(since: u64) -> Self {
        Self { since, allowed: Vec::new() }
    }

    /// True if it refuses the certificate of this serial.
    pub fn refuses(&self, serial: &Serial) -> bool {
        !self.allowed.contains(serial)
    }

    /// True if a token of this time may overcome it: one that was made after it.
    pub fn allows_token(&self, created: u64) -> bool {
        created > self.since
    }

    /// True if the name has a certificate again.
    pub fn is_overcome(&self) -> bool {
        !self.allowed.is_empty()
    }

    /// The same, but the certificate of this serial counts.
    #[must_use]
    pub fn allowing(mut self, serial: Serial) -> Self {
        self.allowed.push(serial);
        let excess = self.allowed.len().saturating_sub(ALLOWED);
        self.allowed.drain(..excess);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_issued_later_counts() {
        let serial = |byte: u8| Serial::of(&[1, byte]);
        let revoked = Revocation::at(5);
        assert!(revoked.refuses(&serial(1)) && !revoked.is_overcome());
        assert!(!revoked.allows_token(5) && revoked.allows_token(6));
        let mut allowed = revoked;
        for n in 0..40 {
            allowed = allowed.allowing(serial(n));
            assert!(!allowed.refuses(&serial(n)) && allowed.is_overcome());
        }
        assert_eq!(allowed.allowed.len(), ALLOWED);
        assert!(allowed.refuses(&serial(1)) && allowed.refuses(&Serial::of(&[9])));
    }
}
