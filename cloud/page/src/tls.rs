//! The page's certificate, and the CA whose certificates let a browser in. Both are read again when
//! their files change.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use parking_lot::RwLock;
use proto::admin::view::key_hash;
use proto::host::private;
use proto::names::certificate::Identity;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use crate::arguments::Arguments;

/// The protocols in the TLS handshake, the preferred one first.
const ALPN: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// The protocol for which there is a server of its own.
pub(crate) const HTTP2: &[u8] = b"h2";

/// Makes handshakes with browsers.
pub(crate) struct Tls {
    arguments: Arguments,
    read: RwLock<ReadTls>,
}

/// The content of the files of TLS.
struct ReadTls {
    config: Arc<ServerConfig>,
    /// The hashes of the public keys of the CA of clients.
    client_ca: BTreeSet<String>,
}

impl Tls {
    /// Reads the files; `None` without a certificate.
    ///
    /// # Errors
    /// A file cannot be used; the text says which.
    pub(crate) fn open(arguments: &Arguments) -> anyhow::Result<Option<Self>> {
        let read = ReadTls::read(arguments)?.map(RwLock::new);
        Ok(read.map(|read| Self { arguments: arguments.clone(), read }))
    }

    /// Returns the configuration of the files that were read last.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.read.read().config.clone()
    }

    /// Whether the CA of clients has one of these public keys.
    pub(crate) fn trusts(&self, keys: &BTreeSet<String>) -> bool {
        !self.read.read().client_ca.is_disjoint(keys)
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// As for [`Tls::open`]. What was read before stays.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        if let Some(read) = ReadTls::read(&self.arguments)? {
            *self.read.write() = read;
        }
        Ok(())
    }
}

impl ReadTls {
    fn read(arguments: &Arguments) -> anyhow::Result<Option<Self>> {
        let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) else {
            return Ok(None);
        };
        let chain = certificates(certificate, "the page's certificate (--certificate)")?;
        private::check(key).context("the page's key (--key) cannot be used")?;
        let read = PrivateKeyDer::from_pem_file(key).with_context(|| {
            format!("the page's key, {}, cannot be read (--key)", key.display())
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut client_ca = BTreeSet::new();
        let config = match &arguments.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file, "the CA of clients (--client-ca)")? {
                    client_ca.extend(key_hash(&certificate));
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                // Without tokens, nobody gets as far as a request without a certificate.
                let verifier = match arguments.tokens {
                    Some(_) => verifier.allow_unauthenticated(),
                    None => verifier,
                };
                config.with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = config.with_single_cert(chain, read).with_context(|| {
            format!("{} is not the certificate of the key", certificate.display())
        })?;
        // A resumed session would outlive its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        Ok(Some(Self { config: Arc::new(config), client_ca }))
    }
}

fn certificates(file: &Path, name: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.with_context(|| format!("{name}, {}, cannot be read", file.display()))?;
    if read.is_empty() {
        bail!("{name}, {}, cannot be read: there is no certificate in it", file.display());
    }
    Ok(read)
}

/// Whether a certificate is a person's: not one of a node or a relay, whoever issued it.
pub(crate) fn is_persons(certificate: &CertificateDer<'_>) -> bool {
    Identity::of_node(certificate).is_err() && Identity::of_front(certificate).is_err()
}

#[cfg(test)]
impl Tls {
    /// Trusts the client CA with this public key, and makes no handshakes.
    pub(crate) fn with_client_ca(key: &str) -> Self {
        use clap::Parser;
        let flags = ["csi-page", "--view", "/v", "--listen", "127.0.0.1:0"];
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let resolver = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        let read = ReadTls { config: Arc::new(config), client_ca: [key.to_owned()].into() };
        Self { arguments: Arguments::parse_from(flags), read: RwLock::new(read) }
    }
}
