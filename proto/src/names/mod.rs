//! Names of nodes, drivers and relays, checked where they come in, and names in certificates.
//!
//! The node of a link decides whose storage a call reaches. So its name comes only from the
//! certificate that TLS has verified. May use: no other room.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;

pub mod certificate;

/// All names of ours in certificates begin so.
const OUR_URI: &str = "edge-csi://";
/// A node's certificate has this and the node's name as its only URI.
pub const NODE_URI: &str = "edge-csi://node/";

/// A front (`csi-cloud relay`) has this and its name in its certificate.
pub const FRONT_URI: &str = "edge-csi://front/";

/// The reason why a name is malformed, or a certificate names nobody.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Not a node's name. Kubernetes: a DNS-1123 subdomain.
    #[error(
        "{0:?} is no node name; it has at most 253 characters: a-z, 0-9, '-' and '.', each part \
         begins and ends with a letter or digit"
    )]
    NodeName(String),
    /// Not a front's name, which is made like a node's.
    #[error(
        "{0:?} is no name of a front; it is made like a node's: a-z, 0-9, '-' and '.', at most 253"
    )]
    FrontName(String),
    /// Not a driver's name. CSI: "63 characters or less, beginning and ending with an
    /// alphanumeric".
    #[error(
        "{0:?} is no CSI driver name; it has at most 63 characters: letters, digits, '-' and '.', \
         and begins and ends with a letter or digit"
    )]
    DriverName(String),
    /// The certificate cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Certificate(webpki::Error),
    /// The certificate's serial number or validity cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// The certificate has names of two kinds.
    #[error("the certificate has names of two kinds that begin with {OUR_URI}; it may have one")]
    Several,
    /// The certificate does not have exactly one name of a node.
    #[error(
        "the certificate has {0} names that begin with {NODE_URI} and a node's has one; was it \
         made by `csi-cloud ca issue NODE`?"
    )]
    Names(usize),
    /// The certificate does not have exactly one name of a front.
    #[error(
        "the certificate has {0} names that begin with {FRONT_URI} and a front's has one; was it \
         made by `csi-cloud ca issue --relay NAME`?"
    )]
    Fronts(usize),
}

/// The name of a node in Kubernetes: a DNS-1123 subdomain of at most 253 bytes. Clones share the
/// text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

/// The name of a socket relay in its certificate, for the log: a DNS-1123 subdomain of at most 253
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FrontName(Arc<str>);

/// The name of a CSI driver in its `GetPluginInfo`, at most 63 bytes. Clones share the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DriverName(Arc<str>);

impl TryFrom<String> for NodeName {
    type Error = IdentityError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if is_subdomain(&name) { Ok(Self(name.into())) } else { Err(IdentityError::NodeName(name)) }
    }
}

impl TryFrom<String> for FrontName {
    type Error = IdentityError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if is_subdomain(&name) {
            Ok(Self(name.into()))
        } else {
            Err(IdentityError::FrontName(name))
        }
    }
}

impl TryFrom<String> for DriverName {
    type Error = IdentityError;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        let allowed = |b: u8| b.is_ascii_alphanumeric();
        let good = begins_and_ends(&name, allowed)
            && name.bytes().all(|b| allowed(b) || b == b'-' || b == b'.');
        if good && name.len() <= 63 {
            Ok(Self(name.into()))
        } else {
            Err(IdentityError::DriverName(name))
        }
    }
}

/// True if this is a DNS-1123 subdomain of at most 253 bytes.
pub(crate) fn is_subdomain(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let good = |part: &str| {
        begins_and_ends(part, allowed) && part.bytes().all(|b| allowed(b) || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(good)
}

fn begins_and_ends(text: &str, allowed: fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(allowed) && text.bytes().last().is_some_and(allowed)
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdentityError;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                name.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
as_text!(NodeName, DriverName, FrontName);

/// The node of a certificate that TLS has verified.
///
/// # Errors
/// It is not a node's certificate, or has several names.
pub fn node_of(certificate: &CertificateDer<'_>) -> Result<NodeName, IdentityError> {
    match names(certificate, NODE_URI)?.as_slice() {
        [name] => name.parse(),
        several => Err(IdentityError::Names(several.len())),
    }
}

/// The front of a certificate that TLS has verified.
///
/// # Errors
/// It is not a front's certificate, or has several names.
pub fn front_of(certificate: &CertificateDer<'_>) -> Result<FrontName, IdentityError> {
    match names(certificate, FRONT_URI)?.as_slice() {
        [name] => name.parse(),
        several => Err(IdentityError::Fronts(several.len())),
    }
}

fn names(certificate: &CertificateDer<'_>, begin: &str) -> Result<Vec<String>, IdentityError> {
    let certificate = EndEntityCert::try_from(certificate).map_err(IdentityError::Certificate)?;
    let ours = certificate.valid_uri_names().filter(|uri| uri.starts_with(OUR_URI));
    let ours: Vec<_> = ours.collect();
    let names = ours.iter().filter_map(|uri| uri.strip_prefix(begin));
    let names: Vec<_> = names.map(str::to_owned).collect();
    // Of a certificate that names two, it depends on who reads it what it is.
    if !names.is_empty() && ours.len() > names.len() {
        return Err(IdentityError::Several);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    fn certificate(uris: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params
            .subject_alt_names
            .extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn names_are_as_kubernetes_and_csi_define_them() {
        for good in ["a", "node-1", "node-1.example.org", "0"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good:?}");
        }
        let long = "a".repeat(254);
        for bad in ["", "-a", "a-", "A", "a..b", ".a", "a.", "a/b", "a b", "é", "../x", &long] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
        let long = "a".repeat(64);
        for bad in ["", "-a", "a.", "a/b", "a_b", "..", &long] {
            assert!(bad.parse::<DriverName>().is_err(), "{bad:?}");
        }
        assert!("Hostdir.CSI-1.example".parse::<DriverName>().is_ok());
    }

    #[test]
    fn a_certificate_names_exactly_one_node() {
        assert_eq!(node_of(&certificate(&["edge-csi://node/n1"])).unwrap().as_str(), "n1");
        assert!(matches!(node_of(&certificate(&[])), Err(IdentityError::Names(0))));
        let two = certificate(&["edge-csi://node/n1", "edge-csi://node/n2"]);
        assert!(matches!(node_of(&two), Err(IdentityError::Names(2))));
        let both = certificate(&["edge-csi://node/n1", "edge-csi://front/f1"]);
        assert!(matches!(node_of(&both), Err(IdentityError::Several)));
        assert!(matches!(front_of(&both), Err(IdentityError::Several)));
        assert!(matches!(
            node_of(&certificate(&["edge-csi://node/../x"])),
            Err(IdentityError::NodeName(_))
        ));
        assert!(matches!(
            node_of(&CertificateDer::from_slice(b"no")),
            Err(IdentityError::Certificate(_))
        ));
    }

    #[test]
    fn a_front_is_no_node_and_a_node_no_front() {
        let front = certificate(&["edge-csi://front/f1"]);
        let node = certificate(&["edge-csi://node/n1"]);
        assert_eq!(front_of(&front).unwrap().as_str(), "f1");
        assert!(matches!(front_of(&node), Err(IdentityError::Fronts(0))));
        assert!(matches!(node_of(&front), Err(IdentityError::Names(0))));
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_an_error(text in ".*") {
            let _ = text.parse::<NodeName>();
            let _ = text.parse::<DriverName>();
        }

        #[test]
        fn any_bytes_are_a_certificate_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert!(node_of(&CertificateDer::from(bytes)).is_err());
        }
    }
}
