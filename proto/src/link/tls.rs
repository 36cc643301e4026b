//! TLS 1.3 of links, with certificates of one CA on both sides.
//!
//! Files are checked at start-up, so a wrong one is reported before a handshake fails far away. The
//! cloud's certificate is for servers and a node's for clients, so neither can play the other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ring::hmac;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{AlertDescription, ClientConfig, RootCertStore, ServerConfig};
use serde::Deserialize;
use webpki::{EndEntityCert, KeyUsage};

use crate::host::chain::chain;
use crate::host::plain;
use crate::host::private::{self, PrivateError};
use crate::link::error::LinkError;
use crate::names::{IdentityError, NodeName, front_of, node_of};

/// The files of certificates and key, all PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Files {
    /// The CA that both sides trust.
    pub ca: PathBuf,
    /// Our certificate, and intermediate ones after it.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Files {
    /// The files of this name, `cloud` or a node's, in a directory of `csi-cloud ca`.
    pub fn of(dir: &Path, name: &str) -> Self {
        let at = |end: &str| dir.join(format!("{name}.{end}"));
        Self { ca: dir.join("ca.crt"), cert: at("crt"), key: at("key") }
    }
}

/// The end of a link that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// csi-cloud: extended key usage serverAuth.
    Cloud,
    /// csi-edge: extended key usage clientAuth, and a node's name.
    Node,
    /// `csi-cloud front`: extended key usage clientAuth, and a front's name.
    Front,
}

/// The checked certificates and key of one end.
pub struct Credentials {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read, or does not contain what it should.
    #[error("no {what} can be read from {}: {why}", path.display())]
    Unreadable {
        /// What it should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        why: rustls::pki_types::pem::Error,
    },
    /// It is not valid now, or not for this use.
    #[error("the certificate in {} {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The problem, and what to do.
        why: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} does not belong to the certificate in {}: {why}",
        key.display(),
        cert.display()
    )]
    Key {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
        /// The error of rustls.
        why: rustls::Error,
    },
    /// Others can read or change the key.
    #[error(transparent)]
    Open(#[from] PrivateError),
    /// A node's certificate that names no node, or a front's that names no front.
    #[error("the certificate in {} is not made for this program", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// The problem of its names.
        #[source]
        source: IdentityError,
    },
}

