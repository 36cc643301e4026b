//! Tests of issuing, and the CAs that other tests share.

use super::*;
use crate::pki::ca;
use proto::link::tls::{Credentials, Files, Role};
use proto::names::certificate::{Identity, Validity};
use rcgen::{BasicConstraints, IsCa, KeyUsagePurpose};
use std::fs;
use tempfile::TempDir;

const SERIAL: [u8; 16] = [0x41; 16];

pub(crate) fn proven(key: &KeyPair) -> ProvenKey {
    let mut params = CertificateParams::new(vec!["victim.example".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "victim");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ProvenKey::of(params.serialize_request(key).unwrap().der()).unwrap()
}

fn node(name: &str) -> Subject {
    Subject::Node(name.parse().unwrap())
}

pub(crate) fn write(dir: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = dir.path().join(name);
    let existing = proto::host::publish::Existing::Replace;
    proto::host::publish::publish(&path, content.as_bytes(), 0o600, existing).unwrap();
    path
}

/// A root and an intermediate of it; the root's key is not kept.
pub(crate) fn intermediate(dir: &TempDir) -> (PathBuf, PathBuf, PathBuf) {
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        // Names as companies have them: rcgen must write the issuer as it was.
        params.distinguished_name.push(DnType::OrganizationName, "Example & Co");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    };
    let root_key = KeyPair::generate().unwrap();
    let root = params("root").self_signed(&root_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let by = rcgen::Issuer::new(params("root"), root_key);
    let certificate = params("intermediate").signed_by(&key, &by).unwrap();
    (
        write(dir, "int.crt", &certificate.pem()),
        write(dir, "int.key", &key.serialize_pem()),
        write(dir, "root.crt", &root.pem()),
    )
}

#[test]
fn what_is_issued_names_the_subject_only_and_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    ca::init(dir.path(), &["localhost".into()], 1).unwrap();
    let [cert, key] = ["ca.crt", "ca.key"].map(|name| dir.path().join(name));
    let issuer = Issuer::open(&cert, &key, &cert).unwrap();
    let pair = KeyPair::generate().unwrap();
    let issued = issuer.issue(&node("n1"), &proven(&pair), &SERIAL, DAY * 30).unwrap();
    assert!(issued.not_after <= issuer.validity().not_after, "a CA of ten days");
    write(&dir, "n1.crt", &issued.chain);
    write(&dir, "n1.key", &pair.serialize_pem());
    Credentials::load(&Files::of(dir.path(), "n1"), Role::Node).unwrap();
    let leaf = CertificateDer::from_pem_slice(issued.chain.as_bytes()).unwrap();
    let identity = Identity::of(&leaf).unwrap();
    assert_eq!((identity.name, identity.serial), (node("n1"), Serial::of(&SERIAL)));
    let text = String::from_utf8_lossy(&leaf).into_owned();
    assert!(!text.contains("victim"), "what the request asked for is ignored");
    assert_eq!(issued.ca, fs::read_to_string(&cert).unwrap().replace("\r\n", "\n"));
    assert_eq!(issuer.root_pin(), { Pin::of(&CertificateDer::from_pem_file(&cert).unwrap()) });
    let long = "n".repeat(63) + "." + &"m".repeat(63);
    issuer.issue(&node(&long), &proven(&pair), &SERIAL, DAY).unwrap();
}

#[test]
fn a_short_life_does_not_begin_before_the_time_to_renew_it() {
    let dir = tempfile::tempdir().unwrap();
    ca::init(dir.path(), &["localhost".into()], 1).unwrap();
    let [cert, key] = ["ca.crt", "ca.key"].map(|name| dir.path().join(name));
    let issuer = Issuer::open(&cert, &key, &cert).unwrap();
    let pair = KeyPair::generate().unwrap();
    for (life, before) in [(120, 5), (86_400, 3600), (172_800, 3600)] {
        let life = Duration::from_secs(life);
        let issued = issuer.issue(&node("n1"), &proven(&pair), &SERIAL, life).unwrap();
        let leaf = CertificateDer::from_pem_slice(issued.chain.as_bytes()).unwrap();
        let whole = Validity::of(&leaf).unwrap().life();
        assert_eq!(whole, life + Duration::from_secs(before));
    }
}

#[test]
fn an_intermediate_issues_with_its_root_offline() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key, root) = intermediate(&dir);
    let issuer = Issuer::open(&cert, &key, &root).unwrap();
    let pair = KeyPair::generate().unwrap();
    let issued = issuer.issue(&node("n1"), &proven(&pair), &SERIAL, DAY * 30).unwrap();
    assert_eq!(issued.chain.matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(issuer.root_pin(), { Pin::of(&CertificateDer::from_pem_file(&root).unwrap()) });
    let files = Files {
        ca: write(&dir, "trusted.crt", &issued.ca),
        cert: write(&dir, "n1.crt", &issued.chain),
        key: write(&dir, "n1.key", &pair.serialize_pem()),
    };
    Credentials::load(&files, Role::Node).unwrap();
}

#[test]
fn files_that_do_not_fit_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key, root) = intermediate(&dir);
    let elsewhere = tempfile::tempdir().unwrap();
    let (_, _, foreign) = intermediate(&elsewhere);
    let other = write(&dir, "other.key", &KeyPair::generate().unwrap().serialize_pem());
    let pkcs1 = "-----BEGIN RSA PRIVATE KEY-----\nMAA=\n-----END RSA PRIVATE KEY-----\n";
    let pkcs1 = write(&dir, "pkcs1.key", pkcs1);
    let none = dir.path().join("none");
    for (cert, key, roots, said) in [
        (&cert, &other, &root, "one pair"),
        (&cert, &key, &foreign, "do not verify"),
        (&cert, &pkcs1, &root, "PKCS #8"),
        (&none, &key, &root, "cannot be read"),
        (&key, &key, &root, "no certificate"),
    ] {
        let error = Issuer::open(cert, key, roots).err().unwrap().to_string();
        assert!(error.contains(said), "{error}");
    }
    Issuer::open(&cert, &key, &root).unwrap();
}

#[test]
fn serials_are_positive_and_differ() {
    let (bytes, serial) = new_serial().unwrap();
    assert!(bytes[0] > 0 && bytes[0] < 0x80);
    assert_eq!(serial.as_str().len(), 32);
    assert_ne!(serial, new_serial().unwrap().1);
    assert_eq!(serial.issue_number(), None);
    let (_, serial) = numbered_serial(7).unwrap();
    assert_eq!(serial.issue_number(), Some(7));
    assert_ne!(serial, numbered_serial(7).unwrap().1);
}
