//! Issues certificates with the CA of `[ca]`, which may be an intermediate of an offline root.
//!
//! A CA is used only after a trial: a certificate that it issues must be verified by the roots that
//! both ends trust. So a wrong file is reported at start-up, and not by the first edge.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proto::link::tls::{Pin, trust_of};
use proto::names::certificate::{IssuerKey, Serial, Subject, Validity};
use proto::names::{FRONT_URI, IdentityError, NODE_URI};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SanType,
    SerialNumber,
};
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use zeroize::Zeroizing;

use crate::pki::request::ProvenKey;
use crate::state::trust::NoRandomness;

/// A certificate of a day or more begins this long ago, because clocks differ.
const SLACK: Duration = Duration::from_secs(3600);
/// A certificate of a shorter life begins this share of it ago. With more, the time to renew it
/// would already be over.
const SLACK_SHARE: u32 = 24;
/// A day.
pub const DAY: Duration = Duration::from_secs(86_400);

/// A CA that can issue.
pub struct Issuer {
    issuer: rcgen::Issuer<'static, KeyPair>,
    /// The chain after an issued certificate: the certificates up to the root, without it.
    between: Vec<CertificateDer<'static>>,
    /// The roots that both ends trust.
    roots: Vec<CertificateDer<'static>>,
    /// The root of this CA.
    root: CertificateDer<'static>,
    /// Of what it issues.
    issuer_key: Option<IssuerKey>,
    tag: CaTag,
    /// The time in which all of this CA's own certificates are valid.
    validity: Validity,
}

/// The content of a CA's files, PEM.
pub struct CaPem {
    /// The certificate that issues, and those between it and the root.
    pub cert: String,
    /// Its private key.
    pub key: Zeroizing<String>,
    /// The roots that both ends trust.
    pub roots: String,
}

/// A tag for the CAs that an edge trusts and the CA that issued its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaTag(u64);

impl CaTag {
    /// The tag of a set of CAs ([`trust_of`]) and the issuer.
    pub fn of(trust: &str, issuer: Option<&IssuerKey>) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(trust.as_bytes());
        context.update(issuer.map_or("", |issuer| issuer.as_str()).as_bytes());
        let hash = context.finish();
        let first = hash.as_ref().iter().take(size_of::<u64>());
        Self(first.fold(0, |tag, byte| tag << 8 | u64::from(*byte)))
    }
}

/// An issued certificate.
pub struct Issued {
    /// The certificate and those between it and the root, PEM.
    pub chain: String,
    /// The roots that both ends trust, PEM.
    pub ca: String,
    /// The time at which it ends.
    pub not_after: SystemTime,
}

/// Why nothing can be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A file cannot be read.
    #[error("the CA's file {} cannot be read: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The key is not usable.
    #[error(
        "the CA's key {} cannot be used: {why}. It must be PKCS #8 in PEM, without a password: \
         `openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW`; with cert-manager, `encoding: PKCS8`",
        path.display()
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The trial failed.
    #[error(
        "the CA in {} cannot issue: the roots in {} do not verify what it issues: {why}. Are \
         certificate and key one pair, is it a CA, and is its root among the roots?",
        cert.display(),
        roots.display()
    )]
    Trial {
        /// The CA's certificate.
        cert: PathBuf,
        /// The roots.
        roots: PathBuf,
        /// The cause.
        why: String,
    },
    /// The CA's own certificate has ended.
    #[error("the CA's own certificate has ended; give csi-cloud a new one: `csi-cloud ca use`")]
    Ended,
    /// The library refuses.
    #[error("the certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// The system has no random numbers.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
}

/// A new serial number: 16 random bytes (RFC 5280, 4.1.2.2: positive, at most 20 bytes).
///
/// # Errors
/// The system has no random numbers.
pub fn new_serial() -> Result<([u8; 16], Serial), NoRandomness> {
    let mut bytes = random()?;
    // Positive, and without leading zeros.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok((bytes, Serial::of(&bytes)))
}

/// A new serial number of a node's certificate: an issue number in ms since 1970, and 8 random
/// bytes.
///
/// # Errors
/// The system has no random numbers.
pub fn numbered_serial(number: u64) -> Result<([u8; 16], Serial), NoRandomness> {
    let bytes = Serial::numbered(number, u64::from_be_bytes(random()?));
    Ok((bytes, Serial::of(&bytes)))
}

fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

