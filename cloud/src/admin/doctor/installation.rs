//! Checks what the configuration of csi-cloud names: certificates, the CA, the store, directories.
//!
//! The checks work whether csi-cloud runs or not.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proto::admin::doctor::certificate::certificate;
use proto::admin::doctor::place::{Place, ROOM, Use, size};
use proto::admin::doctor::{Finding, place};
use proto::host::chain;
use proto::link::endpoint::Endpoint;
use proto::link::tls::{Credentials, Files, Role};
use proto::names::DriverName;
use proto::names::certificate::{Validity, hosts_of};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::pki::issuers::{CaSettings, Issuers};
use crate::state::store::etcd_at::EtcdAt;
use crate::state::store::url::StoreAt;

/// The time limit for a file system.
const PATIENCE: Duration = Duration::from_secs(5);

/// The part of the configuration that can be checked.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The endpoints on which csi-cloud listens for edges.
    pub listen: Vec<Endpoint>,
    /// The endpoint by which edges reach csi-cloud from outside.
    pub advertise: Option<Endpoint>,
    /// The drivers that have a front.
    pub drivers: Vec<DriverName>,
    /// The directory of the fronts.
    pub fronts: Option<PathBuf>,
    /// True if socket relays bring calls.
    pub is_relayed: bool,
    /// The store of all records.
    pub store: StoreAt,
    /// Certificates.
    pub tls: Files,
    /// The CA that issues certificates.
    pub ca: Option<CaSettings>,
}

impl Installation {
    /// Runs all checks.
    pub async fn look(&self, now: SystemTime) -> Vec<Finding> {
        let own = self.clone();
        let looking = spawn_blocking(move || {
            let mut findings = own.certificates(now);
            findings.extend(own.issuer(now));
            findings.extend(own.stored());
            findings.extend(own.fronts.as_deref().map(sockets));
            findings
        });
        match timeout(PATIENCE, looking).await {
            Ok(Ok(findings)) => findings,
            Ok(Err(error)) => vec![held(&error.to_string())],
            Err(_) => vec![held(&format!("a file system did not answer within {PATIENCE:?}"))],
        }
    }

    /// What the certificate says of this clock, where no other clock can be asked.
    pub async fn clock(&self, now: SystemTime) -> Finding {
        let path = self.tls.cert.clone();
        let about = path.display().to_string();
        let validity = match timeout(PATIENCE, spawn_blocking(move || read(&path))).await {
            Ok(Ok(Ok((_, validity)))) => Some(validity),
            _ => None,
        };
        clock(about, validity.as_ref(), now)
    }

    fn certificates(&self, now: SystemTime) -> Vec<Finding> {
        let path = self.tls.cert.display().to_string();
        let advice = match self.ca {
            Some(_) => "csi-cloud renews it by itself with the CA of [ca]; its log says why not",
            None => {
                "make a new one with the same CA (`csi-cloud ca use --host`) into the same files"
            }
        };
        let mut findings = Vec::new();
        match read(&self.tls.cert) {
            Ok((shown, validity)) => {
                findings.push(certificate("certificate", path.clone(), &validity, now, advice));
                findings.push(self.names(&path, &shown));
            }
            Err(why) => findings.push(Finding::fault("certificate", path.clone(), why, advice)),
        }
        match Credentials::load(&self.tls, Role::Cloud) {
            Ok(credentials) => {
                findings.push(Finding::ok("identity", path, "certificate, key and CA fit"));
                let about = self.tls.ca.display().to_string();
                let advice = "let another CA take over (`csi-cloud ca rotate`)";
                let ca = credentials.ca_validity();
                findings.extend(ca.map(|ca| certificate("ca", about, &ca, now, advice)));
            }
            Err(error) => findings.push(Finding::fault("identity", path, chain(&error), advice)),
        }
        findings
    }

