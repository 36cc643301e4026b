//! The certificate of csi-cloud itself, which it renews with its own CA.
//!
//! Its key stays, so one file is replaced, in one step. A certificate of another CA is left to
//! whoever made it. The clock of csi-cloud may have been ahead when it renewed: a renewal begins
//! with the certificate before it, so that edges with right clocks accept each of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proto::host::chain;
use proto::host::clock;
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
use crate::pki::issuer::{CaTag, DAY, IssueError, Issuer};
use crate::pki::issuers::Issuers;

/// The interval of checks of the CA's files.
const LOOK: Duration = Duration::from_secs(10);
/// The pause after a renewal that failed.
const AGAIN: Duration = Duration::from_secs(600);
/// It is renewed if this part of a new one's life is left.
const RENEW_LEFT: f64 = 0.5;

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
    renew_at(issuer, files, days, SystemTime::now())
}

fn renew_at(issuer: &Issuer, files: &Files, days: u16, now: SystemTime) -> Result<(), OwnError> {
    if files.is_identity() {
        return Err(OwnError::OneFile(files.cert.clone()));
    }
    let before = own(files)?;
    let hosts = hosts_of(&before).filter(|hosts| !hosts.is_empty());
    let hosts = hosts.ok_or_else(|| OwnError::Names(files.cert.clone()))?;
    let fresh = issuer.validity_from(now, DAY * u32::from(days))?;
    let validity = renewed(Validity::of(&before).ok(), fresh, issuer.validity(), now);
    write(issuer, files, &hosts, validity)
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
    let now = SystemTime::now();
    let fresh = issuer.validity_from(now, DAY * u32::from(days))?;
    let before = Validity::of(&own(files)?).ok();
    write(issuer, files, hosts, renewed(before, fresh, issuer.validity(), now))
}

fn write(
    issuer: &Issuer,
    files: &Files,
    hosts: &[String],
    validity: Validity,
) -> Result<(), OwnError> {
    let failed = |path: &PathBuf, did, why: String| OwnError::File { path: path.clone(), did, why };
    let key = std::fs::read_to_string(&files.key)
        .map(Zeroizing::new)
        .map_err(|error| failed(&files.key, "read", error.to_string()))?;
    let key = KeyPair::from_pem(&key)
        .map_err(|error| failed(&files.key, "used to renew it", error.to_string()))?;
    let issued = issuer.issue_cloud_for(hosts, &key, validity)?;
    publish(&files.cert, issued.chain.as_bytes(), 0o644, Existing::Replace)
        .map_err(|error| failed(&files.cert, "written", error.to_string()))
}

/// The validity of the certificate after `before`, which would be `fresh` without it. It begins
/// with the one before, or with its CA if that began later. If the one before has not begun, either
/// clock may be wrong, and the new one does not end earlier.
fn renewed(before: Option<Validity>, fresh: Validity, ca: Validity, now: SystemTime) -> Validity {
    let Some(before) = before else { return fresh };
    let has_begun = before.not_before <= now;
    let not_before = before.not_before.min(fresh.not_before).max(ca.not_before);
    let not_after = if has_begun { fresh.not_after } else { fresh.not_after.max(before.not_after) };
    Validity { not_before, not_after: not_after.min(ca.not_after) }
}

/// True if the CA that issued a certificate is there, and the certificate is due for renewal: a new
/// one would end later, and half of its life or less is left of this one.
fn is_due(own: &CertificateDer<'_>, issuers: &Issuers, now: SystemTime) -> bool {
    let Ok(validity) = Validity::of(own) else { return false };
    let issuer = issuers.known().own;
    if !issuer.has_issued(own) {
        return false;
    }
    let life = DAY * u32::from(issuers.settings().cloud_days);
    let due = validity.left(now) <= life.min(validity.life()).mul_f64(RENEW_LEFT);
    let ends_later = (now + life).min(issuer.validity().not_after) > validity.not_after;
    due && ends_later || is_early(validity, issuer.validity(), now)
}

/// True if a certificate has not begun, and its CA has: the clock was ahead when it was issued, or
/// is behind now.
fn is_early(own: Validity, ca: Validity, now: SystemTime) -> bool {
    own.not_before > now && ca.not_before <= now
}

