//! The cloud's CA, known by its hash: how an edge trusts a cloud before it has any certificate.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ring::digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, OtherError, RootCertStore};

use super::provider::{provider, signatures};

/// The SHA-256 of a CA's certificate (of its DER), written `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

/// The reason why a text is not a [`Pin`].
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no hash of a CA; it is sha256: and 64 hexadecimal digits, as `csi-cloud token \
     create` prints it"
)]
pub struct PinError(String);

impl Pin {
    /// The hash of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = digest::digest(&digest::SHA256, certificate);
        let mut hash = [0; 32];
        hash.copy_from_slice(digest.as_ref());
        Self(hash)
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || PinError(text.to_owned());
        let hex = text.strip_prefix("sha256:").ok_or_else(wrong)?;
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            let digits = hex.get(at..at + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The cloud showed no certificate with the hash.
#[derive(Debug, thiserror::Error)]
#[error(
    "no certificate that the other side shows has the hash {0}: is this the right address, and is \
     the hash the one that its csi-cloud printed? Nothing was sent to it"
)]
pub(super) struct NotPinned(Pin);

/// Verifies a cloud's certificate by the CA with this hash, and no other.
#[derive(Debug)]
pub(super) struct Pinned(pub(super) Pin);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let missing = || {
            let error = OtherError(Arc::new(NotPinned(self.0)));
            rustls::Error::InvalidCertificate(CertificateError::Other(error))
        };
        let ca = intermediates.iter().find(|shown| Pin::of(shown) == self.0).ok_or_else(missing)?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(roots.into(), provider().clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pin_is_read_back_and_anything_else_refused() {
        let pin = Pin::of(&CertificateDer::from_slice(b"x"));
        let text = "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
        assert_eq!(pin.to_string(), text);
        assert_eq!(text.parse::<Pin>().unwrap(), pin);
        assert_eq!(text.to_uppercase().replace("SHA256", "sha256").parse::<Pin>().unwrap(), pin);
        let long = format!("{text}0");
        for bad in ["", "sha256:", &text[7..], &text[..70], &long, "sha256:é"] {
            let error = bad.parse::<Pin>().unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_pin_or_an_error(text in "(sha256:)?.{0,70}") {
            let _ = text.parse::<Pin>();
        }
    }
}
