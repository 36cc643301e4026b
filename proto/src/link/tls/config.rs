//! The configuration of TLS on both sides. What it verifies by can be replaced while it is in use.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme};

use super::admit::Clients;
use super::credentials::Credentials;
use super::pin::{Pin, Pinned};
use super::provider::{provider, signatures};
use crate::link::error::LinkError;

const TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The cloud's side of a handshake; it refuses clients without a certificate of our CA, and those
/// that the credentials' [`Admit`](super::admit::Admit) denies.
///
/// # Errors
/// The version of TLS is not supported, which cannot be.
pub fn server_config(
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<Arc<ServerConfig>, LinkError> {
    let trusted = credentials.clone();
    let roots = Arc::new(move || trusted.current().roots.clone());
    let clients = Clients::new(roots, credentials.admit().cloned());
    let config = ServerConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(TLS13)
        .map_err(|error| LinkError::Tls(error.to_string()))?
        .with_client_cert_verifier(Arc::new(clients))
        .with_cert_resolver(Arc::new(Shown(credentials.clone())));
    Ok(without_tickets(config, alpn))
}

/// The cloud's side of a handshake with an edge that joins. It asks for no certificate, and its
/// chain ends with the certificates of the CA.
///
/// # Errors
/// As for [`server_config`].
pub fn join_config(credentials: &Credentials, alpn: &[u8]) -> Result<Arc<ServerConfig>, LinkError> {
    let config = ServerConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(TLS13)
        .map_err(|error| LinkError::Tls(error.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ShownWithCa(credentials.clone())));
    Ok(without_tickets(config, alpn))
}

/// A resumed session would outlive its certificate.
fn without_tickets(mut config: ServerConfig, alpn: &[u8]) -> Arc<ServerConfig> {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// The edge's side of a handshake.
///
/// # Errors
/// As for [`server_config`].
pub fn client_config(
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<Arc<ClientConfig>, LinkError> {
    verifying_by(Arc::new(Shown(credentials.clone())), credentials, alpn)
}

/// The edge's side of a handshake that notes which certificate it is shown, trusted or not.
///
/// # Errors
/// As for [`server_config`].
pub fn checking_config(
    credentials: &Credentials,
    alpn: &[u8],
    seen: &Seen,
) -> Result<Arc<ClientConfig>, LinkError> {
    let shown = Shown(credentials.clone());
    verifying_by(Arc::new(Noting { shown, seen: seen.clone() }), credentials, alpn)
}

fn verifying_by(
    verifier: Arc<dyn ServerCertVerifier>,
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<Arc<ClientConfig>, LinkError> {
    let config = ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(TLS13)
        .map_err(|error| LinkError::Tls(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(Shown(credentials.clone())));
    Ok(without_resumption(config, alpn))
}

/// The side of an edge that joins: it shows no certificate, and trusts the CA with this hash alone.
///
/// # Errors
/// As for [`server_config`].
pub fn joining_config(pin: Pin, alpn: &[u8]) -> Result<Arc<ClientConfig>, LinkError> {
    let config = ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(TLS13)
        .map_err(|error| LinkError::Tls(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(pin)))
        .with_no_client_auth();
    Ok(without_resumption(config, alpn))
}

fn without_resumption(mut config: ClientConfig, alpn: &[u8]) -> Arc<ClientConfig> {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// The certificate and the roots that are current when a handshake needs them.
struct Shown(Credentials);

/// The same certificate, with those of the CA after it.
struct ShownWithCa(Credentials);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown(..)")
    }
}

impl fmt::Debug for ShownWithCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShownWithCa(..)")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().certified.clone())
    }
}

impl ResolvesServerCert for ShownWithCa {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.0.current();
        let mut whole = CertifiedKey::clone(&current.certified);
        whole.cert.extend(current.ca.iter().cloned());
        Some(Arc::new(whole))
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().certified.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let roots = self.0.current().roots.clone();
        WebPkiServerVerifier::builder_with_provider(roots, provider().clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    signatures!();
}

/// The certificate that the other side showed. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<OnceLock<CertificateDer<'static>>>);

impl Seen {
    /// The certificate; none if none was shown. It counts only if the handshake succeeded.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.0.get().cloned()
    }
}

/// Verifies as [`Shown`] does, and notes the certificate.
#[derive(Debug)]
struct Noting {
    shown: Shown,
    seen: Seen,
}

impl ServerCertVerifier for Noting {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let _ = self.seen.0.set(end_entity.clone().into_owned());
        self.shown.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    signatures!();
}
