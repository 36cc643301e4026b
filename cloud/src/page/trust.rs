//! The CA whose certificates let a browser in, read from its file.
//!
//! It is never the CA of the nodes: each of them has a certificate of that one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::link::tls::Credentials;
use proto::names::certificate::Identity;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a file is no CA for clients.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    /// It cannot be read, or has no certificate.
    #[error("the CA of the page's clients, {}, cannot be read ([page] client_ca)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is the CA of the nodes.
    #[error(
        "the CA of the page's clients, {}, is also that of the nodes, so each node could see the \
         page; make a CA for people ([page] client_ca)",
        path.display()
    )]
    OfNodes {
        /// The file.
        path: PathBuf,
    },
}

/// The certificates of the CA in a file.
///
/// # Errors
/// See [`TrustError`].
pub(super) fn read(path: &Path, nodes: &Credentials) -> Result<Arc<RootCertStore>, TrustError> {
    let cannot = |why: String| TrustError::Read {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, why),
    };
    let text =
        std::fs::read(path).map_err(|source| TrustError::Read { path: path.to_owned(), source })?;
    let mut certificates = Vec::new();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| cannot(error.to_string()))?;
        roots.add(certificate.clone()).map_err(|error| cannot(error.to_string()))?;
        certificates.push(certificate.into_owned());
    }
    if certificates.is_empty() {
        return Err(cannot("there is no certificate in it".into()));
    }
    let ours: Vec<_> = nodes.ca().iter().filter_map(public_key).collect();
    if certificates.iter().filter_map(public_key).any(|key| ours.contains(&key)) {
        return Err(TrustError::OfNodes { path: path.to_owned() });
    }
    Ok(Arc::new(roots))
}

/// Whether a certificate is a person's: not one of a node or a relay, whoever issued it.
pub(super) fn is_persons(certificate: &CertificateDer<'_>) -> bool {
    Identity::of_node(certificate).is_err() && Identity::of_front(certificate).is_err()
}

/// The public key of a certificate; a CA that is renewed keeps it.
fn public_key(certificate: &CertificateDer<'static>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.public_key().raw.to_vec())
}
