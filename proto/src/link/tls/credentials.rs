//! The certificates and key of one end, as new handshakes use them.
//!
//! They can be replaced while the program runs. Links that are up keep theirs.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use ring::hmac;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{info, warn};
use webpki::{EndEntityCert, KeyUsage};

use super::admit::Admit;
use super::explain::explain_own;
use super::files::{Digest, Files, Pem, Role, TlsError};
use super::pin::Pin;
use super::provider::provider;
use crate::host::chain::chain;
use crate::names::certificate::Validity;
use crate::names::{IdentityError, NodeName, front_of, node_of};

/// The interval at which files are compared with the credentials in use.
const COMPARED: Duration = Duration::from_secs(10);

/// The checked certificates and key of one end; clones share them.
#[derive(Clone)]
pub struct Credentials {
    current: Arc<watch::Sender<Arc<Loaded>>>,
    /// Of the files that were used last. They may differ from what is in use.
    read: Arc<Mutex<Option<Digest>>>,
    admit: Option<Admit>,
    secret: Option<[u8; 32]>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// One set of certificates and key.
pub(super) struct Loaded {
    pub(super) roots: Arc<RootCertStore>,
    /// The certificates behind the roots.
    pub(super) ca: Vec<CertificateDer<'static>>,
    pub(super) certified: Arc<CertifiedKey>,
    key: PrivateKeyDer<'static>,
    validity: Option<Validity>,
    /// Of the files; none if they were made in this process.
    digest: Option<Digest>,
}

impl Credentials {
    /// Reads the files and checks that they are valid for this role, now. A node's certificate that
    /// has ended is valid as long as it can renew itself, if it is an identity.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: &Files, role: Role) -> Result<Self, TlsError> {
        Self::from_pem(&Pem::read(files)?, files, role)
    }

    /// Checks the content of files, which need not exist, as [`Credentials::load`] does.
    ///
    /// # Errors
    /// See [`TlsError`]; the texts name `files`.
    pub fn from_pem(pem: &Pem, files: &Files, role: Role) -> Result<Self, TlsError> {
        Loaded::check(pem, files, role).map(Self::of)
    }

    /// Credentials made in this process, unchecked.
    ///
    /// # Errors
    /// The CA's certificate or the key cannot be read.
    pub fn made(
        ca: CertificateDer<'static>,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone())?;
        let validity = Validity::of(&certificate).ok();
        let certified = CertifiedKey::from_der(vec![certificate], key.clone_key(), provider())?;
        Ok(Self::of(Loaded {
            roots: Arc::new(roots),
            ca: vec![ca],
            certified: Arc::new(certified),
            key,
            validity,
            digest: None,
        }))
    }

    fn of(loaded: Loaded) -> Self {
        let read = Arc::new(Mutex::new(loaded.digest.clone()));
        let current = Arc::new(watch::Sender::new(Arc::new(loaded)));
        Self { current, read, admit: None, secret: None }
    }

    /// The same credentials, whose listeners ask `admit` about each authenticated peer.
    #[must_use]
    pub fn with_admit(self, admit: Admit) -> Self {
        Self { admit: Some(admit), ..self }
    }

    /// The same credentials, whose derived keys are made of this secret instead of the private key.
    /// So they stay the same when the key is replaced.
    #[must_use]
    pub fn with_secret(self, secret: [u8; 32]) -> Self {
        Self { secret: Some(secret), ..self }
    }

    pub(super) fn current(&self) -> Arc<Loaded> {
        self.current.borrow().clone()
    }

    pub(super) fn admit(&self) -> Option<&Admit> {
        self.admit.as_ref()
    }

