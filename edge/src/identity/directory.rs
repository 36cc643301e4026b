//! The directory of an identity: `node.pem` with certificate and key, and `ca.crt`.
//!
//! Of each file there is a copy, of the last pair that could be used. A power cut may damage a file
//! that was whole for months, and nobody drives to the node to join again.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use proto::control::certificate::Certificate;
use proto::host::chain;
use proto::host::publish::{Existing, publish};
use proto::link::tls::{Credentials, Files, Pem, Role, TlsError};
use proto::names::NodeName;
use proto::names::certificate::Validity;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::request::{Issued, Request};

/// The key of a request without an answer; a later attempt uses it again, because csi-cloud may
/// have issued its certificate.
const JOINING: &str = "joining.key";

/// The files of an identity.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

/// The content of an identity directory.
#[derive(Debug, PartialEq, Eq)]
pub enum IdentityState {
    /// No identity.
    Empty,
    /// An identity that ended so long ago that it is renewed only if an operator readmits the node.
    Over,
    /// An identity in use.
    Valid {
        /// Whole days until its end; 0 if it has ended and may renew itself.
        days: u64,
    },
    /// A file that cannot be read as an identity.
    Unknown(String),
}

impl Directory {
    /// The identity in this directory, which need not exist.
    pub fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// Its files.
    pub fn files(&self) -> Files {
        Files::identity(&self.0)
    }

    /// The copies of its files.
    pub fn copies(&self) -> Files {
        let node = self.0.join("node.pem.copy");
        Files { ca: self.0.join("ca.crt.copy"), cert: node.clone(), key: node }
    }

    /// Reads the identity, and puts a copy in the place of a file that is damaged or gone.
    ///
    /// # Errors
    /// It cannot be used, and neither can the copies.
    pub fn load(&self) -> Result<Credentials, TlsError> {
        let (files, copies) = (self.files(), self.copies());
        let error = match Credentials::load(&files, Role::Node) {
            Ok(credentials) => {
                if Credentials::load(&copies, Role::Node).is_err() {
                    self.copy();
                }
                return Ok(credentials);
            }
            // A key that others can read is an operator's to judge.
            Err(error @ TlsError::Open(_)) => return Err(error),
            Err(error) => error,
        };
        let mixed = Files { ca: copies.ca.clone(), ..files.clone() };
        let older = Files { ca: files.ca.clone(), ..copies.clone() };
        for source in [mixed, older, copies] {
            let Ok(pem) = Pem::read(&source) else { continue };
            let Ok(credentials) = Credentials::from_pem(&pem, &files, Role::Node) else {
                continue;
            };
            let restored = self.publish(&files, &pem).err();
            let restored = restored.map(|error| chain(error.as_ref()));
            warn!(
                error = chain(&error),
                not_restored = restored,
                "a file of the identity could not be used; its copy is used instead"
            );
            return Ok(credentials);
        }
        Err(error)
    }

    /// Writes a renewed identity, as [`Directory::write`] does. The copy is the one before it.
    ///
    /// # Errors
    /// The file system's.
    pub fn replace(&self, pem: &Pem) -> anyhow::Result<()> {
        if Credentials::load(&self.files(), Role::Node).is_ok() {
            self.copy();
        }
        self.publish(&self.files(), pem)
    }

    /// Copies the files; a failure is logged.
    fn copy(&self) {
        let Ok(pem) = Pem::read(&self.files()) else { return };
        if let Err(error) = self.publish(&self.copies(), &pem) {
            warn!(error = chain(error.as_ref()), "the identity cannot be copied");
        }
    }

    fn publish(&self, to: &Files, pem: &Pem) -> anyhow::Result<()> {
        let writing = |path: &Path| format!("{} cannot be written", path.display());
        publish(&to.ca, &pem.ca, 0o644, Existing::Replace).with_context(|| writing(&to.ca))?;
        publish(&to.cert, &pem.cert, 0o600, Existing::Replace).with_context(|| writing(&to.cert))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its content.
    pub fn state(&self, now: SystemTime) -> IdentityState {
        let pem = match std::fs::read(self.files().cert) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return IdentityState::Empty,
            Err(error) => return IdentityState::Unknown(error.to_string()),
        };
        let certificate = match CertificateDer::from_pem_slice(&pem) {
            Ok(certificate) => certificate,
            Err(error) => return IdentityState::Unknown(error.to_string()),
        };
        match Validity::of(&certificate) {
            Ok(validity) if validity.ended(now) && !validity.may_only_renew(now) => {
                IdentityState::Over
            }
            Ok(validity) => IdentityState::Valid { days: validity.left(now).as_secs() / 86_400 },
            Err(error) => IdentityState::Unknown(error.to_string()),
        }
    }

