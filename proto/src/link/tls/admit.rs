//! Verifies clients' certificates: those of the cloud's CA, unless they are refused by name.
//!
//! A node's certificate that has ended is accepted, however long ago that was, because it may renew
//! itself, or an operator may readmit the node. The listener looks at [`Identity::validity`] and
//! allows such a node nothing else.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::host::peer_log::{LogPeer, peer_warn};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DistinguishedName};

use super::provider::{provider, signatures};
use crate::names::certificate::{Identity, Subject};

/// The reason to refuse the owner of a valid certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Its certificate was revoked.
    #[error("this certificate was revoked")]
    Revoked,
    /// The node was removed.
    #[error("the node was removed")]
    Removed,
}

type Decide = dyn Fn(&Identity) -> Result<(), Denied> + Send + Sync;

/// Decides about the owner of a valid certificate, in each handshake.
#[derive(Clone)]
pub struct Admit(Arc<Decide>);

impl Admit {
    /// Decides by this function. It is called in handshakes, so it does not wait for anything.
    pub fn by(decide: impl Fn(&Identity) -> Result<(), Denied> + Send + Sync + 'static) -> Self {
        Self(Arc::new(decide))
    }
}

impl fmt::Debug for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admit(..)")
    }
}

/// The roots that are trusted now.
pub(super) type Roots = Arc<dyn Fn() -> Arc<rustls::RootCertStore> + Send + Sync>;

/// Verifies clients' certificates.
pub(super) struct Clients {
    roots: Roots,
    admit: Option<Admit>,
}

impl Clients {
    pub(super) fn new(roots: Roots, admit: Option<Admit>) -> Self {
        Self { roots, admit }
    }

    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verifier =
            WebPkiClientVerifier::builder_with_provider((self.roots)(), provider().clone());
        let verifier = verifier.build().map_err(|e| rustls::Error::General(e.to_string()))?;
        // The listener refuses a certificate that names nobody, and says why.
        let identity = Identity::of(certificate).ok();
        let at = identity.as_ref().and_then(|identity| renewable(identity, now)).unwrap_or(now);
        let verified = verifier.verify_client_cert(certificate, intermediates, at)?;
        if let (Some(admit), Some(identity)) = (&self.admit, &identity) {
            (admit.0)(identity).map_err(|denied| refusal(identity, denied))?;
        }
        Ok(verified)
    }
}

/// The last moment of a node's certificate that has ended. Its node may ask for another one.
fn renewable(identity: &Identity, now: UnixTime) -> Option<UnixTime> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
    let may = matches!(identity.name, Subject::Node(_)) && identity.validity.ended(now);
    let end = identity.validity.not_after.duration_since(SystemTime::UNIX_EPOCH).ok();
    end.filter(|_| may).map(UnixTime::since_unix_epoch)
}

/// The error with the TLS alert that says why: certificate_revoked or access_denied.
fn refusal(identity: &Identity, denied: Denied) -> rustls::Error {
    let Identity { name, serial, .. } = identity;
    let peer = match name {
        Subject::Node(node) => LogPeer::Node(node),
        Subject::Front(_) => LogPeer::Caller,
    };
    peer_warn!(peer, %name, %serial, error = %denied, "refused a certificate");
    rustls::Error::InvalidCertificate(match denied {
        Denied::Revoked => CertificateError::Revoked,
        Denied::Removed => CertificateError::ApplicationVerificationFailure,
    })
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clients(..)")
    }
}

impl ClientCertVerifier for Clients {
    /// None: they may change, and no client of ours chooses its certificate by them.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(end_entity, intermediates, now)
    }

    signatures!();
}