    /// 32 bytes for a key, derived from the secret, or else the private key, and the purpose. They
    /// reveal nothing of either.
    pub fn derived(&self, purpose: &[u8]) -> hmac::Tag {
        let current = self.current();
        let private = || current.key.secret_der();
        let secret = self.secret.as_ref().map_or_else(private, |secret| &secret[..]);
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose)
    }

    /// The node in our own certificate.
    ///
    /// # Errors
    /// There is none; [`Credentials::load`] rules that out for [`Role::Node`].
    pub fn node(&self) -> Result<NodeName, IdentityError> {
        self.current().node()
    }

    /// Our own certificate.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.current().certified.cert.first().cloned()
    }

    /// The validity of our own certificate; none if it cannot be read.
    pub fn validity(&self) -> Option<Validity> {
        self.current().validity
    }

    /// The validity of the first CA in our file; none if it cannot be read.
    pub fn ca_validity(&self) -> Option<Validity> {
        self.current().ca.first().and_then(|ca| Validity::of(ca).ok())
    }

    /// The hash of the first CA in our file, which an edge that joins checks.
    pub fn ca_pin(&self) -> Option<Pin> {
        self.current().ca.first().map(Pin::of)
    }

    /// A hash of the set of CAs in our file. Two ends with the same trust the same CAs.
    pub fn trust(&self) -> String {
        trust_of(&self.current().ca)
    }

    /// The certificates of every CA in our file.
    pub fn ca(&self) -> Vec<CertificateDer<'static>> {
        self.current().ca.clone()
    }

    /// Ends when our own certificate is another one than `shown`.
    pub async fn renewed(&self, shown: Option<&CertificateDer<'static>>) {
        let mut current = self.current.subscribe();
        let other = |loaded: &Arc<Loaded>| loaded.certified.cert.first() != shown;
        if current.wait_for(other).await.is_err() {
            // Impossible: we hold the sender.
            std::future::pending::<()>().await;
        }
    }

    /// Reads the files again, and uses them from the next handshake on. True if they have changed.
    ///
    /// # Errors
    /// See [`TlsError`]. The old credentials stay in use.
    pub fn reload(&self, files: &Files, role: Role) -> Result<bool, TlsError> {
        let pem = Pem::read(files)?;
        let digest = Some(pem.digest());
        if *self.read.lock() == digest {
            return Ok(false);
        }
        let has_changed = self.use_from_memory(&pem, files, role)?;
        *self.read.lock() = digest;
        Ok(has_changed)
    }

    /// Uses the content of files from the next handshake on, though the files do not have it yet.
    /// Files that were read before do not replace it. True if it is another one.
    ///
    /// # Errors
    /// See [`TlsError`]. The old credentials stay in use.
    pub fn use_from_memory(&self, pem: &Pem, files: &Files, role: Role) -> Result<bool, TlsError> {
        if self.current().digest == Some(pem.digest()) {
            return Ok(false);
        }
        let loaded = Loaded::check(pem, files, role)?;
        self.check_same_node(&loaded, files, role)?;
        self.current.send_replace(Arc::new(loaded));
        Ok(true)
    }

    /// All that this process has said and keeps is of one node.
    fn check_same_node(&self, new: &Loaded, files: &Files, role: Role) -> Result<(), TlsError> {
        let (Role::Node, Ok(ours), Ok(named)) = (role, self.node(), new.node()) else {
            return Ok(());
        };
        if named == ours {
            return Ok(());
        }
        let why = format!("is of node {named}, and this is node {ours}; restart to be that node");
        Err(TlsError::Certificate { path: files.cert.clone(), why })
    }

    /// Compares the files with the credentials in use, every 10 s, and uses files that have
    /// changed. Files that cannot be used are logged once, and the old credentials stay in use.
    /// Never ends.
    pub async fn keep_current(self, files: Files, role: Role) {
        let mut last_error = None;
        loop {
            tokio::time::sleep(COMPARED).await;
            let credentials = self.clone();
            let read = files.clone();
            // A file system that hangs delays this task only.
            let reading =
                tokio::task::spawn_blocking(move || credentials.reload(&read, role)).await;
            match reading {
                Ok(Ok(changed)) => {
                    last_error = None;
                    if changed {
                        let cert = files.cert.display();
                        info!(%cert, "certificates have changed; new connections use them");
                    }
                }
                Ok(Err(error)) => {
                    let error = chain(&error);
                    if last_error.as_ref() != Some(&error) {
                        warn!(%error, "certificates have changed and cannot be used; the old \
                            ones stay in use");
                    }
                    last_error = Some(error);
                }
                // The runtime is going down.
                Err(_) => return,
            }
        }
    }
}