    /// Refuses to replace an identity that may be of use.
    ///
    /// # Errors
    /// There is one.
    pub fn check_replaceable(&self) -> anyhow::Result<()> {
        let path = self.files().cert;
        match self.state(SystemTime::now()) {
            IdentityState::Empty | IdentityState::Over => Ok(()),
            IdentityState::Valid { days } => bail!(
                "{} is an identity in use, valid for {days} more days; nothing was asked. csi-edge \
                 renews it by itself; --replace makes a new one all the same",
                path.display()
            ),
            IdentityState::Unknown(why) => bail!(
                "{} is there and cannot be read as an identity ({why}); nothing was asked. Look at \
                 it, then use --replace or another --identity",
                path.display()
            ),
        }
    }

    /// A request whose key outlives a lost answer.
    ///
    /// # Errors
    /// The key cannot be kept in the directory.
    pub fn request(&self) -> anyhow::Result<Request> {
        let path = self.0.join(JOINING);
        let keeping = || format!("the new key cannot be kept in {}", path.display());
        if let Ok(key) = std::fs::read_to_string(&path)
            && let Ok(request) = Request::of(&key)
        {
            return Ok(request);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0).with_context(keeping)?;
        let request = Request::new()?;
        publish(&path, request.key().as_bytes(), 0o600, Existing::Replace).with_context(keeping)?;
        Ok(request)
    }

    /// Writes an identity, whole or not at all. The CA goes first: it vouches for the next
    /// certificate, and may vouch for the one before.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, pem: &Pem) -> anyhow::Result<()> {
        self.publish(&self.files(), pem)?;
        let _ = std::fs::remove_file(self.0.join(JOINING));
        // What it replaces may be another node's, or revoked.
        self.copy();
        Ok(())
    }
}

/// An identity in use, which renews itself.
#[derive(Clone)]
pub struct NodeIdentity {
    directory: Directory,
    credentials: Credentials,
    /// The time at which its certificate came: the file's time.
    obtained: Arc<Mutex<Option<SystemTime>>>,
    /// A certificate in use that is not on the disk.
    unwritten: Arc<Mutex<Option<Arc<Pem>>>>,
}

/// The interval of attempts to write a certificate that is in use.
const WRITE_AGAIN: Duration = Duration::from_secs(60);
/// The time for a new certificate to be written before it is used.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

impl NodeIdentity {
    /// The identity in a directory, from which the credentials were read.
    pub fn new(directory: Directory, credentials: Credentials) -> Self {
        let written = std::fs::metadata(directory.files().cert).and_then(|file| file.modified());
        let obtained = written.ok().filter(|written| *written <= SystemTime::now());
        let obtained = Arc::new(Mutex::new(obtained));
        Self { directory, credentials, obtained, unwritten: Arc::default() }
    }

    /// True if its certificate has ended, so that it can only be renewed.
    pub fn ended(&self, now: SystemTime) -> bool {
        self.credentials.validity().is_some_and(|validity| validity.ended(now))
    }

    /// The validity of its certificate. It is counted from the arrival, because issuers backdate
    /// the begin for clocks that are behind.
    pub fn validity(&self) -> Option<Validity> {
        let obtained = *self.obtained.lock();
        let validity = self.credentials.validity()?;
        let not_before = validity.not_before.max(obtained.unwrap_or(validity.not_before));
        Some(Validity { not_before: not_before.min(validity.not_after), ..validity })
    }

