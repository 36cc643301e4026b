//! The certificate of csi-cloud itself, which it renews with its own CA.
//!
//! Its key stays, so one file is replaced, in one step. A certificate of another CA is left to
//! whoever made it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proto::host::chain;
use proto::host::publish::{Existing, publish};
use proto::link::tls::{Credentials, Files, Role};
use proto::names::certificate::{Validity, hosts_of};
use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::time::sleep;
use tracing::{info, warn};
use zeroize::Zeroizing;

use crate::pki::enrolment::Enrolment;
use crate::pki::issuer::{CaTag, IssueError, Issuer};
use crate::pki::issuers::Issuers;

/// The interval of checks of the CA's files.
const LOOK: Duration = Duration::from_secs(10);
/// The pause after a renewal that failed.
const AGAIN: Duration = Duration::from_secs(600);
/// The part of its life after which the certificate is renewed.
const RENEW_AFTER: f64 = 0.5;

/// The reason why the certificate of csi-cloud is not renewed.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// A file cannot be read or written.
    #[error("csi-cloud's own certificate: {} cannot be {did}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        did: &'static str,
        /// The cause.
        why: String,
    },
    /// A new one would name less.
    #[error(
        "csi-cloud's own certificate in {} names something that is neither a DNS name nor an \
         address, which a new one would lose; replace it by hand",
        .0.display()
    )]
    Names(PathBuf),
    /// The key would be lost.
    #[error(
        "csi-cloud's own certificate and key are one file, {}; use two, or replace it by hand",
        .0.display()
    )]
    OneFile(PathBuf),
    /// The CA does not issue it.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// Reads the certificate of csi-cloud.
///
/// # Errors
/// It cannot be read.
pub fn own(files: &Files) -> Result<CertificateDer<'static>, OwnError> {
    CertificateDer::from_pem_file(&files.cert).map_err(|error| OwnError::File {
        path: files.cert.clone(),
        did: "read",
        why: error.to_string(),
    })
}

/// Replaces the certificate of csi-cloud by one of this CA, for the same hosts and the same key.
///
/// # Errors
/// See [`OwnError`]. The old one stays.
pub fn renew(issuer: &Issuer, files: &Files, days: u16) -> Result<(), OwnError> {
    if files.is_identity() {
        return Err(OwnError::OneFile(files.cert.clone()));
    }
    let hosts = hosts_of(&own(files)?).filter(|hosts| !hosts.is_empty());
    let hosts = hosts.ok_or_else(|| OwnError::Names(files.cert.clone()))?;
    reissue(issuer, files, &hosts, days)
}

/// Replaces the certificate of csi-cloud by one of this CA for these hosts, with the same key.
///
/// # Errors
/// See [`OwnError`]. The old one stays.
pub(super) fn reissue(
    issuer: &Issuer,
    files: &Files,
    hosts: &[String],
    days: u16,
) -> Result<(), OwnError> {
    let failed = |path: &PathBuf, did, why: String| OwnError::File { path: path.clone(), did, why };
    let key = std::fs::read_to_string(&files.key)
        .map(Zeroizing::new)
        .map_err(|error| failed(&files.key, "read", error.to_string()))?;
    let key = KeyPair::from_pem(&key)
        .map_err(|error| failed(&files.key, "used to renew it", error.to_string()))?;
    let issued = issuer.issue_cloud(hosts, &key, days)?;
    publish(&files.cert, issued.chain.as_bytes(), 0o644, Existing::Replace)
        .map_err(|error| failed(&files.cert, "written", error.to_string()))
}

/// True if a certificate is due for renewal, and the CA that issued it is there.
fn is_due(own: &CertificateDer<'_>, issuers: &Issuers, now: SystemTime) -> bool {
    let Ok(validity) = Validity::of(own) else { return false };
    let due = validity.not_before + validity.life().mul_f64(RENEW_AFTER);
    now >= due && issuers.known().own.has_issued(own)
}

