//! The CA of the configuration, which is read again when its files change.
//!
//! cert-manager replaces a mounted Secret while csi-cloud runs. A file that is read while it is
//! replaced cannot do harm: what does not fit together is not used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use proto::host::chain;
use proto::link::tls::Files;
use tracing::{info, warn};

use crate::pki::issuer::{IssueError, Issuer};

/// The section `[ca]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaSettings {
    /// The certificate of the CA that issues, PEM, and those between it and the root.
    pub cert: PathBuf,
    /// Its private key: PKCS #8, PEM.
    pub key: PathBuf,
    /// The life of a node's certificate, in days.
    pub node_days: u16,
    /// The life of csi-cloud's own certificate, in days.
    pub cloud_days: u16,
}

/// The issuer of the configuration. Its files are read again when they change.
pub struct Issuers {
    settings: CaSettings,
    /// The roots that both ends trust.
    roots: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    issuer: Arc<Issuer>,
    /// What was read last, used or not.
    read: Vec<Vec<u8>>,
}

impl Issuers {
    /// Opens the CA of these settings; `tls` says which roots both ends trust.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn open(settings: CaSettings, tls: &Files) -> Result<Self, IssueError> {
        let issuer = Issuer::open(&settings.cert, &settings.key, &tls.ca)?;
        let read = contents(&settings, &tls.ca);
        let current = Current { issuer: Arc::new(issuer), read };
        Ok(Self { settings, roots: tls.ca.clone(), current: Mutex::new(current) })
    }

    /// The settings.
    pub fn settings(&self) -> &CaSettings {
        &self.settings
    }

    /// The CA. Files that changed are read again; if they cannot be used, that is logged once, and
    /// the CA stays as it was.
    pub fn current(&self) -> Arc<Issuer> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let read = contents(&self.settings, &self.roots);
        if read != current.read {
            match Issuer::open(&self.settings.cert, &self.settings.key, &self.roots) {
                Ok(issuer) => {
                    info!("the CA's files changed; certificates are issued with them");
                    current.issuer = Arc::new(issuer);
                }
                Err(error) => {
                    let error = chain(&error);
                    warn!(error, "the CA's files changed and cannot be used; the CA stays");
                }
            }
            current.read = read;
        }
        current.issuer.clone()
    }
}

/// The contents of the CA's files; nothing for one that cannot be read.
fn contents(settings: &CaSettings, roots: &Path) -> Vec<Vec<u8>> {
    let paths = [settings.cert.as_path(), &settings.key, roots];
    paths.map(|path| std::fs::read(path).unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::issuer::tests::{intermediate, write};
    use std::fs;

    #[test]
    fn changed_files_are_read_again_and_bad_ones_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key, root) = intermediate(&dir);
        let settings =
            CaSettings { cert: cert.clone(), key: key.clone(), node_days: 1, cloud_days: 1 };
        let tls = Files { ca: root, cert: "x".into(), key: "y".into() };
        let issuers = Issuers::open(settings, &tls).unwrap();
        let before = issuers.current();
        let good = fs::read_to_string(&key).unwrap();
        write(&dir, "int.key", "half a fi");
        assert!(Arc::ptr_eq(&before, &issuers.current()), "the CA stays");
        write(&dir, "int.key", &good);
        let after = issuers.current();
        assert!(!Arc::ptr_eq(&before, &after));
        assert!(Arc::ptr_eq(&after, &issuers.current()));
    }
}
