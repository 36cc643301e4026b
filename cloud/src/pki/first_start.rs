//! The first start: csi-cloud makes its CA and its own certificate, if `[ca] hosts` asks for them.
//!
//! All files are in one directory, which appears whole or not at all. A file that is there is never
//! replaced, except csi-cloud's own certificate by one of the same CA and key.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use proto::host::files::make_private;
use proto::host::publish::{Existing, publish};
use proto::link::tls::{Credentials, Files, Role, TlsError};
use proto::names::certificate::{Validity, hosts_of};
use rcgen::KeyPair;
use tracing::info;

use crate::pki::ca;
use crate::pki::issuer::{IssueError, Issuer};
use crate::pki::issuers::{CaSettings, Issuers};
use crate::pki::own::{OwnError, own, reissue};

/// The CA's life in days. Another one takes over before (`csi-cloud ca rotate`).
const CA_DAYS: u16 = 3650;
/// The mode of a private key, and of what everybody may read.
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

/// What csi-cloud makes at its first start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstStart {
    /// The names and addresses at which csi-cloud is dialed; at least one.
    hosts: Vec<String>,
    /// The directory of all files.
    directory: PathBuf,
    /// The file of the store, if it is in one. csi-cloud makes it after its CA.
    store: Option<PathBuf>,
}

/// The reason why csi-cloud cannot make files at its first start, by the configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FirstStartFault {
    /// The files are in several directories.
    #[error(
        "[ca] hosts: csi-cloud makes one directory with all files, so [tls] and [ca] have to name \
         four files in one directory: one for both [tls] ca and [ca] cert, [tls] cert, [tls] key \
         and [ca] key"
    )]
    Files,
    /// A host is neither a name nor an address.
    #[error("[ca] hosts: {0:?} is neither a DNS name nor an IP address")]
    Host(String),
}