/// Renews the certificate in time, and calls `on_issuer` whenever another CA issues. Never
/// ends, unless there is no CA.
pub async fn keep(
    enrolment: Arc<Enrolment>,
    credentials: Credentials,
    on_issuer: impl Fn(CaTag) + Send + Sync,
) {
    if enrolment.issuers().is_none() {
        return;
    }
    loop {
        let enrolment = enrolment.clone();
        let credentials = credentials.clone();
        // A file system that hangs delays this task only.
        let looked = tokio::task::spawn_blocking(move || look(enrolment.issuers()?, &credentials));
        let Ok(Some((tag, kept))) = looked.await else { return };
        on_issuer(tag);
        let pause = match kept {
            Ok(()) => LOOK,
            Err(error) => {
                let error = chain(&error);
                warn!(%error, "csi-cloud's own certificate is not renewed; trying again");
                AGAIN
            }
        };
        sleep(pause).await;
    }
}

/// Reads the CA again, and renews the certificate if it is due.
fn look(issuers: &Issuers, credentials: &Credentials) -> Option<(CaTag, Result<(), OwnError>)> {
    let tag = issuers.read_again().issuer.tag();
    let files = issuers.tls();
    let certificate = match own(files) {
        Ok(certificate) => certificate,
        Err(error) => return Some((tag, Err(error))),
    };
    if !is_due(&certificate, issuers, SystemTime::now()) {
        return Some((tag, Ok(())));
    }
    let renewed = renew(&issuers.known().own, files, issuers.settings().cloud_days);
    if renewed.is_ok() {
        let days = issuers.settings().cloud_days;
        info!(days, "csi-cloud's own certificate was renewed; new connections use it");
        if let Err(error) = credentials.reload(files, Role::Cloud) {
            warn!(error = chain(&error), "csi-cloud's new certificate cannot be used");
        }
    }
    Some((tag, renewed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::ca;
    use crate::pki::issuers::CaSettings;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn its_own_certificate_is_renewed_in_time_with_its_hosts_and_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["cloud.example".to_owned(), "127.0.0.1".to_owned()];
        ca::init(dir.path(), &hosts, 30).unwrap();
        let at = |name: &str| dir.path().join(name);
        let files = Files::of(dir.path(), "cloud");
        let settings =
            CaSettings { cert: at("ca.crt"), key: at("ca.key"), node_life: DAY, cloud_days: 90 };
        let issuers = Issuers::open(settings, &files).unwrap();
        let before = own(&files).unwrap();
        let now = SystemTime::now();
        assert!(!is_due(&before, &issuers, now + DAY * 14));
        assert!(is_due(&before, &issuers, now + DAY * 16));
        let key = std::fs::read(&files.key).unwrap();
        renew(&issuers.known().own, &files, 90).unwrap();
        let after = own(&files).unwrap();
        assert_eq!(hosts_of(&after).unwrap(), hosts);
        assert_eq!(std::fs::read(&files.key).unwrap(), key);
        assert!(Validity::of(&after).unwrap().life() > DAY * 89);
        Credentials::load(&files, Role::Cloud).unwrap();
    }

    #[test]
    fn a_certificate_of_another_ca_or_with_other_names_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        for dir in [&dir, &other] {
            ca::init(dir.path(), &["localhost".into()], 1).unwrap();
        }
        let at = |name: &str| dir.path().join(name);
        let files = Files::of(dir.path(), "cloud");
        let settings =
            CaSettings { cert: at("ca.crt"), key: at("ca.key"), node_life: DAY, cloud_days: 1 };
        let issuers = Issuers::open(settings, &files).unwrap();
        let foreign = own(&Files::of(other.path(), "cloud")).unwrap();
        assert!(!is_due(&foreign, &issuers, SystemTime::now() + DAY * 400));
        let one = Files { key: files.cert.clone(), ..files.clone() };
        assert!(matches!(renew(&issuers.known().own, &one, 1), Err(OwnError::OneFile(_))));
        ca::issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap();
        let node = Files::of(dir.path(), "n1");
        assert!(matches!(renew(&issuers.known().own, &node, 1), Err(OwnError::Names(_))));
    }
}