/// Renews the certificate before it is used, if it has not begun and its CA has. A failure is
/// logged.
pub fn begin_earlier(issuers: &Issuers) {
    let issuer = issuers.known().own;
    let Ok(certificate) = own(issuers.tls()) else { return };
    let Ok(validity) = Validity::of(&certificate) else { return };
    if !issuer.has_issued(&certificate) || !is_early(validity, issuer.validity(), SystemTime::now())
    {
        return;
    }
    match renew(&issuer, issuers.tls(), issuers.settings().cloud_days) {
        Ok(()) => warn!(
            "csi-cloud's own certificate had not begun: it was issued while this machine's clock \
             was ahead, or the clock is behind now. It was issued again"
        ),
        Err(error) => {
            warn!(error = chain(&error), "csi-cloud's own certificate has not begun");
        }
    }
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
        let looked = tokio::task::spawn_blocking(move || {
            look(enrolment.issuers()?, &credentials, SystemTime::now())
        });
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
fn look(
    issuers: &Issuers,
    credentials: &Credentials,
    now: SystemTime,
) -> Option<(CaTag, Result<(), OwnError>)> {
    let tag = issuers.read_again().issuer.tag();
    let files = issuers.tls();
    let certificate = match own(files) {
        Ok(certificate) => certificate,
        Err(error) => return Some((tag, Err(error))),
    };
    if clock::is_doubted() || !is_due(&certificate, issuers, now) {
        return Some((tag, Ok(())));
    }
    let renewed = renew_at(&issuers.known().own, files, issuers.settings().cloud_days, now);
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
    use std::path::Path;

    use crate::pki::ca;
    use crate::pki::issuers::CaSettings;

    #[test]
    fn its_own_certificate_is_renewed_in_time_with_its_hosts_and_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["cloud.example".to_owned(), "127.0.0.1".to_owned()];
        ca::init(dir.path(), &hosts, 30).unwrap();
        let files = Files::of(dir.path(), "cloud");
        let issuers = Issuers::open(CaSettings::in_dir(dir.path(), 90), &files).unwrap();
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
        let files = Files::of(dir.path(), "cloud");
        let issuers = Issuers::open(CaSettings::in_dir(dir.path(), 1), &files).unwrap();
        let foreign = own(&Files::of(other.path(), "cloud")).unwrap();
        assert!(!is_due(&foreign, &issuers, SystemTime::now() + DAY * 400));
        let one = Files { key: files.cert.clone(), ..files.clone() };
        assert!(matches!(renew(&issuers.known().own, &one, 1), Err(OwnError::OneFile(_))));
        ca::issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap();
        let node = Files::of(dir.path(), "n1");
        assert!(matches!(renew(&issuers.known().own, &node, 1), Err(OwnError::Names(_))));
    }

    /// A CA, csi-cloud's certificate of 90 days, and their settings.
    fn installation(dir: &Path) -> (Issuers, Credentials) {
        ca::init(dir, &["localhost".into()], 90).unwrap();
        let files = Files::of(dir, "cloud");
        let issuers = Issuers::open(CaSettings::in_dir(dir, 90), &files).unwrap();
        let credentials = Credentials::load(&files, Role::Cloud).unwrap();
        (issuers, credentials)
    }

    #[test]
    fn a_renewal_while_the_clock_is_ahead_is_valid_for_right_clocks() {
        let dir = tempfile::tempdir().unwrap();
        let (issuers, credentials) = installation(dir.path());
        let before = Validity::of(&own(issuers.tls()).unwrap()).unwrap();
        let ahead = SystemTime::now() + DAY * 200;
        look(&issuers, &credentials, ahead).unwrap().1.unwrap();
        let after = Validity::of(&own(issuers.tls()).unwrap()).unwrap();
        assert!(after.not_after > before.not_after + DAY * 190, "it was renewed: {after:?}");
        assert_eq!(after.not_before, before.not_before);
        Credentials::load(issuers.tls(), Role::Cloud).unwrap();
        // The clock is right again: it is not replaced by one that ends earlier.
        let kept = own(issuers.tls()).unwrap();
        for days in [0, 100, 244] {
            look(&issuers, &credentials, SystemTime::now() + DAY * days).unwrap().1.unwrap();
            assert_eq!(own(issuers.tls()).unwrap(), kept, "after {days} days");
        }
        look(&issuers, &credentials, SystemTime::now() + DAY * 250).unwrap().1.unwrap();
        assert_ne!(own(issuers.tls()).unwrap(), kept, "by the time that is left");
    }

    #[test]
    fn a_certificate_that_has_not_begun_is_issued_again_before_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let (issuers, _) = installation(dir.path());
        let issuer = issuers.known().own;
        // An older csi-cloud renewed it while its clock was ahead.
        let ahead = issuer.validity_from(SystemTime::now() + DAY * 200, DAY * 90).unwrap();
        write(&issuer, issuers.tls(), &["localhost".into()], ahead).unwrap();
        assert!(Credentials::load(issuers.tls(), Role::Cloud).is_err());
        begin_earlier(&issuers);
        Credentials::load(issuers.tls(), Role::Cloud).unwrap();
        let begun = Validity::of(&own(issuers.tls()).unwrap()).unwrap();
        assert!(begun.not_after >= ahead.not_after - Duration::from_secs(1), "{begun:?}");
        // With a clock in 1970 nothing is issued: the CA has not begun either.
        assert!(!is_early(begun, issuer.validity(), SystemTime::UNIX_EPOCH));
        assert!(!is_due(&own(issuers.tls()).unwrap(), &issuers, SystemTime::UNIX_EPOCH));
    }
}
