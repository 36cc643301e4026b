//! The files of certificates and key: what they should contain, and what is wrong with them.

use std::path::{Path, PathBuf};

use ring::digest;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::host::private;
use crate::host::private::PrivateError;
use crate::names::IdentityError;

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

    /// The files in the identity directory of csi-edge. Certificate and key are one file, so that
    /// they always belong to each other.
    pub fn identity(dir: &Path) -> Self {
        let node = dir.join("node.pem");
        Self { ca: dir.join("ca.crt"), cert: node.clone(), key: node }
    }

    /// True if they are an identity that csi-edge itself made, and renews.
    pub fn is_identity(&self) -> bool {
        self.cert == self.key
    }
}

/// The end of a link that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// csi-cloud: extended key usage serverAuth.
    Cloud,
    /// csi-edge: extended key usage clientAuth, and a node's name.
    Node,
    /// `csi-cloud relay`: extended key usage clientAuth, and a front's name.
    Front,
}

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read, or does not contain what it should.
    #[error("no {what} can be read from {}: {why}", path.display())]
    Unreadable {
        /// The expected content.
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

/// The content of the files.
pub struct Pem {
    /// The CAs that both sides trust.
    pub ca: Vec<u8>,
    /// Our certificate, and intermediate ones after it.
    pub cert: Vec<u8>,
    /// Its private key, overwritten when it is dropped.
    pub key: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(files: &Files) -> Result<Self, TlsError> {
        let read = |what, path: &Path| {
            std::fs::read(path).map_err(|error| TlsError::Unreadable {
                what,
                path: path.to_owned(),
                why: rustls::pki_types::pem::Error::Io(error),
            })
        };
        let ca = read("certificate", &files.ca)?;
        let cert = read("certificate", &files.cert)?;
        let key = read("private key", &files.key)?.into();
        private::check(&files.key)?;
        Ok(Self { ca, cert, key })
    }

    /// Tells whether the content has changed; reveals nothing of it.
    pub(super) fn digest(&self) -> Digest {
        let mut context = digest::Context::new(&digest::SHA256);
        for part in [&self.ca[..], &self.cert, &self.key] {
            context.update(digest::digest(&digest::SHA256, part).as_ref());
        }
        Digest(context.finish().as_ref().to_vec())
    }

    pub(super) fn roots(
        &self,
        path: &Path,
    ) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), TlsError> {
        let certificates = certificates(&self.ca, path)?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            let unusable = |e: rustls::Error| TlsError::Certificate {
                path: path.to_owned(),
                why: format!("cannot be a CA's: {e}; name the ca.crt of `csi-cloud ca init`"),
            };
            roots.add(certificate.clone()).map_err(unusable)?;
        }
        Ok((roots, certificates))
    }

    pub(super) fn chain(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(&self.cert, path)
    }

    pub(super) fn private_key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
        let unreadable =
            |why| TlsError::Unreadable { what: "private key", path: path.to_owned(), why };
        PrivateKeyDer::from_pem_slice(&self.key).map_err(unreadable)
    }
}

/// A digest of the files' content.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Digest(Vec<u8>);

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |why| TlsError::Unreadable { what: "certificate", path: path.to_owned(), why };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(unreadable(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(certificates)
}