impl Issuer {
    /// Reads a CA, and checks that `roots` verify the certificates that it issues.
    ///
    /// # Errors
    /// See [`IssueError`].
    pub fn open(cert: &Path, key: &Path, roots: &Path) -> Result<Self, IssueError> {
        Self::of(
            &CaPem { cert: read(cert)?, key: read(key)?.into(), roots: read(roots)? },
            cert,
            key,
            roots,
        )
    }

    /// The same of the content of files, which need not exist.
    ///
    /// # Errors
    /// See [`IssueError`]; the texts name the files.
    pub fn of(pem: &CaPem, cert: &Path, key: &Path, roots: &Path) -> Result<Self, IssueError> {
        let chain = certificates(&pem.cert, cert)?;
        let trusted = certificates(&pem.roots, roots)?;
        let wrong_key =
            |error: rcgen::Error| IssueError::Key { path: key.into(), why: error.to_string() };
        let pair = KeyPair::from_pem(&pem.key).map_err(wrong_key)?;
        let failed =
            |why: String| IssueError::Trial { cert: cert.into(), roots: roots.into(), why };
        let Some(own) = chain.first() else { return Err(failed("it is empty".into())) };
        // Two CAs may have one name; then the trial alone would not show a wrong key.
        let der = PrivateKeyDer::from_pem_slice(pem.key.as_bytes())
            .map_err(|error| failed(error.to_string()))?;
        CertifiedKey::from_der(vec![own.clone()], der, &default_provider())
            .map_err(|error| failed(error.to_string()))?;
        let validity = common_validity(&chain).map_err(|error| failed(error.to_string()))?;
        let issuer = rcgen::Issuer::from_ca_cert_der(own, pair)
            .map_err(|error| failed(error.to_string()))?;
        let between = chain.iter().filter(|one| !trusted.contains(one)).cloned().collect();
        let mut issuer = Self {
            issuer,
            between,
            root: own.clone(),
            tag: CaTag::of(&trust_of(&trusted), None),
            issuer_key: None,
            roots: trusted,
            validity,
        };
        let (root, issuer_key) = issuer.trial().map_err(failed)?;
        issuer.tag = CaTag::of(&trust_of(&issuer.roots), issuer_key.as_ref());
        issuer.issuer_key = issuer_key;
        issuer.root = root;
        Ok(issuer)
    }

    /// Issues a certificate for this name and key.
    ///
    /// # Errors
    /// The CA has ended, or the library refuses.
    pub fn issue(
        &self,
        subject: &Subject,
        key: &ProvenKey,
        serial: &[u8; 16],
        life: Duration,
    ) -> Result<Issued, IssueError> {
        let (name, uri) = match subject {
            Subject::Node(node) => (node.as_str(), NODE_URI),
            Subject::Front(front) => (front.as_str(), FRONT_URI),
        };
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name(name));
        params.subject_alt_names = vec![SanType::URI(format!("{uri}{name}").try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let validity = self.validity_from(SystemTime::now(), life)?;
        self.sign(params, key.key(), serial, validity)
    }

    /// The validity of a certificate that is issued `now`. It does not outlive the CA.
    ///
    /// # Errors
    /// The CA has ended.
    pub(super) fn validity_from(
        &self,
        now: SystemTime,
        life: Duration,
    ) -> Result<Validity, IssueError> {
        if now >= self.validity.not_after {
            return Err(IssueError::Ended);
        }
        Ok(Validity {
            not_before: now - SLACK.min(life / SLACK_SHARE),
            not_after: self.validity.not_after.min(now + life),
        })
    }

    /// Issues a certificate for csi-cloud at these hosts, which is valid from now on.
    ///
    /// # Errors
    /// As for [`Self::issue`], or a host is neither a name nor an address.
    pub fn issue_cloud(
        &self,
        hosts: &[String],
        key: &KeyPair,
        days: u16,
    ) -> Result<Issued, IssueError> {
        let validity = self.validity_from(SystemTime::now(), DAY * u32::from(days))?;
        self.issue_cloud_for(hosts, key, validity)
    }

    /// The same with another validity.
    ///
    /// # Errors
    /// As for [`Self::issue_cloud`].
    pub(super) fn issue_cloud_for(
        &self,
        hosts: &[String],
        key: &KeyPair,
        validity: Validity,
    ) -> Result<Issued, IssueError> {
        let mut params = CertificateParams::new(hosts.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, "csi-cloud");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (serial, _) = new_serial()?;
        self.sign(params, key, &serial, validity)
    }

    /// The time in which all of the CA's own certificates are valid.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// The tag of an edge with a certificate of this CA and its roots.
    pub fn tag(&self) -> CaTag {
        self.tag
    }

    /// True if this CA issued a certificate.
    pub fn has_issued(&self, certificate: &CertificateDer<'_>) -> bool {
        self.issuer_key.is_some() && IssuerKey::of(certificate) == self.issuer_key
    }

    /// True if another one has the same key.
    pub fn is_same(&self, other: &Self) -> bool {
        self.issuer_key.is_some() && self.issuer_key == other.issuer_key
    }

    /// The root of this CA.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// The roots that both ends trust.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// The roots that both ends trust, PEM.
    pub fn roots_pem(&self) -> String {
        pems(&self.roots)
    }

    /// The hash of the root, by which an edge recognises it.
    pub fn root_pin(&self) -> Pin {
        Pin::of(&self.root)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
        serial: &[u8; 16],
        validity: Validity,
    ) -> Result<Issued, IssueError> {
        let Validity { not_before, not_after } = validity;
        params.not_before = not_before.into();
        params.not_after = not_after.into();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.issuer)?;
        let chain = certificate.pem() + &pems(&self.between);
        Ok(Issued { chain, ca: self.roots_pem(), not_after })
    }

