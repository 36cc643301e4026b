//! Who this node is: its certificate, its key, the CA, and the node's name.

use std::path::Path;
use std::time::SystemTime;

use proto::admin::doctor::Finding;
use proto::admin::doctor::certificate::certificate;
use proto::admin::doctor::place;
use proto::admin::doctor::place::Use;
use proto::host::chain;
use proto::link::tls::{Credentials, Role, TlsError};
use proto::names::certificate::Validity;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::config::Config;

/// Renewal by csi-edge itself.
const RENEWED: &str = "csi-edge renews it over its link until 90 days after its end, and later if \
                       an operator runs `csi-cloud node readmit NODE`; if it does not, repair the \
                       connection to csi-cloud, or join again with a token of csi-cloud \
                       (`csi-edge join --replace`)";
/// Renewal by an operator.
const ISSUED: &str = "issue a new one into the same files (`csi-cloud ca issue NODE`), or join \
                      with a token (`csi-edge join --help`), after which csi-edge renews it";
const JOIN: &str = "make a token at csi-cloud (`csi-cloud token create NODE`) and run the command \
                    that it prints here";

/// The identity, as far as there is one.
pub(super) struct Identity {
    /// As the link uses them; none if they cannot be used.
    pub(super) credentials: Option<Credentials>,
    pub(super) findings: Vec<Finding>,
}

/// Looks at the files of the identity.
pub(super) fn look(config: &Config, now: SystemTime) -> Identity {
    let files = &config.tls;
    let cert = files.cert.display().to_string();
    let is_identity = files.is_identity();
    if !files.cert.exists() {
        return Identity { credentials: None, findings: vec![missing(config, cert)] };
    }
    let advice = if is_identity { RENEWED } else { ISSUED };
    let mut findings = Vec::new();
    match validity(&files.cert) {
        Ok(validity) => {
            findings.push(certificate("certificate", cert, &validity, now, advice));
        }
        Err(why) => findings.push(Finding::fault("certificate", cert, why, advice)),
    }
    let credentials = Credentials::load(files, Role::Node);
    findings.push(usable(&files.key, &credentials, advice));
    if let Some(ca) = credentials.as_ref().ok().and_then(Credentials::ca_validity) {
        let about = files.ca.display().to_string();
        let advice = "let another CA take over at csi-cloud (`csi-cloud ca rotate`)";
        findings.push(certificate("ca", about, &ca, now, advice));
    }
    if let Some(path) = files.cert.parent().filter(|_| is_identity) {
        let missing = "make it with mode 0700";
        let used = Use { check: "identity-directory", path, least: 0, missing };
        findings.push(place::directory(used, &place::look(path)));
    }
    Identity { credentials: credentials.ok(), findings }
}

/// There is no certificate yet.
fn missing(config: &Config, cert: String) -> Finding {
    const CHECK: &str = "certificate";
    match &config.join {
        None => Finding::fault(CHECK, cert, "there is none", JOIN),
        Some(join) if join.token_file.exists() => Finding::warning(
            CHECK,
            cert,
            "there is none yet; csi-edge joins by itself ([join])",
            "if it does not when it runs, see what its log says",
        ),
        Some(join) => {
            let file = join.token_file.display();
            let found = format!("there is none, and no token in {file} to join with");
            Finding::fault(CHECK, cert, found, JOIN)
        }
    }
}