    /// The certificate in use. It tells whether a link has an older one.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.credentials.certificate()
    }

    /// True if the certificate in use is on the disk, so that a restart begins with it.
    pub fn is_on_disk(&self) -> bool {
        // Locked while it is written.
        self.unwritten.try_lock().is_some_and(|unwritten| unwritten.is_none())
    }

    /// Reads the files, and uses what another process or an operator has put there. Returns true if
    /// that is another certificate.
    pub async fn read_again(&self) -> bool {
        let Self { directory, credentials, .. } = self.clone();
        let reading = spawn_blocking(move || credentials.reload(&directory.files(), Role::Node));
        matches!(reading.await, Ok(Ok(true)))
    }

    /// Takes a certificate that came for a request: checks it, writes it, and uses it from the next
    /// handshake on. One that cannot be written within 10 s is used from memory.
    ///
    /// It is written first, so that the hello of its first link can say that it is on the disk.
    ///
    /// # Errors
    /// It cannot be used, or names another node. The old one stays in use.
    pub async fn renew(&self, request: Request, certificate: &Certificate) -> anyhow::Result<()> {
        let node: NodeName = self.credentials.node()?;
        let files = self.directory.files();
        let Issued { pem, node: named, .. } = request.issued(certificate, &files)?;
        if named != node {
            bail!("csi-cloud issued a certificate of node {named}, and this is node {node}");
        }
        let pem = Arc::new(pem);
        if let Err(error) = self.write_first(pem.clone()).await {
            error!(
                error = chain(error.as_ref()),
                "the new certificate is used from memory, because it cannot be written; it is \
                 tried again every minute, and a restart begins with the one before"
            );
        }
        self.credentials.use_from_memory(&pem, &files, Role::Node)?;
        *self.obtained.lock() = Some(SystemTime::now());
        Ok(())
    }

    /// Writes a new certificate. A disk that hangs is not waited for.
    async fn write_first(&self, pem: Arc<Pem>) -> anyhow::Result<()> {
        let identity = self.clone();
        let writing = spawn_blocking(move || {
            *identity.unwritten.lock() = Some(pem);
            identity.write()
        });
        timeout(WRITE_TIMEOUT, writing).await.context("the disk does not answer")??.map(drop)
    }

    /// Writes the certificate in use, if it is not on the disk.
    fn write(&self) -> anyhow::Result<bool> {
        let mut unwritten = self.unwritten.lock();
        let Some(pem) = &*unwritten else { return Ok(false) };
        self.directory.replace(pem)?;
        *unwritten = None;
        Ok(true)
    }

    /// Writes a certificate that is used from memory as soon as that is possible. Never ends.
    pub async fn keep_written(self) {
        loop {
            tokio::time::sleep(WRITE_AGAIN).await;
            let identity = self.clone();
            // A file system that hangs delays this task only.
            let written = spawn_blocking(move || identity.write()).await;
            if matches!(written, Ok(Ok(true))) {
                info!("the new certificate is on the disk now");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::test_ca::Ca;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn only_an_identity_of_no_more_use_is_replaced_without_being_asked() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let directory = Directory::new(&dir.path().join("new"));
        directory.check_replaceable().unwrap();
        for (days, replaceable) in [(3, false), (-3, false), (-91, true)] {
            let directory = ca.identity(dir.path(), days);
            let checked = directory.check_replaceable();
            assert_eq!(checked.is_ok(), replaceable, "{days}: {checked:?}");
            if let Err(error) = checked {
                assert!(error.to_string().contains("--replace"), "{error}");
            }
        }
        let directory = ca.identity(dir.path(), -91);
        publish(&directory.files().cert, b"nonsense", 0o600, Existing::Replace).unwrap();
        let error = directory.check_replaceable().unwrap_err().to_string();
        assert!(error.contains("cannot be read as an identity"), "{error}");
    }

    #[test]
    fn the_key_of_a_request_outlives_a_lost_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        let directory = Directory::new(&path);
        let key = directory.request().unwrap().key();
        assert_eq!(directory.request().unwrap().key(), key);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join(JOINING)), 0o600);
        let files = Ca::new().identity(&path, 3).files();
        assert!(!path.join(JOINING).exists(), "the key is used");
        assert_eq!(mode(&files.cert), 0o600);
        assert!(std::fs::read_to_string(&files.key).unwrap().contains(&key));
        assert_ne!(directory.request().unwrap().key(), key);
    }

    /// An identity for three days, its credentials in use, and what renews them.
    fn in_use(ca: &Ca, dir: &Path) -> (Directory, Credentials, NodeIdentity) {
        let directory = ca.identity(dir, 3);
        let credentials = Credentials::load(&directory.files(), Role::Node).unwrap();
        let identity = NodeIdentity::new(directory.clone(), credentials.clone());
        (directory, credentials, identity)
    }

    async fn renew(identity: &NodeIdentity, name: &str, ca: &Ca) -> anyhow::Result<()> {
        let request = Request::new()?;
        let certificate = ca.issue(&request.csr()?, name, 10);
        identity.renew(request, &certificate).await
    }

    #[tokio::test]
    async fn a_newer_certificate_in_the_files_is_read_and_an_unwritten_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (_, credentials, identity) = in_use(&ca, dir.path());
        assert!(identity.is_on_disk() && !identity.read_again().await);
        let before = credentials.certificate();
        // An operator has joined the node again.
        ca.identity(dir.path(), 5);
        assert!(identity.read_again().await && credentials.certificate() != before);
        renew(&identity, "edge-csi://node/n1", &ca).await.unwrap();
        let renewed = credentials.certificate();
        assert!(identity.is_on_disk() && !identity.read_again().await);
        assert_eq!(credentials.certificate(), renewed);
    }

    #[tokio::test]
    async fn a_renewal_replaces_the_identity_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (directory, credentials, identity) = in_use(&ca, dir.path());
        let before = credentials.certificate();
        let error = renew(&identity, "edge-csi://node/n2", &ca).await.unwrap_err().to_string();
        assert!(error.contains("of node n2, and this is node n1"), "{error}");
        let stolen = ca.issue(&Request::new().unwrap().csr().unwrap(), "edge-csi://node/n1", 10);
        let error = identity.renew(Request::new().unwrap(), &stolen).await.unwrap_err();
        assert!(format!("{error:#}").contains("does not belong to"), "another key: {error:#}");
        assert_eq!(credentials.certificate(), before);
        renew(&identity, "edge-csi://node/n1", &ca).await.unwrap();
        assert_ne!(credentials.certificate(), before);
        let kept = Credentials::load(&directory.files(), Role::Node).unwrap();
        assert_eq!(kept.certificate(), credentials.certificate());
        // The time before the issue does not count as life.
        let validity = identity.validity().unwrap();
        assert!(validity.life() > 9 * DAY && validity.life() <= 10 * DAY, "{validity:?}");
        // The CA of the answer is trusted from now on.
        renew(&identity, "edge-csi://node/n1", &Ca::new()).await.unwrap();
        assert_ne!(credentials.ca(), kept.ca());
    }

    /// Ends when the files have this certificate.
    async fn is_written(files: &Files, certificate: Option<&CertificateDer<'static>>) {
        loop {
            let of_disk = Credentials::load(files, Role::Node).ok();
            if of_disk.and_then(|of| of.certificate()).as_ref() == certificate {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_cannot_be_written_is_used_and_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let (directory, credentials, identity) = in_use(&ca, dir.path());
        let before = credentials.certificate();
        // A directory in its place stands for a full disk.
        let files = directory.files();
        let kept = std::fs::read(&files.cert).unwrap();
        std::fs::remove_file(&files.cert).unwrap();
        std::fs::create_dir_all(files.cert.join("x")).unwrap();
        renew(&identity, "edge-csi://node/n1", &ca).await.unwrap();
        assert!(!identity.is_on_disk());
        let after = credentials.certificate();
        assert_ne!(after, before, "used from memory");
        std::fs::remove_dir_all(&files.cert).unwrap();
        publish(&files.cert, &kept, 0o600, Existing::Replace).unwrap();
        assert!(!credentials.reload(&files, Role::Node).unwrap(), "the one before is not news");
        assert_eq!(credentials.certificate(), after);
        let written = is_written(&files, after.as_ref());
        tokio::select! {
            biased;
            () = identity.keep_written() => {}
            () = written => {}
        }
        assert!(!credentials.reload(&files, Role::Node).unwrap());
    }
}