impl Credentials {
    /// Reads the files and checks that they are valid for this role, now.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: &Files, role: Role) -> Result<Self, TlsError> {
        let unreadable = |what, path: &Path| {
            let path = path.to_owned();
            move |why| TlsError::Unreadable { what, path, why }
        };
        let roots = roots(&files.ca)?;
        let chain = certificates(&files.cert)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(unreadable("private key", &files.key))?;
        private::check(&files.key)?;
        let credentials = Self { roots: Arc::new(roots), chain, key };
        credentials.check_certificate(&files.cert, &files.ca, role)?;
        credentials.check_key(files)?;
        Ok(credentials)
    }

    /// Credentials made in this process, unchecked.
    ///
    /// # Errors
    /// The CA's certificate cannot be read.
    pub fn made(
        ca: CertificateDer<'static>,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(ca)?;
        Ok(Self { roots: Arc::new(roots), chain: vec![certificate], key })
    }

    /// A key for HMAC, derived from the private key and the purpose; it reveals nothing of either.
    pub fn derived_key(&self, purpose: &[u8]) -> hmac::Key {
        let private = hmac::Key::new(hmac::HMAC_SHA256, self.key.secret_der());
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&private, purpose).as_ref())
    }

    /// The node in our own certificate.
    ///
    /// # Errors
    /// There is none; [`Credentials::load`] rules that out for [`Role::Node`].
    pub fn node(&self) -> Result<NodeName, IdentityError> {
        self.chain.first().map_or(Err(IdentityError::Names(0)), node_of)
    }

    fn check_certificate(&self, path: &Path, ca: &Path, role: Role) -> Result<(), TlsError> {
        let wrong = |why: String| TlsError::Certificate { path: path.to_owned(), why };
        let (first, rest) = self.chain.split_first().ok_or_else(|| wrong("is missing".into()))?;
        let certificate =
            EndEntityCert::try_from(first).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        let usage = match role {
            Role::Cloud => KeyUsage::server_auth(),
            Role::Node | Role::Front => KeyUsage::client_auth(),
        };
        let algorithms = provider().signature_verification_algorithms;
        certificate
            .verify_for_usage(
                algorithms.all,
                &self.roots.roots,
                rest,
                UnixTime::now(),
                usage,
                None,
                None,
            )
            .map_err(|error| wrong(explain_own(&error, ca, role)))?;
        let named = match role {
            Role::Cloud => Ok(()),
            Role::Node => self.node().map(drop),
            Role::Front => front_of(first).map(drop),
        };
        named.map_err(|source| TlsError::Identity { path: path.to_owned(), source })
    }

    fn check_key(&self, files: &Files) -> Result<(), TlsError> {
        let certified = rustls::sign::CertifiedKey::from_der(
            self.chain.clone(),
            self.key.clone_key(),
            provider(),
        );
        let wrong = |why| TlsError::Key { key: files.key.clone(), cert: files.cert.clone(), why };
        certified.map_err(wrong).map(drop)
    }
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let unusable = |e: rustls::Error| {
            format!("cannot be a CA's: {e}; name the ca.crt of `csi-cloud ca init`")
        };
        let added = roots.add(certificate).map_err(unusable);
        added.map_err(|why| TlsError::Certificate { path: path.to_owned(), why })?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |why| TlsError::Unreadable { what: "certificate", path: path.to_owned(), why };
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect();
    let certificates = certificates.map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(unreadable(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

/// The problem of our own certificate, and what to do.
fn explain_own(error: &webpki::Error, ca: &Path, role: Role) -> String {
    let issue = match role {
        Role::Cloud => "`csi-cloud ca init`",
        Role::Node => "`csi-cloud ca issue NODE`",
        Role::Front => "`csi-cloud ca issue --front NAME`",
    };
    match error {
        webpki::Error::CertExpired { time, not_after } => {
            let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
            format!("expired {days} days ago; make a new one with {issue}")
        }
        webpki::Error::CertNotValidYet { .. } => {
            "is not valid yet; is this machine's clock right?".into()
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            format!(
                "was not issued by the CA in {}; name that CA's file, or make a new one with \
                 {issue}",
                ca.display()
            )
        }
        webpki::Error::RequiredEkuNotFoundContext(_) => {
            format!("is not made for this end of the link ({role:?}); make one with {issue}")
        }
        webpki::Error::CaUsedAsEndEntity => format!("is a CA's own; make one with {issue}"),
        error => format!("cannot be used: {error}; make a new one with {issue}"),
    }
}

fn provider() -> &'static CryptoProvider {
    static PROVIDER: std::sync::LazyLock<CryptoProvider> =
        std::sync::LazyLock::new(rustls::crypto::ring::default_provider);
    &PROVIDER
}

/// The cloud's side of a handshake; it refuses clients without a certificate of our CA.
///
/// # Errors
/// The CA cannot verify clients; [`Credentials::load`] rules that out.
pub fn server_config(
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<Arc<ServerConfig>, LinkError> {
    let wrong = |error: &dyn std::fmt::Display| LinkError::Tls(error.to_string());
    let provider = Arc::new(provider().clone());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(credentials.roots.clone(), provider.clone());
    let verifier = verifier.build().map_err(|e| wrong(&e))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| wrong(&e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(credentials.chain.clone(), credentials.key.clone_key())
        .map_err(|e| wrong(&e))?;
    // A resumed session would outlive its certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Arc::new(config))
}

/// The edge's side of a handshake.
///
/// # Errors
/// As for [`server_config`].
pub fn client_config(
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<Arc<ClientConfig>, LinkError> {
    let wrong = |error: &dyn std::fmt::Display| LinkError::Tls(error.to_string());
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider().clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| wrong(&e))?
        .with_root_certificates(credentials.roots.clone())
        .with_client_auth_cert(credentials.chain.clone(), credentials.key.clone_key())
        .map_err(|e| wrong(&e))?;
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Arc::new(config))
}

/// When the certificate of a peer ends; none if that cannot be read.
pub fn expires(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Whether an error of a TLS stream comes from TLS.
pub fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// An error of a TLS stream in words.
pub fn explain_io(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::AlertReceived(alert)) => theirs(*alert, ""),
        Some(rustls::Error::InvalidCertificate(why)) => {
            ours(why.clone().into(), &rustls::Error::InvalidCertificate(why.clone()).to_string())
        }
        Some(other) => format!("TLS failed: {other}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection during the handshake".into()
        }
        None => chain(error),
    }
}

/// A failure of QUIC on this side, in words.
pub fn explain_quic(code: quinn::TransportErrorCode, reason: &str) -> String {
    match alert(code) {
        Some(alert) => ours(alert, reason),
        None => format!("QUIC failed: {code}: {}", plain(reason)),
    }
}

/// A failure of QUIC that the other side reported, in words.
pub fn explain_close(close: &quinn::ConnectionClose) -> String {
    match alert(close.error_code) {
        Some(alert) => theirs(alert, &plain(&String::from_utf8_lossy(&close.reason))),
        None => plain(&close.to_string()),
    }
}

/// QUIC: the codes 0x100 to 0x1ff carry a TLS alert in their low byte (RFC 9001, 4.8).
fn alert(code: quinn::TransportErrorCode) -> Option<AlertDescription> {
    let code = u64::from(code).checked_sub(0x100)?;
    u8::try_from(code).ok().map(AlertDescription::from)
}

/// A problem of the other side's certificate, in words.
fn ours(alert: AlertDescription, detail: &str) -> String {
    let advice = match alert {
        AlertDescription::CertificateExpired => {
            "it has expired: make a new one there, and check both clocks"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of another CA than ours: is this the right address, and is our --ca the other \
             side's?"
        }
        _ => {
            "make one with `csi-cloud ca`, for the host name that is dialed (--host) and for that \
             end of the link"
        }
    };
    format!("the other side's certificate is refused ({detail}); {advice}")
}

/// A problem of our certificate that the other side reported, in words.
fn theirs(alert: AlertDescription, detail: &str) -> String {
    let why = match alert {
        AlertDescription::CertificateExpired => {
            "it says that ours has expired: make a new one, and check both clocks"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it says that ours is of another CA than its own"
        }
        AlertDescription::CertificateRequired => "it wants a certificate and was shown none",
        AlertDescription::NoApplicationProtocol => {
            "it does not speak the link's protocol; is this the right address?"
        }
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
        _ => "see its log",
    };
    let detail = if detail.is_empty() { String::new() } else { format!(", {detail}") };
    format!("the other side refused us with the TLS alert {alert:?}{detail}; {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use rustls::pki_types::PrivatePkcs8KeyDer;

    fn made(key: &KeyPair) -> Credentials {
        let certificate =
            CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(key).unwrap();
        let der = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::made(certificate.der().clone(), certificate.der().clone(), der.into()).unwrap()
    }

    #[test]
    fn a_derived_key_depends_on_the_private_key_and_the_purpose() {
        let key = KeyPair::generate().unwrap();
        let other = KeyPair::generate().unwrap();
        let signed = |credentials: &Credentials, purpose| {
            hmac::sign(&credentials.derived_key(purpose), b"x").as_ref().to_vec()
        };
        // After a renewal, the same cloud has another certificate of the same key.
        assert_eq!(signed(&made(&key), b"a"), signed(&made(&key), b"a"));
        assert_ne!(signed(&made(&key), b"a"), signed(&made(&key), b"b"));
        assert_ne!(signed(&made(&key), b"a"), signed(&made(&other), b"a"));
    }
}
