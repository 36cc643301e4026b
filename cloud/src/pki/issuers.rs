//! The CA of the configuration, which is read again when its files change.
//!
//! cert-manager replaces a mounted Secret while csi-cloud runs. A file that is read while it is
//! replaced cannot do harm: what does not fit together is not used.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
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
    /// The life of a node's certificate.
    pub node_life: Duration,
    /// The life of csi-cloud's own certificate, in days.
    pub cloud_days: u16,
    /// A node's certificate that ended is renewed for so long, at most [`RENEWABLE`]. After that
    /// the node needs a new token.
    ///
    /// [`RENEWABLE`]: proto::names::certificate::RENEWABLE
    pub renew_after_end: Duration,
}

impl CaSettings {
    /// The CA that takes over, while the CA is rotated: key and certificates in one file.
    pub fn next(&self) -> PathBuf {
        self.key.with_file_name("next-ca.pem")
    }
}

/// The issuer of the configuration. Its files are read again when they change.
pub struct Issuers {
    settings: CaSettings,
    tls: Files,
    current: Mutex<Current>,
}

/// The CAs in use.
#[derive(Clone)]
pub struct Cas {
    /// Issues certificates to nodes.
    pub issuer: Arc<Issuer>,
    /// Issued csi-cloud's own certificate. It is another one while the CA is rotated.
    pub own: Arc<Issuer>,
}

impl Cas {
    fn open(settings: &CaSettings, tls: &Files) -> Result<Self, IssueError> {
        let base = Issuer::open(&settings.cert, &settings.key, &tls.ca);
        let next = settings.next();
        if !next.exists() {
            let base = Arc::new(base?);
            return Ok(Self { issuer: base.clone(), own: base });
        }
        let issuer = Arc::new(Issuer::open(&next, &next, &tls.ca)?);
        // Without it, the last step of a rotation broke off: `finish` is to be repeated.
        let own = base.map_or_else(|_| issuer.clone(), Arc::new);
        Ok(Self { issuer, own })
    }
}

struct Current {
    cas: Cas,
    /// The files that were read last, used or not.
    read: Vec<Vec<u8>>,
}

impl Issuers {
    /// Opens the CA of these settings; `tls` says which roots both ends trust, and where the
    /// certificate of csi-cloud is.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn open(settings: CaSettings, tls: &Files) -> Result<Self, IssueError> {
        let cas = Cas::open(&settings, tls)?;
        let current = Current { cas, read: contents(&settings, tls) };
        Ok(Self { settings, tls: tls.clone(), current: Mutex::new(current) })
    }

    /// The settings.
    pub fn settings(&self) -> &CaSettings {
        &self.settings
    }

    /// The files of csi-cloud's own certificate.
    pub fn tls(&self) -> &Files {
        &self.tls
    }

    /// The CA that issues to nodes; see [`Self::read_again`].
    pub fn current(&self) -> Arc<Issuer> {
        self.read_again().issuer
    }

    /// The CAs as they were read last, without a look at the files.
    pub fn known(&self) -> Cas {
        self.current.lock().cas.clone()
    }

    /// The CAs. Files that changed are read again; if they cannot be used, that is logged once, and
    /// the CAs stay as they were.
    pub fn read_again(&self) -> Cas {
        let mut current = self.current.lock();
        let read = contents(&self.settings, &self.tls);
        if read != current.read {
            match Cas::open(&self.settings, &self.tls) {
                Ok(cas) => {
                    info!("the CA's files changed; certificates are issued with them");
                    current.cas = cas;
                }
                Err(error) => {
                    let error = chain(&error);
                    warn!(error, "the CA's files changed and cannot be used; the CA stays");
                }
            }
            current.read = read;
        }
        current.cas.clone()
    }
}

/// The contents of the CA's files; nothing for one that cannot be read.
fn contents(settings: &CaSettings, tls: &Files) -> Vec<Vec<u8>> {
    let paths = [settings.cert.as_path(), &settings.key, &tls.ca, &settings.next()];
    paths.map(|path| std::fs::read(path).unwrap_or_default()).into()
}

#[cfg(test)]
impl CaSettings {
    /// The CA in this directory; all lives but csi-cloud's are a day.
    pub(crate) fn in_dir(dir: &std::path::Path, cloud_days: u16) -> Self {
        let [cert, key] = ["ca.crt", "ca.key"].map(|name| dir.join(name));
        let day = crate::pki::issuer::DAY;
        Self { cert, key, node_life: day, cloud_days, renew_after_end: day }
    }
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
        let node_life = Duration::from_secs(86_400);
        let settings = CaSettings {
            cert: cert.clone(),
            key: key.clone(),
            node_life,
            cloud_days: 1,
            renew_after_end: node_life,
        };
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
