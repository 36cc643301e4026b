//! The certificates of a simulated fleet. They are Ed25519 and made once for a whole program, so
//! that all handshakes have the same length. A seed that runs again then cuts at the same place.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use proto::host::publish::{Existing, publish};
use proto::link::tls::{Credentials, Files, Role};
use proto::names::NODE_URI;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, SanType,
};
use tempfile::TempDir;

/// The two endpoints of the cloud.
pub const ENDPOINTS: [&str; 2] = ["cloud.sim:443", "cloud.sim:444"];
/// Where the edges reach each of several clouds.
pub const REPLICAS: [&str; 3] = ["cloud.sim:443", "cloud.sim:444", "cloud.sim:445"];
const CLOUD: &str = "cloud.sim";
/// The nodes of the largest fleet.
pub const NODES: [&str; 12] =
    ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11", "n12"];

/// The node whose edge lies, in some runs.
pub const LIAR: &str = "liar";
/// Its number, beyond those of all honest nodes.
pub const LIAR_AT: usize = NODES.len();
/// The number of a second machine with the identity of the first node.
pub const TWIN_AT: usize = LIAR_AT + 1;

/// A node's name.
pub(super) fn name(node: usize) -> &'static str {
    if node == LIAR_AT { LIAR } else { NODES.get(node).copied().unwrap_or("?") }
}

const DAY: Duration = Duration::from_secs(86_400);

/// A directory with the certificates, deleted when dropped.
pub struct Keys(TempDir);

impl Keys {
    /// Makes them.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn make() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("no directory for certificates can be made")?;
        let mut ca = params("sim CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_key = KeyPair::generate_for(&PKCS_ED25519)?;
        keep(dir.path(), "ca.crt", &ca.self_signed(&ca_key)?.pem())?;
        let issuer = Issuer::new(ca, ca_key);
        let mut cloud = params("cloud");
        cloud.subject_alt_names = vec![SanType::DnsName(CLOUD.try_into()?)];
        cloud.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        issue(dir.path(), "cloud", &cloud, &issuer)?;
        for node in NODES.into_iter().chain([LIAR]) {
            let mut edge = params(node);
            edge.subject_alt_names = vec![SanType::URI(format!("{NODE_URI}{node}").try_into()?)];
            edge.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            issue(dir.path(), node, &edge, &issuer)?;
        }
        Ok(Self(dir))
    }

    /// The credentials of the cloud, or of a node by its name.
    ///
    /// # Errors
    /// The files cannot be read any more.
    pub fn of(&self, name: &str, role: Role) -> anyhow::Result<Credentials> {
        Ok(Credentials::load(&Files::of(self.0.path(), name), role)?)
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * 30).into();
    params
}

fn issue(
    dir: &Path,
    name: &str,
    params: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> anyhow::Result<()> {
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    keep(dir, &format!("{name}.crt"), &params.signed_by(&key, issuer)?.pem())?;
    keep(dir, &format!("{name}.key"), &key.serialize_pem())
}

fn keep(dir: &Path, file: &str, pem: &str) -> anyhow::Result<()> {
    publish(&dir.join(file), pem.as_bytes(), 0o600, Existing::Keep)
        .with_context(|| format!("cannot write {file}"))
}