/// The reason why csi-cloud has no CA.
#[derive(Debug, thiserror::Error)]
pub enum FirstStartError {
    /// Some files are there, and others are not.
    #[error(
        "of csi-cloud's CA and certificate {there} {are} there, and {missing} not. Nothing was \
         made or changed: put the missing files back from a backup. If no node has joined yet, \
         move {directory} away, and csi-cloud makes them anew",
        are = if there.contains(", ") { "are" } else { "is" },
        directory = directory.display()
    )]
    Partly {
        /// The directory.
        directory: PathBuf,
        /// The files that are there.
        there: String,
        /// The files that are not.
        missing: String,
    },
    /// Other files are in the directory.
    #[error(
        "csi-cloud has no CA yet and makes the directory {}, which has other files; empty it, or \
         name another directory in [tls] and [ca]",
        .0.display()
    )]
    NotEmpty(PathBuf),
    /// The store is older than the CA would be.
    #[error(
        "the store {store} is there, and csi-cloud's CA in {directory} is not. The nodes in the \
         store trust another CA, and a new one would lock all of them out, so none was made: put \
         {directory} back from a backup. If the CA is elsewhere, name its files in [tls] and [ca] \
         and take out [ca] hosts (in the chart: set join.caHash, and make the Secrets)",
        store = store.display(), directory = directory.display()
    )]
    Lost {
        /// The store's file.
        store: PathBuf,
        /// The directory of the CA.
        directory: PathBuf,
    },
    /// The file system refuses.
    #[error("csi-cloud's CA: {} cannot be {did}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The action that failed.
        did: &'static str,
        /// The cause.
        #[source]
        why: io::Error,
    },
    /// A certificate cannot be made.
    #[error("csi-cloud's CA cannot be made")]
    Make(#[from] rcgen::Error),
    /// What was made cannot be used.
    #[error("what csi-cloud made as its CA cannot be used; nothing of it was kept")]
    Unusable(#[from] TlsError),
    /// The CA cannot issue.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The certificate cannot be issued again.
    #[error(transparent)]
    Own(#[from] OwnError),
}

impl FirstStart {
    /// What is made for these hosts in the files of the configuration.
    ///
    /// # Errors
    /// All faults of the settings.
    pub fn new(
        hosts: Vec<String>,
        settings: &CaSettings,
        tls: &Files,
        store: Option<PathBuf>,
    ) -> Result<Self, Vec<FirstStartFault>> {
        let mut faults: Vec<_> = hosts
            .iter()
            .filter(|host| !is_host(host))
            .cloned()
            .map(FirstStartFault::Host)
            .collect();
        let [ca, key, cert, own_key] = files(settings, tls);
        let directory = key.parent().filter(|_| settings.cert == tls.ca);
        let are_there = [ca, cert, own_key].iter().all(|path| path.parent() == directory);
        let are_four = BTreeSet::from([ca, key, cert, own_key]).len() == 4;
        match directory {
            Some(directory) if are_four && are_there => {
                let directory = directory.to_owned();
                if faults.is_empty() { Ok(Self { hosts, directory, store }) } else { Err(faults) }
            }
            _ => {
                faults.push(FirstStartFault::Files);
                Err(faults)
            }
        }
    }

    /// Makes the CA and csi-cloud's certificate if none of their files is there. If the certificate
    /// has ended or is for other hosts, its CA issues it again.
    ///
    /// # Errors
    /// See [`FirstStartError`]; nothing was changed.
    pub fn prepare(&self, settings: &CaSettings, tls: &Files) -> Result<(), FirstStartError> {
        let (there, missing) = self.look(settings, tls)?;
        if !there.is_empty() && !missing.is_empty() {
            let directory = self.directory.clone();
            let [there, missing] = [there, missing].map(|files| files.join(", "));
            return Err(FirstStartError::Partly { directory, there, missing });
        }
        if there.is_empty() {
            return self.make(settings, tls);
        }
        self.keep_current(settings, tls)
    }

    /// The names of the files that are there, and of those that are missing.
    fn look(
        &self,
        settings: &CaSettings,
        tls: &Files,
    ) -> Result<(Vec<String>, Vec<String>), FirstStartError> {
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for path in files(settings, tls) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match fs::symlink_metadata(path) {
                Ok(_) => there.push(name),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(name),
                Err(why) => return Err(failed(path, "looked at")(why)),
            }
        }
        Ok((there, missing))
    }

    /// Makes all files beside the directory, and renames it.
    fn make(&self, settings: &CaSettings, tls: &Files) -> Result<(), FirstStartError> {
        let directory = &self.directory;
        if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(FirstStartError::NotEmpty(directory.clone()));
        }
        if let Some(store) = self.store.as_ref().filter(|store| store.exists()) {
            let (store, directory) = (store.clone(), directory.clone());
            return Err(FirstStartError::Lost { store, directory });
        }
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let stage = parent.join(format!(".{name}.new"));
        // What a start that broke off has left was never used.
        match fs::remove_dir_all(&stage) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&stage, "removed")(why));
            }
            Ok(()) | Err(_) => {}
        }
        let made = self.stage(&stage, settings, tls).and_then(|()| {
            fs::rename(&stage, directory).map_err(failed(directory, "made"))?;
            let synced = File::open(parent).and_then(|parent| parent.sync_all());
            synced.map_err(failed(parent, "written to the disk"))
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&stage);
        }
        made?;
        info!(
            directory = %directory.display(),
            hosts = self.hosts.join(" "),
            "made csi-cloud's CA and certificate; keep a copy, or all nodes may have to join anew"
        );
        Ok(())
    }

    /// Writes all files into the stage, and tries them.
    fn stage(
        &self,
        stage: &Path,
        settings: &CaSettings,
        tls: &Files,
    ) -> Result<(), FirstStartError> {
        make_private(stage).map_err(failed(stage, "made"))?;
        let [cert, key, own_cert, own_key] = files(settings, tls).map(|path| within(stage, path));
        let (certificate, pair) = ca::root(CA_DAYS)?;
        write(&cert, &certificate.pem(), PUBLIC)?;
        write(&key, &ca::pem(&pair), PRIVATE)?;
        let issuer = Issuer::open(&cert, &key, &cert)?;
        let own_pair = KeyPair::generate()?;
        let issued = issuer.issue_cloud(&self.hosts, &own_pair, settings.cloud_days)?;
        write(&own_cert, &issued.chain, PUBLIC)?;
        write(&own_key, &ca::pem(&own_pair), PRIVATE)?;
        let made = Files { ca: cert, cert: own_cert, key: own_key };
        Credentials::load(&made, Role::Cloud)?;
        Ok(())
    }

    /// Has the CA issue the certificate again, if that has ended or is for other hosts.
    fn keep_current(&self, settings: &CaSettings, tls: &Files) -> Result<(), FirstStartError> {
        let issuer = Issuers::open(settings.clone(), tls)?.known().own;
        let certificate = own(tls)?;
        let ended =
            Validity::of(&certificate).is_ok_and(|validity| validity.ended(SystemTime::now()));
        let named = hosts_of(&certificate);
        let is_current = !ended && named.is_some_and(|hosts| same(&hosts, &self.hosts));
        if is_current || !issuer.has_issued(&certificate) {
            return Ok(());
        }
        reissue(&issuer, tls, &self.hosts, settings.cloud_days)?;
        info!(hosts = self.hosts.join(" "), "csi-cloud's own certificate was issued again");
        Ok(())
    }
}

