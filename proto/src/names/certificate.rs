//! The identity of an authenticated peer: the name, serial number and validity of its certificate.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use super::{FrontName, IdentityError, NodeName, front_of, node_of};

/// The time after its end in which a node's certificate may still renew itself, and nothing else.
pub const RENEWABLE: Duration = Duration::from_secs(90 * 86_400);

/// The first two bytes of a serial that has an issue number. Other serials of 16 bytes begin so by
/// chance only.
const NUMBERED: u64 = 0x016e;
/// The highest issue number, which has 6 bytes.
const MAX_ISSUE_NUMBER: u64 = (1 << 48) - 1;

/// The serial number of a certificate: its bytes in hexadecimal, lower case, without leading zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Serial(Arc<str>);

impl Serial {
    /// The serial of these bytes, the most significant first.
    pub fn of(bytes: &[u8]) -> Self {
        use fmt::Write as _;
        let mut text = String::new();
        for byte in bytes.iter().skip_while(|byte| **byte == 0) {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text.into())
    }

    /// The bytes of a serial with this issue number, in ms since 1970, and these random bits.
    ///
    /// Of two certificates of a node the one that was issued later has the higher number.
    pub fn numbered(number: u64, random: u64) -> [u8; 16] {
        let first = NUMBERED << 48 | number.min(MAX_ISSUE_NUMBER);
        (u128::from(first) << 64 | u128::from(random)).to_be_bytes()
    }

    /// The issue number, in ms since 1970. `None` of a certificate that csi-cloud did not issue, or
    /// a csi-cloud before 0.3.0 did.
    pub fn issue_number(&self) -> Option<u64> {
        let bits = u128::from_str_radix(&self.0, 16).ok()?;
        let first = u64::try_from(bits >> 64).ok()?;
        (first >> 48 == NUMBERED).then_some(first & MAX_ISSUE_NUMBER)
    }

    /// The serial as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of the CA that issued a certificate: its authority key identifier (RFC 5280, 4.2.1.1),
/// in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerKey(Arc<str>);

impl IssuerKey {
    /// The key named in a certificate; none if it names none, or cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Self::named_in(&parsed)
    }

    /// The key identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn named_in(certificate: &X509Certificate<'_>) -> Option<Self> {
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(authority) => {
                let id = authority.key_identifier.as_ref()?;
                Some(Self(Serial::of(id.0).0))
            }
            _ => None,
        })
    }
}

/// The owner that a certificate names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A node: csi-edge.
    Node(NodeName),
    /// A socket relay: `csi-cloud relay`.
    Front(FrontName),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Front(front) => write!(f, "front {front}"),
        }
    }
}

/// The time in which a certificate is valid, both ends included, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its begin.
    pub not_before: SystemTime,
    /// Its end.
    pub not_after: SystemTime,
}

impl Validity {
    /// The validity in a certificate.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        Ok(parse(certificate)?.validity)
    }

    /// The time since its end; zero before.
    pub fn since_end(&self, now: SystemTime) -> Duration {
        now.duration_since(self.not_after).unwrap_or_default()
    }

    /// True if the certificate has ended at this time.
    pub fn ended(&self, now: SystemTime) -> bool {
        !self.since_end(now).is_zero()
    }

    /// True if the certificate has ended at this time, and is still renewed without an operator.
    pub fn may_only_renew(&self, now: SystemTime) -> bool {
        self.ended(now) && self.since_end(now) <= RENEWABLE
    }

    /// The time left of it; zero if it has ended.
    pub fn left(&self, now: SystemTime) -> Duration {
        self.not_after.duration_since(now).unwrap_or_default()
    }

    /// The time from its begin to its end.
    pub fn life(&self) -> Duration {
        self.not_after.duration_since(self.not_before).unwrap_or_default()
    }
}

/// The contents of a certificate. They count only if TLS has verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity<N = Subject> {
    /// The owner that it names.
    pub name: N,
    /// Its serial number.
    pub serial: Serial,
    /// Its validity. A peer whose certificate has ended may only renew it.
    pub validity: Validity,
    /// The CA that issued it.
    pub issuer: Option<IssuerKey>,
}

impl Identity {
    /// The identity in a certificate of a node or a front.
    ///
    /// # Errors
    /// The certificate cannot be read, or names neither exactly one node nor one front.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let name = match front_of(certificate) {
            Ok(front) => Subject::Front(front),
            Err(_) => Subject::Node(node_of(certificate)?),
        };
        Self::named(name, certificate)
    }
}

impl Identity<NodeName> {
    /// The identity in a node's certificate.
    ///
    /// # Errors
    /// The certificate cannot be read, or does not name exactly one node.
    pub fn of_node(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        Self::named(node_of(certificate)?, certificate)
    }
}

impl Identity<FrontName> {
    /// The identity in a front's certificate.
    ///
    /// # Errors
    /// The certificate cannot be read, or does not name exactly one front.
    pub fn of_front(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        Self::named(front_of(certificate)?, certificate)
    }
}

impl<N> Identity<N> {
    fn named(name: N, certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let Parsed { serial, validity, issuer } = parse(certificate)?;
        Ok(Self { name, serial, validity, issuer })
    }
}

