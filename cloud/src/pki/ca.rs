//! Creates the CA and the certificates of both ends, until edges can enrol by themselves.
//!
//! The cloud's certificate names hosts and is for servers. A node's certificate has one URI with
//! the node's name and is for clients. Existing files are never replaced, because a lost CA key
//! cuts off every edge.

use std::path::Path;

use anyhow::{Context, bail};
use proto::host::private;
use proto::host::program;
use proto::host::publish::{Existing, publish};
use proto::link::tls::{Credentials, Files, Role};
use proto::names::{FRONT_URI, FrontName, NODE_URI, NodeName};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use zeroize::Zeroizing;

use crate::pki::issuer::{new_serial, numbered_serial};
use crate::state::clock::now;

const NAME: &str = "Edge CSI CA";
/// Certificates are valid from some time ago, because a peer's clock may be behind.
const SLACK: std::time::Duration = std::time::Duration::from_secs(3600);
const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);

/// Creates a CA and the cloud's certificate for these hosts.
///
/// # Errors
/// A file exists already or cannot be written, or a host is neither a name nor an address.
pub fn init(dir: &Path, hosts: &[String], days: u16) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)
        .with_context(|| format!("the directory {} cannot be made", dir.display()))?;
    for name in ["ca.crt", "ca.key", "cloud.crt", "cloud.key"] {
        let path = dir.join(name);
        if path.exists() {
            bail!(
                "{} is there already and is left alone; choose another --dir, or move it away",
                path.display()
            );
        }
    }
    let mut cloud =
        CertificateParams::new(hosts.to_vec()).context("a --host is no name and no address")?;
    cloud.distinguished_name.push(DnType::CommonName, "csi-cloud");
    cloud.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let ca_days = days.saturating_mul(10);
    let (certificate, ca_key) = root(ca_days)?;
    keep(dir, "ca", &certificate.pem(), &ca_key)?;
    let key = KeyPair::generate()?;
    let certificate = valid(cloud, days).signed_by(&key, &Issuer::new(ca(ca_days), ca_key))?;
    keep(dir, "cloud", &certificate.pem(), &key)?;
    check(dir, "cloud", Role::Cloud)
}

/// A new CA, which is its own root, and its key.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn root(days: u16) -> Result<(Certificate, KeyPair), rcgen::Error> {
    let key = KeyPair::generate()?;
    Ok((ca(days).self_signed(&key)?, key))
}

/// A private key as text, which is overwritten when it is dropped.
pub(super) fn pem(key: &KeyPair) -> Zeroizing<String> {
    Zeroizing::new(key.serialize_pem())
}

/// An existing CA.
pub struct CertificateAuthority(Issuer<'static, KeyPair>);

impl CertificateAuthority {
    /// Reads the CA's key. Only the name and the key of the CA's certificate matter here.
    ///
    /// # Errors
    /// The key cannot be read, or others can read it too.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("ca.key");
        let reading = || {
            format!(
                "the CA's key {} cannot be read; make a CA with `csi-cloud ca init`",
                path.display()
            )
        };
        let pem = Zeroizing::new(std::fs::read_to_string(&path).with_context(reading)?);
        private::check(&path)?;
        Ok(Self(Issuer::new(ca(1), KeyPair::from_pem(&pem).with_context(reading)?)))
    }

    /// Issues a node's certificate with a new key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn node(&self, node: &NodeName, days: u16) -> anyhow::Result<(Certificate, KeyPair)> {
        self.client(node.as_str(), NODE_URI, days, &numbered_serial(now())?.0)
    }

    /// Issues a front's certificate with a new key.
    fn front(&self, front: &FrontName, days: u16) -> anyhow::Result<(Certificate, KeyPair)> {
        self.client(front.as_str(), FRONT_URI, days, &new_serial()?.0)
    }

    fn client(
        &self,
        name: &str,
        uri: &str,
        days: u16,
        serial: &[u8; 16],
    ) -> anyhow::Result<(Certificate, KeyPair)> {
        let mut params = CertificateParams::default();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![SanType::URI(format!("{uri}{name}").try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        Ok((valid(params, days).signed_by(&key, &self.0)?, key))
    }
}

/// Issues a node's certificate and writes its files.
///
/// # Errors
/// The CA cannot be read, or the node's files exist already or cannot be written.
pub fn issue(dir: &Path, node: &NodeName, days: u16) -> anyhow::Result<()> {
    let made = CertificateAuthority::open(dir)?.node(node, days)?;
    keep_issued(dir, node.as_str(), &made, Role::Node)
}

/// Issues the certificate of a relay (`csi-cloud relay`) and writes its files.
///
/// # Errors
/// As for [`issue`].
pub fn issue_front(dir: &Path, front: &FrontName, days: u16) -> anyhow::Result<()> {
    let made = CertificateAuthority::open(dir)?.front(front, days)?;
    keep_issued(dir, front.as_str(), &made, Role::Front)
}

fn keep_issued(
    dir: &Path,
    name: &str,
    made: &(Certificate, KeyPair),
    role: Role,
) -> anyhow::Result<()> {
    if ["ca", "cloud"].contains(&name) {
        bail!(
            "the files of one named {name} would be the {name}'s own; \
             give its certificate another --dir"
        );
    }
    let (certificate, key) = made;
    keep(dir, name, &certificate.pem(), key)?;
    // Detects, among others, a ca.crt that does not match this key.
    check(dir, name, role)
}

fn ca(days: u16) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(params, days)
}

fn valid(mut params: CertificateParams, days: u16) -> CertificateParams {
    let now = std::time::SystemTime::now();
    params.not_before = (now - SLACK).into();
    params.not_after = (now + DAY * u32::from(days)).into();
    params.use_authority_key_identifier_extension = true;
    params
}