/// The CA's certificate and key, and csi-cloud's own.
fn files<'a>(settings: &'a CaSettings, tls: &'a Files) -> [&'a Path; 4] {
    [&settings.cert, &settings.key, &tls.cert, &tls.key]
}

fn failed<'a>(path: &'a Path, did: &'static str) -> impl Fn(io::Error) -> FirstStartError + 'a {
    move |why| FirstStartError::File { path: path.to_owned(), did, why }
}

/// True for a DNS name and for an IP address.
fn is_host(host: &str) -> bool {
    rustls::pki_types::ServerName::try_from(host).is_ok()
}

/// True if two lists have the same hosts, in any order and form.
fn same(one: &[String], other: &[String]) -> bool {
    normals(one) == normals(other)
}

fn normals(hosts: &[String]) -> BTreeSet<String> {
    hosts.iter().map(|host| normal(host)).collect()
}

/// A host in the form in which two can be compared.
fn normal(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

/// The path of a file while it is staged.
fn within(stage: &Path, path: &Path) -> PathBuf {
    stage.join(path.file_name().unwrap_or_default())
}

fn write(path: &Path, pem: &str, mode: u32) -> Result<(), FirstStartError> {
    publish(path, pem.as_bytes(), mode, Existing::Keep).map_err(failed(path, "written"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    struct Made {
        dir: TempDir,
        settings: CaSettings,
        tls: Files,
    }

    impl Made {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let pki = dir.path().join("pki");
            let settings = CaSettings::in_dir(&pki, 90);
            let tls = Files::of(&pki, "cloud");
            Self { dir, settings, tls }
        }

        fn start(&self, hosts: &[&str]) -> FirstStart {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            let store = Some(self.dir.path().join("store"));
            FirstStart::new(hosts, &self.settings, &self.tls, store).unwrap()
        }

        fn prepare(&self, hosts: &[&str]) -> Result<(), FirstStartError> {
            self.start(hosts).prepare(&self.settings, &self.tls)
        }

        fn read(&self) -> Vec<Vec<u8>> {
            files(&self.settings, &self.tls).map(|path| fs::read(path).unwrap_or_default()).into()
        }

        fn hosts(&self) -> Vec<String> {
            hosts_of(&own(&self.tls).unwrap()).unwrap()
        }
    }

    #[test]
    fn the_first_start_makes_all_files_and_the_second_one_uses_them() {
        let made = Made::new();
        // What a start that broke off has left.
        let stage = made.dir.path().join(".pki.new");
        fs::create_dir(&stage).unwrap();
        publish(&stage.join("ca.key"), b"half", 0o600, Existing::Keep).unwrap();
        made.prepare(&["cloud.example", "10.0.0.1"]).unwrap();
        assert_eq!(made.hosts(), ["cloud.example", "10.0.0.1"]);
        assert!(!stage.exists());
        for (path, mode) in
            files(&made.settings, &made.tls).into_iter().zip([0o644, 0o600, 0o644, 0o600])
        {
            let found = fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{}", path.display());
        }
        let directory = fs::metadata(made.dir.path().join("pki")).unwrap();
        assert_eq!(directory.permissions().mode() & 0o777, 0o700);
        Credentials::load(&made.tls, Role::Cloud).unwrap();
        let issuers = Issuers::open(made.settings.clone(), &made.tls).unwrap();
        assert!(issuers.known().own.has_issued(&own(&made.tls).unwrap()), "it renews itself");
        let before = made.read();
        publish(&made.dir.path().join("store"), b"", 0o600, Existing::Keep).unwrap();
        made.prepare(&["10.0.0.1", "Cloud.example"]).unwrap();
        assert_eq!(made.read(), before);
    }

    #[test]
    fn an_empty_directory_is_taken_and_one_with_other_files_is_not() {
        let made = Made::new();
        let directory = made.dir.path().join("pki");
        fs::create_dir(&directory).unwrap();
        publish(&directory.join("notes"), b"x", 0o600, Existing::Keep).unwrap();
        let error = made.prepare(&["h"]).unwrap_err();
        assert!(matches!(error, FirstStartError::NotEmpty(_)), "{error}");
        fs::remove_file(directory.join("notes")).unwrap();
        made.prepare(&["h"]).unwrap();
        assert_eq!(made.hosts(), ["h"]);
    }

    #[test]
    fn a_missing_file_is_named_and_never_made_again() {
        for lost in 0..4 {
            let made = Made::new();
            made.prepare(&["h"]).unwrap();
            fs::remove_file(files(&made.settings, &made.tls)[lost]).unwrap();
            let before = made.read();
            let error = made.prepare(&["h"]).unwrap_err().to_string();
            let name = ["ca.crt", "ca.key", "cloud.crt", "cloud.key"][lost];
            assert!(error.contains(&format!("and {name} not")), "{error}");
            assert!(error.contains("from a backup"), "{error}");
            assert_eq!(made.read(), before);
        }
    }

    #[test]
    fn a_store_without_its_ca_gets_no_new_one() {
        let made = Made::new();
        publish(&made.dir.path().join("store"), b"", 0o600, Existing::Keep).unwrap();
        let error = made.prepare(&["h"]).unwrap_err();
        assert!(matches!(error, FirstStartError::Lost { .. }), "{error}");
        assert!(error.to_string().contains("lock all of them out"), "{error}");
        assert!(
            !made.dir.path().join("pki").exists() && !made.dir.path().join(".pki.new").exists()
        );
    }

    #[test]
    fn other_hosts_and_an_ended_certificate_are_issued_again_with_the_same_key_and_ca() {
        let made = Made::new();
        made.prepare(&["h"]).unwrap();
        let before = made.read();
        made.prepare(&["h", "other.example"]).unwrap();
        assert_eq!(made.hosts(), ["h", "other.example"]);
        let after = made.read();
        assert_eq!((&after[0], &after[1], &after[3]), (&before[0], &before[1], &before[3]));
        let issuer = Issuer::open(&made.settings.cert, &made.settings.key, &made.tls.ca).unwrap();
        let pem = fs::read_to_string(&made.tls.key).unwrap();
        let key = KeyPair::from_pem(&pem).unwrap();
        // It ends when it begins.
        let ended = issuer.issue_cloud(&made.start(&["h"]).hosts, &key, 0).unwrap();
        publish(&made.tls.cert, ended.chain.as_bytes(), 0o644, Existing::Replace).unwrap();
        made.prepare(&["h"]).unwrap();
        Credentials::load(&made.tls, Role::Cloud).unwrap();
    }

    #[test]
    fn a_certificate_of_another_ca_is_left_alone() {
        let (made, other) = (Made::new(), Made::new());
        made.prepare(&["h"]).unwrap();
        other.prepare(&["h"]).unwrap();
        for (from, to) in [(&other.tls.cert, &made.tls.cert), (&other.tls.key, &made.tls.key)] {
            fs::copy(from, to).unwrap();
        }
        let before = made.read();
        made.prepare(&["other.example"]).unwrap();
        assert_eq!(made.read(), before);
    }

    #[test]
    fn the_settings_name_one_directory_and_hosts() {
        let made = Made::new();
        let refused = |tls: Files, hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
            FirstStart::new(hosts, &made.settings, &tls, None).unwrap_err()
        };
        let elsewhere = Files { cert: "/etc/cloud.crt".into(), ..made.tls.clone() };
        assert_eq!(refused(elsewhere, &["h"]), [FirstStartFault::Files]);
        let twice = Files { key: made.tls.cert.clone(), ..made.tls.clone() };
        assert_eq!(refused(twice, &["h"]), [FirstStartFault::Files]);
        let other = Files { ca: made.dir.path().join("pki/root.crt"), ..made.tls.clone() };
        assert_eq!(refused(other, &["h"]), [FirstStartFault::Files]);
        let hosts = refused(made.tls.clone(), &["h", "a b", "wss://x:1", "::1"]);
        let bad = ["a b", "wss://x:1"].map(|host| FirstStartFault::Host(host.into()));
        assert_eq!(hosts, bad);
    }
}
