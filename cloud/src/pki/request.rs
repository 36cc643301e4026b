//! A certificate signing request, of which only the public key and its signature count.
//!
//! The signature proves that the sender has the private key. Subject, names and extensions in the
//! request are not looked at.

use rcgen::{PublicKeyData, SubjectPublicKeyInfo};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::state::trust::Hash;

/// A public key with proof that its owner has the private key.
pub struct ProvenKey(SubjectPublicKeyInfo);

/// The reason why a request gives no key. No text has a part of the request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is no request.
    #[error("the certificate request cannot be read; is csi-edge of this version?")]
    Unreadable,
    /// Its signature is wrong: it was changed, or its sender has not the key.
    #[error("the certificate request is not signed by the key in it; make a new one")]
    NotProven,
    /// Its key is of a kind that is not issued for.
    #[error("the certificate request has a key that is not supported; make one with csi-edge")]
    Unsupported,
}

impl ProvenKey {
    /// Reads a request (PKCS #10, DER).
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn of(der: &[u8]) -> Result<Self, RequestError> {
        let read = X509CertificationRequest::from_der(der);
        let (rest, request) = read.map_err(|_| RequestError::Unreadable)?;
        if !rest.is_empty() {
            return Err(RequestError::Unreadable);
        }
        request.verify_signature().map_err(|_| RequestError::NotProven)?;
        let key = request.certification_request_info.subject_pki.raw;
        SubjectPublicKeyInfo::from_der(key).map(Self).map_err(|_| RequestError::Unsupported)
    }

    /// The SHA-256 of the key (SubjectPublicKeyInfo, DER).
    pub fn hash(&self) -> Hash {
        Hash::of(&self.0.subject_public_key_info())
    }

    /// The key.
    pub(super) fn key(&self) -> &SubjectPublicKeyInfo {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType};

    fn request(key: &KeyPair) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI("edge-csi://node/victim".try_into().unwrap())];
        params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0])];
        params.serialize_request(key).unwrap().der().to_vec()
    }

    #[test]
    fn a_key_is_read_whatever_else_is_asked_for() {
        let key = KeyPair::generate().unwrap();
        let other = KeyPair::generate().unwrap();
        let proven = ProvenKey::of(&request(&key)).unwrap();
        assert_eq!(proven.hash(), Hash::of(&key.subject_public_key_info()));
        assert_ne!(proven.hash(), ProvenKey::of(&request(&other)).unwrap().hash());
    }

    #[test]
    fn without_a_proof_there_is_no_key() {
        let mut der = request(&KeyPair::generate().unwrap());
        let last = der.len() - 1;
        der[last] ^= 1;
        assert_eq!(ProvenKey::of(&der).err(), Some(RequestError::NotProven));
        assert_eq!(ProvenKey::of(b"").err(), Some(RequestError::Unreadable));
        der[last] ^= 1;
        der.push(0);
        assert_eq!(ProvenKey::of(&der).err(), Some(RequestError::Unreadable));
    }

    proptest! {
        #[test]
        fn a_damaged_request_is_no_key_of_another(at in 0_usize..400, byte: u8) {
            let key = KeyPair::generate().unwrap();
            let mut der = request(&key);
            if let Some(place) = der.get_mut(at) {
                *place = byte;
            }
            if let Ok(proven) = ProvenKey::of(&der) {
                prop_assert_eq!(proven.hash(), Hash::of(&key.subject_public_key_info()));
            }
        }

        #[test]
        fn any_bytes_are_a_key_or_an_error(der in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(ProvenKey::of(&der).is_err());
        }
    }
}