    /// Checks that the certificate has the advertised host name.
    fn names(&self, path: &str, shown: &CertificateDer<'_>) -> Finding {
        const CHECK: &str = "names";
        let hosts = hosts_of(shown).unwrap_or_default();
        let found = format!("edges may dial {}", hosts.join(", "));
        let advertised = self.advertise.as_ref().map(|to| to.host.trim_matches(['[', ']']));
        match advertised {
            Some(host) if !hosts.iter().any(|name| name == host) => Finding::fault(
                CHECK,
                path,
                format!("{found}, and {host} is advertised"),
                "advertise a name that it has, or make csi-cloud a certificate for this one \
                 (--host of `csi-cloud ca init` and `csi-cloud ca use`)",
            ),
            _ => Finding::ok(CHECK, path, found),
        }
    }

    /// Checks the CA that issues certificates to nodes.
    fn issuer(&self, now: SystemTime) -> Vec<Finding> {
        const CHECK: &str = "issuer";
        let Some(ca) = &self.ca else { return Vec::new() };
        let about = ca.cert.display().to_string();
        let advice = "name the files of a CA that [tls] ca trusts in [ca]";
        if let Err(error) = Issuers::open(ca.clone(), &self.tls) {
            return vec![Finding::fault(CHECK, about, chain(&error), advice)];
        }
        let advice =
            "let another CA take over (`csi-cloud ca rotate`); nodes cannot renew after it";
        match read(&ca.cert) {
            Ok((_, validity)) => vec![certificate(CHECK, about, &validity, now, advice)],
            Err(why) => vec![Finding::fault(CHECK, about, why, advice)],
        }
    }

    fn stored(&self) -> Vec<Finding> {
        const CHECK: &str = "store";
        let path = match &self.store {
            StoreAt::File(path) => path,
            StoreAt::Etcd(at) => return vec![reached(at)],
            StoreAt::Memory => {
                let found = "memory: forgets everything at the end of csi-cloud";
                let advice = "keep it in a file: store = \"file:/var/lib/edge-csi/cloud.redb\"";
                return vec![Finding::warning(CHECK, "memory:", found, advice)];
            }
        };
        let about = path.display().to_string();
        let file = match std::fs::metadata(path) {
            Ok(meta) if meta.is_file() => Finding::ok(CHECK, about, size(meta.len())),
            Ok(_) => Finding::fault(CHECK, about, "it is no file", "move it away"),
            Err(error) => Finding::warning(
                CHECK,
                about,
                format!("it cannot be looked at: {error}"),
                "csi-cloud makes a new one at its start. If there was one, put it back first: \
                 see docs/how-to/backup-restore.md",
            ),
        };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let path = directory.unwrap_or_else(|| Path::new("."));
        let missing = "make it, for the user of csi-cloud";
        let used = Use { check: "store-disk", path, least: ROOM, missing };
        vec![file, place::directory(used, &place::look(path))]
    }
}

/// Whether the store in etcd can be read.
fn reached(at: &EtcdAt) -> Finding {
    const CHECK: &str = "store";
    match at.look() {
        Ok(commit) => Finding::ok(CHECK, at.to_string(), format!("{commit} commits so far")),
        Err(error) => Finding::fault(
            CHECK,
            at.to_string(),
            format!("it cannot be read: {error:#}"),
            "see docs/how-to/high-availability.md",
        ),
    }
}

fn sockets(path: &Path) -> Finding {
    const CHECK: &str = "sockets";
    let place = place::look(path);
    if matches!(place, Place::Unseen(io::ErrorKind::NotFound, _)) {
        let advice = "csi-cloud makes it at its start";
        return Finding::warning(CHECK, path.display().to_string(), "there is none yet", advice);
    }
    place::directory(Use { check: CHECK, path, least: 0, missing: "" }, &place)
}

/// Judges this clock by a certificate. A certificate that is not valid may be to blame itself, and
/// its own finding says so.
fn clock(about: String, validity: Option<&Validity>, now: SystemTime) -> Finding {
    const CHECK: &str = "clock";
    let is_within = |validity: &&Validity| now >= validity.not_before && !validity.ended(now);
    if validity.filter(is_within).is_some() {
        let found = "it is within the validity of csi-cloud's certificate; no other clock is asked";
        return Finding::ok(CHECK, about, found);
    }
    let advice = "compare it with another one (chronyc tracking, timedatectl)";
    Finding::unknown(CHECK, about, "no valid certificate to judge it by", advice)
}

