//! `csi-cloud ca rotate`: another CA takes over, with both trusted for a time.
//!
//! `start` adds the new root and the new CA; from then on the new CA issues to nodes, and edges are
//! told to renew. `finish` replaces csi-cloud's own certificate, and takes the old root away. Each
//! step is a file of its own, in an order in which csi-cloud can start after each of them.

use std::io;
use std::path::{Path, PathBuf};

use proto::host::publish::{Existing, publish};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::pki::issuer::{CaPem, IssueError, Issuer, certificates, pems};
use crate::pki::issuers::{Cas, Issuers};
use crate::pki::own::{OwnError, own, renew};

/// The reason why a step is not made.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The new CA cannot be used.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// Another rotation is under way.
    #[error(
        "another CA is taking over already; `csi-cloud ca rotate status` shows how far it is, and \
         `ca rotate finish` ends it"
    )]
    Under,
    /// The new CA issues already.
    #[error("this CA issues already; nothing was changed")]
    Same,
    /// The certificate of the CA and the roots are one file.
    #[error(
        "{} is both the [ca] cert and the [tls] ca, and cannot be an intermediate and its root; \
         give each a file of its own (`csi-cloud ca use` writes them), or take over by a root",
        .0.display()
    )]
    OneFile(PathBuf),
    /// Nothing is under way.
    #[error("no CA is taking over; `csi-cloud ca rotate start` begins it")]
    None,
    /// csi-cloud's own certificate would not be trusted any more.
    #[error(
        "csi-cloud's own certificate in {} was not issued by the old CA, and is not of the new \
         one; replace it first, and repeat this",
        .0.display()
    )]
    Foreign(PathBuf),
    /// Its own certificate is not renewed.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// A file cannot be written.
    #[error(
        "{} cannot be written: {why}. If it is a mounted Secret, change that instead: \
         docs/how-to/certificates.md, \"Another CA\"",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: io::Error,
    },
}

/// A CA that is to take over, PEM.
pub struct NewCa {
    /// The certificate that issues, and those between it and the root.
    pub cert: String,
    /// Its private key.
    pub key: Zeroizing<String>,
    /// The root; without one, the certificate is a root itself.
    pub root: Option<String>,
}

impl Issuers {
    /// True if another CA is taking over.
    pub fn is_rotating(&self) -> bool {
        self.settings().next().exists()
    }

    /// Lets another CA take over. May be repeated after it broke off.
    ///
    /// # Errors
    /// See [`RotationError`]. Unless a file could not be written, nothing was changed.
    pub fn start(&self, new: &NewCa) -> Result<Cas, RotationError> {
        if self.is_rotating() {
            return Err(RotationError::Under);
        }
        let roots = &self.tls().ca;
        if new.root.is_some() && is_one_file(roots, &self.settings().cert) {
            return Err(RotationError::OneFile(roots.clone()));
        }
        let trusted = std::fs::read_to_string(roots)
            .map_err(|error| IssueError::File { path: roots.clone(), why: error.to_string() })?;
        let given = Path::new("--cert");
        let root = certificates(new.root.as_ref().unwrap_or(&new.cert), given)?;
        let known = certificates(&trusted, roots)?;
        let added: Vec<_> = root.into_iter().filter(|root| !known.contains(root)).collect();
        let trusted = format!("{}\n{}", trusted.trim_end(), pems(&added));
        let pem = CaPem { cert: new.cert.clone(), key: new.key.clone(), roots: trusted.clone() };
        let next = Issuer::of(&pem, given, Path::new("--key"), roots)?;
        if next.is_same(&self.read_again().issuer) {
            return Err(RotationError::Same);
        }
        write(roots, &trusted, 0o644)?;
        let next = Zeroizing::new(format!("{}\n{}", new.key.trim_end(), new.cert));
        write(&self.settings().next(), &next, 0o600)?;
        Ok(self.read_again())
    }

    /// Takes the old CA away. May be repeated after it broke off.
    ///
    /// # Errors
    /// See [`RotationError`]. The new CA goes on to take over.
    pub fn finish(&self) -> Result<Cas, RotationError> {
        let settings = self.settings();
        let next = settings.next();
        if !next.exists() {
            return Err(RotationError::None);
        }
        let Cas { issuer, own: old } = self.read_again();
        let files = self.tls();
        let certificate = own(files)?;
        if !issuer.has_issued(&certificate) {
            if !old.has_issued(&certificate) {
                return Err(RotationError::Foreign(files.cert.clone()));
            }
            renew(&issuer, files, settings.cloud_days)?;
        }
        let stays = |root: &&CertificateDer<'_>| *root != old.root() || old.root() == issuer.root();
        let roots: Vec<_> = issuer.roots().iter().filter(stays).cloned().collect();
        write(&files.ca, &pems(&roots), 0o644)?;
        let pem = std::fs::read_to_string(&next)
            .map(Zeroizing::new)
            .map_err(|error| IssueError::File { path: next.clone(), why: error.to_string() })?;
        let key = pem.split_inclusive("-----END PRIVATE KEY-----").next().unwrap_or_default();
        write(&settings.key, &Zeroizing::new(format!("{key}\n")), 0o600)?;
        write(&settings.cert, &pems(&certificates(&pem, &next)?), 0o644)?;
        std::fs::remove_file(&next).map_err(|why| RotationError::Write { path: next, why })?;
        Ok(self.read_again())
    }
}