fn validity(path: &Path) -> Result<Validity, String> {
    let pem = std::fs::read(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let certificate = CertificateDer::from_pem_slice(&pem);
    let certificate = certificate.map_err(|error| format!("it is no certificate: {error}"))?;
    Validity::of(&certificate).map_err(|error| chain(&error))
}

/// Whether certificate, key and CA fit, and whom the certificate names.
fn usable(key: &Path, loaded: &Result<Credentials, TlsError>, advice: &str) -> Finding {
    const CHECK: &str = "identity";
    let about = key.display().to_string();
    let node = match loaded {
        Ok(credentials) => credentials.node().map_err(|error| chain(&error)),
        Err(error) => Err(chain(error)),
    };
    match node {
        Ok(node) => {
            let found = format!("it is node {node}'s; certificate, key and CA fit");
            Finding::ok(CHECK, about, found)
        }
        Err(why) => Finding::fault(CHECK, about, why, advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use clap::Parser;
    use proto::admin::doctor::Verdict;
    use proto::host::publish::{Existing, publish};
    use proto::link::tls::Pem;

    use crate::commands::{Cli, Command};
    use crate::identity::directory::Directory;
    use crate::identity::test_ca::Ca;

    fn config(args: &[&str]) -> Config {
        let usual = ["csi-edge", "serve", "--cloud=wss://h:1", "--driver=d.example=/s"];
        let Command::Serve { flags, .. } = Cli::parse_from(usual.iter().chain(args)).command else {
            panic!()
        };
        Config::load(*flags).unwrap()
    }

    /// An identity that ends in, or ended before, so many days.
    fn made(dir: &Path, days: i64) -> Config {
        let directory = Directory::new(dir);
        let request = directory.request().unwrap();
        let issued = Ca::new().issue(&request.csr().unwrap(), "edge-csi://node/n1", days);
        let chain = format!("{}{}", issued.chain, request.key()).into_bytes();
        let pem = Pem { ca: issued.ca.into(), cert: chain.clone(), key: chain.into() };
        directory.write(&pem).unwrap();
        config(&["--identity", &dir.display().to_string()])
    }

    fn verdicts(identity: &Identity) -> Vec<(&str, Verdict)> {
        identity.findings.iter().map(|of| (of.check.as_str(), of.verdict)).collect()
    }

    #[test]
    fn an_identity_is_judged_by_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let config = made(dir.path(), 19);
        let looked = look(&config, SystemTime::now());
        let ok = Verdict::Ok;
        let fault = Verdict::Fault;
        let [files @ .., (directory, _)] = &verdicts(&looked)[..] else { panic!() };
        assert_eq!(files, ["certificate", "identity", "ca"].map(|check| (check, ok)));
        // How full the disk of the tests is decides its verdict.
        assert_eq!(*directory, "identity-directory");
        assert!(looked.findings[1].found.contains("node n1"), "{:?}", looked.findings);
        assert!(looked.credentials.is_some());
        // A clock that is a year behind.
        let early = SystemTime::now() - Duration::from_secs(365 * 86_400);
        assert_eq!(verdicts(&look(&config, early))[0], ("certificate", fault));
        publish(&config.tls.cert, b"nonsense", 0o600, Existing::Replace).unwrap();
        let looked = look(&config, SystemTime::now());
        assert_eq!(verdicts(&looked)[..2], [("certificate", fault), ("identity", fault)]);
    }

    #[test]
    fn a_certificate_that_has_ended_is_a_fault_and_can_still_be_shown() {
        let dir = tempfile::tempdir().unwrap();
        let looked = look(&made(dir.path(), -3), SystemTime::now());
        assert_eq!(verdicts(&looked)[0], ("certificate", Verdict::Fault));
        assert!(looked.findings[0].found.contains("ended 3d ago"), "{:?}", looked.findings);
        assert!(looked.credentials.is_some(), "it may renew itself");
        let looked = look(&made(dir.path(), -91), SystemTime::now());
        assert!(looked.credentials.is_some(), "an operator may readmit the node");
    }

    #[test]
    fn a_key_that_others_can_read_is_a_fault() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let config = made(dir.path(), 19);
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&config.tls.key, open).unwrap();
        let looked = look(&config, SystemTime::now());
        assert_eq!(verdicts(&looked)[1], ("identity", Verdict::Fault));
        assert!(looked.findings[1].found.contains("mode 0644"), "{:?}", looked.findings);
    }

    #[test]
    fn without_a_certificate_it_is_said_how_to_get_one() {
        let dir = tempfile::tempdir().unwrap();
        let identity = dir.path().display().to_string();
        let looked = look(&config(&["--identity", &identity]), SystemTime::now());
        assert_eq!(verdicts(&looked), [("certificate", Verdict::Fault)]);
        assert!(looked.findings[0].advice.contains("token create"));
        let token = dir.path().join("token");
        let pin = format!("sha256:{}", "0".repeat(64));
        let file = token.display().to_string();
        let joins = config(&["--identity", &identity, "--ca-hash", &pin, "--token-file", &file]);
        assert_eq!(verdicts(&look(&joins, SystemTime::now()))[0].1, Verdict::Fault);
        publish(&token, b"t", 0o600, Existing::Keep).unwrap();
        assert_eq!(verdicts(&look(&joins, SystemTime::now()))[0].1, Verdict::Warning);
    }
}