/// Writes NAME.key and NAME.crt, or neither.
fn keep(dir: &Path, name: &str, certificate: &str, key: &KeyPair) -> anyhow::Result<()> {
    let Files { cert: path, key: key_path, .. } = Files::of(dir, name);
    let writing = |path: &Path| {
        format!("{} cannot be written; files that are there are left alone", path.display())
    };
    publish(&key_path, pem(key).as_bytes(), 0o600, Existing::Keep)
        .with_context(|| writing(&key_path))?;
    if let Err(error) = publish(&path, certificate.as_bytes(), 0o644, Existing::Keep) {
        let _ = std::fs::remove_file(&key_path);
        return Err(error).with_context(|| writing(&path));
    }
    program::tell(format_args!("wrote {} and {}", path.display(), key_path.display()));
    Ok(())
}

fn check(dir: &Path, name: &str, role: Role) -> anyhow::Result<()> {
    Credentials::load(&Files::of(dir, name), role).context("what was made cannot be used").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_end_gets_a_certificate_for_itself_only() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &["cloud.example".into(), "10.0.0.1".into()], 1).unwrap();
        issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap();
        issue_front(dir.path(), &"f1".parse().unwrap(), 1).unwrap();
        Credentials::load(&Files::of(dir.path(), "f1"), Role::Front).unwrap();
        for (name, role) in [("f1", Role::Node), ("n1", Role::Front)] {
            let error = Credentials::load(&Files::of(dir.path(), name), role).err().unwrap();
            assert!(proto::host::chain(&error).contains("names that begin with"), "{error}");
        }
        let node = Credentials::load(&Files::of(dir.path(), "n1"), Role::Node).unwrap();
        assert_eq!(node.node().unwrap().as_str(), "n1");
        let mode =
            std::fs::metadata(dir.path().join("n1.key")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        for (name, role) in [("n1", Role::Cloud), ("cloud", Role::Node)] {
            let error =
                Credentials::load(&Files::of(dir.path(), name), role).err().unwrap().to_string();
            assert!(error.contains("not made for this end"), "{error}");
        }
    }

    #[test]
    fn nothing_is_ever_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["localhost".to_owned()];
        init(dir.path(), &hosts, 1).unwrap();
        let key = std::fs::read(dir.path().join("ca.key")).unwrap();
        assert!(init(dir.path(), &hosts, 1).unwrap_err().to_string().contains("left alone"));
        assert_eq!(std::fs::read(dir.path().join("ca.key")).unwrap(), key);
        issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap();
        let node = std::fs::read(dir.path().join("n1.crt")).unwrap();
        let again = issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap_err().to_string();
        assert!(again.contains("left alone"), "{again}");
        assert_eq!(std::fs::read(dir.path().join("n1.crt")).unwrap(), node);
        let cas = issue(dir.path(), &"ca".parse().unwrap(), 1).unwrap_err().to_string();
        assert!(cas.contains("would be the ca's own"), "{cas}");
    }

    #[test]
    fn keys_that_others_can_read_are_refused_and_the_groups_are_not() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &["localhost".into()], 1).unwrap();
        let files = Files::of(dir.path(), "cloud");
        let with = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        with(&files.key, 0o440);
        Credentials::load(&files, Role::Cloud).unwrap();
        with(&files.key, 0o644);
        let error = Credentials::load(&files, Role::Cloud).err().unwrap().to_string();
        assert!(error.contains("cloud.key has mode 0644"), "{error}");
        with(&dir.path().join("ca.key"), 0o604);
        let error = issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap_err().to_string();
        assert!(error.contains("ca.key has mode 0604"), "{error}");
        assert!(!dir.path().join("n1.key").exists());
    }

    #[test]
    fn a_foreign_certificate_and_a_foreign_key_are_named() {
        let one = tempfile::tempdir().unwrap();
        let two = tempfile::tempdir().unwrap();
        for dir in [&one, &two] {
            init(dir.path(), &["localhost".into()], 1).unwrap();
            issue(dir.path(), &"n1".parse().unwrap(), 1).unwrap();
        }
        let mut mixed = Files::of(one.path(), "n1");
        mixed.ca = two.path().join("ca.crt");
        let error = Credentials::load(&mixed, Role::Node).err().unwrap().to_string();
        assert!(
            error.contains("was not issued by the CA in") && error.contains("n1.crt"),
            "{error}"
        );
        let mut mixed = Files::of(one.path(), "n1");
        mixed.key = two.path().join("n1.key");
        let error = Credentials::load(&mixed, Role::Node).err().unwrap().to_string();
        assert!(error.contains("does not belong to"), "{error}");
        mixed.cert = one.path().join("none.crt");
        let error = Credentials::load(&mixed, Role::Node).err().unwrap().to_string();
        assert!(error.contains("none.crt"), "{error}");
    }

    #[test]
    fn an_expired_certificate_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &["localhost".into()], 1).unwrap();
        let ca_key =
            KeyPair::from_pem(&std::fs::read_to_string(dir.path().join("ca.key")).unwrap())
                .unwrap();
        let mut params = CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        params.subject_alt_names = vec![SanType::URI(format!("{NODE_URI}old").try_into().unwrap())];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &Issuer::new(ca(1), ca_key)).unwrap();
        keep(dir.path(), "old", &certificate.pem(), &key).unwrap();
        let error =
            Credentials::load(&Files::of(dir.path(), "old"), Role::Node).err().unwrap().to_string();
        assert!(error.contains("expired") && error.contains("ca issue"), "{error}");
    }
}