fn is_one_file(one: &Path, other: &Path) -> bool {
    one == other
        || one.canonicalize().ok().is_some_and(|one| other.canonicalize().ok() == Some(one))
}

fn write(path: &Path, content: &str, mode: u32) -> Result<(), RotationError> {
    publish(path, content.as_bytes(), mode, Existing::Replace)
        .map_err(|why| RotationError::Write { path: path.into(), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::ca;
    use crate::pki::issuers::CaSettings;
    use proto::link::tls::{Credentials, Files, Role};
    use std::fs::read_to_string;
    use tempfile::TempDir;

    fn made() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        ca::init(dir.path(), &["localhost".into()], 30).unwrap();
        dir
    }

    fn files(dir: &TempDir) -> Files {
        Files::of(dir.path(), "cloud")
    }

    fn open(dir: &TempDir) -> Issuers {
        Issuers::open(CaSettings::in_dir(dir.path(), 1), &files(dir)).unwrap()
    }

    fn new_ca(dir: &TempDir) -> NewCa {
        let [cert, key] =
            ["ca.crt", "ca.key"].map(|name| read_to_string(dir.path().join(name)).unwrap());
        NewCa { cert, key: key.into(), root: None }
    }

    /// csi-cloud starts: its certificate and its CA can be used.
    fn starts(dir: &TempDir) -> Cas {
        Credentials::load(&files(dir), Role::Cloud).unwrap();
        open(dir).known()
    }

    #[test]
    fn another_ca_takes_over_and_the_old_one_goes() {
        let old = made();
        let new = made();
        let issuers = open(&old);
        let before = issuers.known().issuer;
        assert!(matches!(issuers.finish(), Err(RotationError::None)));
        assert!(matches!(issuers.start(&new_ca(&old)), Err(RotationError::Same)));
        issuers.start(&new_ca(&new)).unwrap();
        assert!(matches!(issuers.start(&new_ca(&made())), Err(RotationError::Under)));
        let Cas { issuer, own: of_cloud } = starts(&old);
        assert_eq!(issuer.roots().len(), 2, "both are trusted");
        assert_eq!(of_cloud.root_pin(), before.root_pin(), "joining edges still pin this");
        assert!(of_cloud.has_issued(&own(&files(&old)).unwrap()));
        assert_ne!(issuer.tag(), before.tag(), "edges are told to renew");
        issuers.finish().unwrap();
        let Cas { issuer, own: of_cloud } = starts(&old);
        assert_eq!(issuer.roots(), [issuer.root().clone()]);
        assert!(of_cloud.has_issued(&own(&files(&old)).unwrap()));
        assert_eq!(
            read_to_string(old.path().join("ca.crt")).unwrap().trim(),
            new_ca(&new).cert.trim()
        );
        assert!(!issuers.is_rotating());
    }

    #[test]
    fn a_broken_off_step_is_repeated_and_csi_cloud_starts_after_it() {
        let old = made();
        let new = made();
        let at = |name: &str| old.path().join(name);
        let issuers = open(&old);
        issuers.start(&new_ca(&new)).unwrap();
        let saved: Vec<_> = ["ca.crt", "ca.key", "next-ca.pem"]
            .map(|name| read_to_string(at(name)).unwrap())
            .into();
        issuers.finish().unwrap();
        // As after a power cut: the last files are as they were before.
        for left in [&["next-ca.pem"][..], &["next-ca.pem", "ca.key"]] {
            for (name, content) in ["ca.crt", "ca.key", "next-ca.pem"].iter().zip(&saved) {
                if left.contains(name) {
                    write(&at(name), content, 0o600).unwrap();
                }
            }
            starts(&old);
            open(&old).finish().unwrap();
            let Cas { issuer, .. } = starts(&old);
            assert_eq!(issuer.roots(), [issuer.root().clone()]);
            assert!(!open(&old).is_rotating());
        }
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let old = made();
        let new = made();
        let issuers = open(&old);
        let before = read_to_string(old.path().join("ca.crt")).unwrap();
        let mut mixed = new_ca(&new);
        mixed.key = new_ca(&old).key;
        assert!(matches!(
            issuers.start(&mixed),
            Err(RotationError::Issue(IssueError::Trial { .. }))
        ));
        let with_root = NewCa { root: Some(new_ca(&new).cert), ..new_ca(&new) };
        assert!(matches!(issuers.start(&with_root), Err(RotationError::OneFile(_))));
        assert_eq!(read_to_string(old.path().join("ca.crt")).unwrap(), before);
        assert!(!issuers.is_rotating());
    }
}
