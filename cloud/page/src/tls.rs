//! The page's certificate, and the CA whose certificates let a browser in. Both are read again when
//! their files change.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use proto::admin::view::key_hash;
use proto::host::private;
use proto::names::certificate::Identity;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use crate::arguments::Arguments;
use crate::connection::ALPN;

/// The files of TLS.
#[derive(Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    /// Without tokens, nobody gets as far as a request without a certificate.
    must_show: bool,
}

/// What handshakes with browsers are made by.
pub(crate) struct Tls {
    files: Files,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    client_ca: Arc<BTreeSet<String>>,
}

impl Tls {
    /// Reads the files; `None` without a certificate.
    ///
    /// # Errors
    /// A file cannot be used; the text says which.
    pub(crate) fn open(arguments: &Arguments) -> anyhow::Result<Option<Self>> {
        let Some((certificate, key)) = arguments.certificate.clone().zip(arguments.key.clone())
        else {
            return Ok(None);
        };
        let client_ca = arguments.client_ca.clone();
        let files = Files { certificate, key, client_ca, must_show: arguments.tokens.is_none() };
        let current = Mutex::new(files.read()?);
        Ok(Some(Self { files, current }))
    }

    /// Returns the configuration of the files that were read last.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current.lock().config.clone()
    }

    /// Returns the hashes of the public keys of the CA of clients.
    pub(crate) fn client_ca(&self) -> Arc<BTreeSet<String>> {
        self.current.lock().client_ca.clone()
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// As for [`Tls::open`]. What was read before stays.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        let read = self.files.read()?;
        *self.current.lock() = read;
        Ok(())
    }
}

impl Files {
    fn read(&self) -> anyhow::Result<Current> {
        let chain = certificates(&self.certificate, "the page's certificate (--certificate)")?;
        private::check(&self.key).context("the page's key (--key) cannot be used")?;
        let key = PrivateKeyDer::from_pem_file(&self.key).with_context(|| {
            format!("the page's key, {}, cannot be read (--key)", self.key.display())
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut client_ca = BTreeSet::new();
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file, "the CA of clients (--client-ca)")? {
                    client_ca.extend(key_hash(&certificate));
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                let verifier =
                    if self.must_show { verifier } else { verifier.allow_unauthenticated() };
                config.with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = config.with_single_cert(chain, key).with_context(|| {
            format!("{} is not the certificate of the key", self.certificate.display())
        })?;
        // A resumed session would outlive its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = ALPN.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Current { config: Arc::new(config), client_ca: Arc::new(client_ca) })
    }
}

fn certificates(file: &Path, name: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let cannot = || format!("{name}, {}, cannot be read", file.display());
    let read = CertificateDer::pem_file_iter(file).with_context(cannot)?;
    let certificates: Vec<_> = read.collect::<Result<_, _>>().with_context(cannot)?;
    if certificates.is_empty() {
        anyhow::bail!("{}: there is no certificate in it", cannot());
    }
    Ok(certificates)
}

/// Whether a certificate is a person's: not one of a node or a relay, whoever issued it.
pub(crate) fn is_persons(certificate: &CertificateDer<'_>) -> bool {
    Identity::of_node(certificate).is_err() && Identity::of_front(certificate).is_err()
}