/// The hosts that a server's certificate names: DNS names and addresses. None if it cannot be read,
/// or names anything else, which a new certificate would lose.
pub fn hosts_of(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = &parsed.subject_alternative_name().ok()??.value.general_names;
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = address.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            Some(address.ok()?.to_string())
        }
        _ => None,
    };
    names.iter().map(host).collect()
}

/// The parts that are read of every certificate.
struct Parsed {
    serial: Serial,
    validity: Validity,
    issuer: Option<IssuerKey>,
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Parsed, IdentityError> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| IdentityError::Unreadable(error.to_string()))?;
    let validity = parsed.validity();
    let validity =
        Validity { not_before: time(validity.not_before), not_after: time(validity.not_after) };
    let serial = Serial::of(parsed.raw_serial());
    Ok(Parsed { serial, validity, issuer: IssuerKey::named_in(&parsed) })
}

/// A time before 1970 counts as 1970.
fn time(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, SerialNumber,
        date_time_ymd,
    };

    fn certificate(uris: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.serial_number = Some(SerialNumber::from_slice(&[0, 0xfe, 1]));
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2026, 1, 31);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn an_identity_has_the_serial_and_the_validity_of_its_certificate() {
        let identity = Identity::of(&certificate(&["edge-csi://node/n1"])).unwrap();
        assert_eq!(identity.name, Subject::Node("n1".parse().unwrap()));
        assert_eq!(identity.serial.as_str(), "fe01");
        assert_eq!(identity.validity.life(), Duration::from_secs(30 * 86_400));
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        assert_eq!(identity.validity.not_before, begin);
        let front = Identity::of(&certificate(&["edge-csi://front/f1"])).unwrap();
        assert_eq!(front.name.to_string(), "front f1");
        assert!(matches!(Identity::of(&certificate(&[])), Err(IdentityError::Names(0))));
        let two = certificate(&["edge-csi://node/n1", "edge-csi://node/n2"]);
        assert!(matches!(Identity::of(&two), Err(IdentityError::Names(2))));
    }

    #[test]
    fn a_serial_without_a_mark_has_no_issue_number() {
        assert_eq!(Serial::of(&Serial::numbered(7, 9)).issue_number(), Some(7));
        assert_eq!(Serial::of(&Serial::numbered(u64::MAX, 0)).issue_number(), Some((1 << 48) - 1));
        // Of an older csi-cloud, of other issuers, and of none.
        for bytes in [&[0x41; 16][..], &[0x7f; 16], &[1, 0x6e, 7], &[1; 20], &[0xfe, 1], &[0], &[]]
        {
            assert_eq!(Serial::of(bytes).issue_number(), None, "{bytes:?}");
        }
        let longer = [&Serial::numbered(7, 9)[..], &[1; 4]].concat();
        assert_eq!(Serial::of(&longer).issue_number(), None);
    }

    #[test]
    fn an_ended_certificate_may_renew_for_ninety_days() {
        let Validity { not_after, .. } =
            Identity::of(&certificate(&["edge-csi://node/n1"])).unwrap().validity;
        let validity = Validity { not_before: SystemTime::UNIX_EPOCH, not_after };
        let second = Duration::from_secs(1);
        for (now, ended, renewable) in [
            (not_after, false, false),
            (not_after + second, true, true),
            (not_after + RENEWABLE, true, true),
            (not_after + RENEWABLE + second, true, false),
        ] {
            assert_eq!(validity.ended(now), ended);
            assert_eq!(validity.may_only_renew(now), renewable);
        }
        assert_eq!(validity.left(not_after - second), second);
        assert_eq!(validity.left(not_after + second), Duration::ZERO);
    }

    #[test]
    fn a_certificate_names_its_issuers_key_and_its_hosts() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issued = |hosts: &[&str]| {
            let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let mut params = CertificateParams::new(hosts).unwrap();
            params.use_authority_key_identifier_extension = true;
            params.signed_by(&KeyPair::generate().unwrap(), &ca).unwrap().der().clone()
        };
        let hosts = ["cloud.example", "127.0.0.1", "::1"];
        let one = issued(&hosts);
        let key = IssuerKey::of(&one);
        assert!(key.is_some() && key == IssuerKey::of(&issued(&["other.example"])));
        assert_eq!(IssuerKey::of(&certificate(&["edge-csi://node/n1"])), None);
        assert_eq!(hosts_of(&one).unwrap(), hosts);
        assert_eq!(hosts_of(&certificate(&["edge-csi://node/n1"])), None, "a URI is no host");
    }

    proptest! {
        #[test]
        fn a_serial_has_the_number_that_it_was_issued_with(
            number in 0_u64..1 << 48,
            random: u64,
        ) {
            let bytes = Serial::numbered(number, random);
            // RFC 5280, 4.1.2.2: a serial is positive.
            prop_assert!(bytes[0] < 0x80);
            prop_assert_eq!(Serial::of(&bytes).issue_number(), Some(number));
        }

        #[test]
        fn any_bytes_are_a_certificate_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert!(Identity::of(&CertificateDer::from(bytes)).is_err());
        }

        #[test]
        fn a_damaged_certificate_is_read_or_an_error(at in 0_usize..400, byte: u8) {
            let mut bytes = certificate(&["edge-csi://node/n1"]).to_vec();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let _ = Identity::of(&CertificateDer::from(bytes.as_slice()));
        }
    }
}