/// A hash of a set of CAs: SHA-256 of their sorted hashes, in hexadecimal.
pub fn trust_of(ca: &[CertificateDer<'_>]) -> String {
    let pins: BTreeSet<_> = ca.iter().map(|ca| Pin::of(ca).to_string()).collect();
    let pins: Vec<_> = pins.into_iter().collect();
    Pin::of(&CertificateDer::from(pins.concat().into_bytes())).to_string()
}

impl Loaded {
    fn check(pem: &Pem, files: &Files, role: Role) -> Result<Self, TlsError> {
        let (roots, ca) = pem.roots(&files.ca)?;
        let chain = pem.chain(&files.cert)?;
        let key = pem.private_key(&files.key)?;
        let identity = |source| TlsError::Identity { path: files.cert.clone(), source };
        let validity = chain.first().map(Validity::of).transpose().map_err(identity)?;
        check_certificate(&chain, &roots, validity, files, role)?;
        let certified = CertifiedKey::from_der(chain, key.clone_key(), provider());
        let wrong = |why| TlsError::Key { key: files.key.clone(), cert: files.cert.clone(), why };
        let loaded = Self {
            roots: Arc::new(roots),
            ca,
            certified: Arc::new(certified.map_err(wrong)?),
            key,
            validity,
            digest: Some(pem.digest()),
        };
        loaded.check_name(role).map_err(identity)?;
        Ok(loaded)
    }

    fn node(&self) -> Result<NodeName, IdentityError> {
        self.certified.cert.first().map_or(Err(IdentityError::Names(0)), node_of)
    }

    fn check_name(&self, role: Role) -> Result<(), IdentityError> {
        match (role, self.certified.cert.first()) {
            (Role::Front, Some(certificate)) => front_of(certificate).map(drop),
            (Role::Node, _) => self.node().map(drop),
            (Role::Cloud | Role::Front, _) => Ok(()),
        }
    }
}

fn check_certificate(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    validity: Option<Validity>,
    files: &Files,
    role: Role,
) -> Result<(), TlsError> {
    let path: &Path = &files.cert;
    let wrong = |why: String| TlsError::Certificate { path: path.to_owned(), why };
    let (first, rest) = chain.split_first().ok_or_else(|| wrong("is missing".into()))?;
    let certificate =
        EndEntityCert::try_from(first).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let usage = match role {
        Role::Cloud => KeyUsage::server_auth(),
        Role::Node | Role::Front => KeyUsage::client_auth(),
    };
    // Such a node may ask for another one.
    let renewable = |validity: &Validity| {
        role == Role::Node && files.is_identity() && validity.ended(SystemTime::now())
    };
    let now = validity
        .filter(renewable)
        .and_then(|validity| validity.not_after.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or_else(UnixTime::now, UnixTime::since_unix_epoch);
    let algorithms = provider().signature_verification_algorithms;
    certificate
        .verify_for_usage(algorithms.all, &roots.roots, rest, now, usage, None, None)
        .map_err(|error| wrong(explain_own(&error, files, role)))
        .map(drop)
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
        let derived =
            |credentials: Credentials, purpose| credentials.derived(purpose).as_ref().to_vec();
        // After a renewal, the same cloud may have another certificate of the same key.
        assert_eq!(derived(made(&key), b"a"), derived(made(&key), b"a"));
        assert_ne!(derived(made(&key), b"a"), derived(made(&key), b"b"));
        assert_ne!(derived(made(&key), b"a"), derived(made(&other), b"a"));
    }

    #[test]
    fn a_derived_key_of_a_secret_outlives_the_private_key() {
        let derived = |secret: u8| {
            let credentials = made(&KeyPair::generate().unwrap()).with_secret([secret; 32]);
            credentials.derived(b"a").as_ref().to_vec()
        };
        assert_eq!(derived(1), derived(1));
        assert_ne!(derived(1), derived(2));
    }
}