    /// Issues a certificate and verifies it; returns the root that verifies it, and its issuer.
    fn trial(&self) -> Result<(CertificateDer<'static>, Option<IssuerKey>), String> {
        let key = KeyPair::generate().map_err(|error| error.to_string())?;
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let issued = self
            .validity_from(SystemTime::now(), DAY)
            .and_then(|validity| self.sign(params, &key, &[1; 16], validity))
            .map_err(|error| error.to_string())?;
        let leaf = CertificateDer::from_pem_slice(issued.chain.as_bytes())
            .map_err(|error| error.to_string())?;
        let mut why = "there is no root".to_owned();
        for root in &self.roots {
            match self.verify(&leaf, root) {
                Ok(()) => return Ok((root.clone(), IssuerKey::of(&leaf))),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        root: &CertificateDer<'_>,
    ) -> Result<(), webpki::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        let anchor = [anchor_from_trusted_cert(root)?];
        EndEntityCert::try_from(leaf)?
            .verify_for_usage(
                algorithms.all,
                &anchor,
                &self.between,
                UnixTime::now(),
                KeyUsage::client_auth(),
                None,
                None,
            )
            .map(drop)
    }
}

/// The time in which all of these certificates are valid.
fn common_validity(chain: &[CertificateDer<'_>]) -> Result<Validity, IdentityError> {
    let mut common =
        Validity { not_before: SystemTime::UNIX_EPOCH, not_after: SystemTime::UNIX_EPOCH };
    for (position, certificate) in chain.iter().enumerate() {
        let one = Validity::of(certificate)?;
        common.not_before = common.not_before.max(one.not_before);
        let is_first = position == 0;
        common.not_after =
            if is_first { one.not_after } else { common.not_after.min(one.not_after) };
    }
    Ok(common)
}

/// A common name has at most 64 characters (RFC 5280, A.1); the whole name is in the URI.
fn common_name(name: &str) -> &str {
    name.get(..64).unwrap_or(name)
}

fn read(path: &Path) -> Result<String, IssueError> {
    let unreadable =
        |error: io::Error| IssueError::File { path: path.into(), why: error.to_string() };
    std::fs::read_to_string(path).map_err(unreadable)
}

/// The certificates in a PEM text, which is or would be this file's.
///
/// # Errors
/// The text is no PEM, or has no certificate.
pub(super) fn certificates(
    pem: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, IssueError> {
    let unreadable = |why: String| IssueError::File { path: path.into(), why };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let read = read.map_err(|error| unreadable(error.to_string()))?;
    if read.is_empty() {
        return Err(unreadable("it has no certificate".into()));
    }
    Ok(read)
}

/// These certificates, PEM.
pub(super) fn pems(certificates: &[CertificateDer<'_>]) -> String {
    let mut text = String::new();
    for certificate in certificates {
        text += "-----BEGIN CERTIFICATE-----\n";
        // RFC 7468: lines of 64 characters.
        let encoded = BASE64_STANDARD.encode(certificate);
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(rest.len().min(64));
            text += line;
            text.push('\n');
            rest = after;
        }
        text += "-----END CERTIFICATE-----\n";
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