fn held(why: &str) -> Finding {
    let advice = "look at the disks, and at network file systems that are away (dmesg)";
    Finding::fault("files", "this machine", why, advice)
}

fn read(path: &Path) -> Result<(CertificateDer<'static>, Validity), String> {
    let pem = std::fs::read(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let shown = CertificateDer::from_pem_slice(&pem);
    let shown = shown.map_err(|error| format!("it is no certificate: {error}"))?;
    let validity = Validity::of(&shown).map_err(|error| chain(&error))?;
    Ok((shown, validity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::ca;
    use proto::admin::doctor::Verdict;

    fn installation(dir: &Path) -> Installation {
        ca::init(dir, &["cloud.example".into()], 30).unwrap();
        Installation {
            listen: Vec::new(),
            advertise: None,
            drivers: Vec::new(),
            fronts: Some(dir.to_owned()),
            is_relayed: false,
            store: StoreAt::File(dir.join("cloud.redb")),
            tls: Files::of(dir, "cloud"),
            ca: None,
        }
    }

    async fn verdicts(of: &Installation, now: SystemTime) -> Vec<(String, Verdict)> {
        let findings = of.look(now).await;
        findings.into_iter().map(|finding| (finding.check, finding.verdict)).collect()
    }

    fn verdict(all: &[(String, Verdict)], check: &str) -> Option<Verdict> {
        all.iter().find(|(of, _)| of == check).map(|(_, verdict)| *verdict)
    }

    #[tokio::test]
    async fn the_certificate_bounds_the_clock() {
        let dir = tempfile::tempdir().unwrap();
        let mut of = installation(dir.path());
        let now = SystemTime::now();
        assert_eq!(of.clock(now).await.verdict, Verdict::Ok);
        for days in [-2, 31_i64] {
            let apart = Duration::from_secs(days.unsigned_abs() * 86_400);
            let then = if days < 0 { now - apart } else { now + apart };
            assert_eq!(of.clock(then).await.verdict, Verdict::Unknown, "{days}");
        }
        of.tls.cert = dir.path().join("none.crt");
        assert_eq!(of.clock(now).await.verdict, Verdict::Unknown);
    }

    #[tokio::test]
    async fn the_files_of_a_configuration_are_judged() {
        let dir = tempfile::tempdir().unwrap();
        let mut of = installation(dir.path());
        let now = SystemTime::now();
        let all = verdicts(&of, now).await;
        let checks: Vec<_> = all.iter().map(|(check, _)| check.as_str()).collect();
        let expected = ["certificate", "names", "identity", "ca", "store", "store-disk", "sockets"];
        assert_eq!(checks, expected);
        assert_eq!(verdict(&all, "certificate"), Some(Verdict::Ok));
        assert_eq!(verdict(&all, "store"), Some(Verdict::Warning), "it is not there yet");
        std::fs::File::create(dir.path().join("cloud.redb")).unwrap();
        of.advertise = Some("wss://cloud.example:7443".parse().unwrap());
        let all = verdicts(&of, now).await;
        assert_eq!(verdict(&all, "store"), Some(Verdict::Ok));
        assert_eq!(verdict(&all, "names"), Some(Verdict::Ok));
        of.advertise = Some("wss://other.example:7443".parse().unwrap());
        let late = now + Duration::from_secs(31 * 86_400);
        let all = verdicts(&of, late).await;
        assert_eq!(verdict(&all, "names"), Some(Verdict::Fault));
        assert_eq!(verdict(&all, "certificate"), Some(Verdict::Fault));
        of.tls.key = dir.path().join("ca.key");
        assert_eq!(verdict(&verdicts(&of, now).await, "identity"), Some(Verdict::Fault));
        let cert = dir.path().join("ca.crt");
        let key = dir.path().join("none.key");
        let life = Duration::from_secs(86_400);
        of.ca =
            Some(CaSettings { cert, key, node_life: life, cloud_days: 1, renew_after_end: life });
        assert_eq!(verdict(&verdicts(&of, now).await, "issuer"), Some(Verdict::Fault));
    }
}
