//! A request for a certificate, and the check of what comes back.

use std::time::SystemTime;

use anyhow::{Context, bail};
use proto::control::base64::Base64;
use proto::control::certificate::Certificate;
use proto::link::tls::{Credentials, Files, Pem, Role};
use proto::names::NodeName;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

/// A new key, for which a certificate is requested.
pub struct Request {
    key: KeyPair,
}

/// A certificate that csi-cloud issued for a request, checked.
pub struct Issued {
    /// The content of the identity's files.
    pub pem: Pem,
    /// The node that it names.
    pub node: NodeName,
    /// The resulting credentials.
    pub credentials: Credentials,
}

impl Request {
    /// A request with a new key (ECDSA, P-256).
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { key: KeyPair::generate().context("no key can be made")? })
    }

    /// The request of a key that was kept (PEM).
    ///
    /// # Errors
    /// It is no private key.
    pub fn of(key: &str) -> anyhow::Result<Self> {
        Ok(Self { key: KeyPair::from_pem(key)? })
    }

    /// The private key (PEM), to be kept.
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// The certificate signing request. It names nobody: csi-cloud decides whom the certificate
    /// names.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn csr(&self) -> anyhow::Result<Base64> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&self.key).context("no certificate can be requested")?;
        Ok(Base64(csr.der().to_vec().into()))
    }

    /// Checks the certificate that came back: it is for this key, of the CA that came with it,
    /// valid now, and of one node.
    ///
    /// # Errors
    /// It is not; the text names the files that it would have been written to.
    pub fn issued(self, certificate: &Certificate, files: &Files) -> anyhow::Result<Issued> {
        let chain = certificate.chain.trim_end();
        let identity = format!("{chain}\n{}", self.key.serialize_pem()).into_bytes();
        let ca = certificate.ca.clone().into_bytes();
        let pem = Pem { ca, cert: identity.clone(), key: identity.into() };
        let credentials = Credentials::from_pem(&pem, files, Role::Node)
            .context("what csi-cloud issued cannot be used; see the log of csi-cloud")?;
        if credentials.validity().is_some_and(|validity| validity.ended(SystemTime::now())) {
            bail!("what csi-cloud issued has ended already: are both machines' clocks right?");
        }
        let node = credentials.node()?;
        Ok(Issued { pem, node, credentials })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::test_ca::Ca;
    use std::path::Path;

    fn issued(certificate: &Certificate, request: Request) -> Result<Issued, String> {
        let files = Files::identity(Path::new("/identity"));
        request.issued(certificate, &files).map_err(|e| proto::host::chain(e.as_ref()))
    }

    #[test]
    fn what_comes_back_is_checked() {
        let ca = Ca::new();
        let node = "edge-csi://node/n1";
        let fresh = |uri: &str, days| {
            let request = Request::new().unwrap();
            (ca.issue(&request.csr().unwrap(), uri, days), request)
        };
        let (certificate, request) = fresh(node, 1);
        assert_eq!(issued(&certificate, request).unwrap().node.as_str(), "n1");

        for days in [-1, -91] {
            let (certificate, request) = fresh(node, days);
            assert!(issued(&certificate, request).err().unwrap().contains("clocks right"));
        }

        let refused = |certificate: Certificate, request, words: &str| {
            let error = issued(&certificate, request).err().unwrap();
            assert!(error.contains("see the log of csi-cloud"), "{error}");
            assert!(error.contains(words), "{error} has no {words:?}");
        };
        let (certificate, _) = fresh(node, 1);
        refused(certificate, Request::new().unwrap(), "does not belong to");
        let (certificate, request) = fresh("edge-csi://front/f1", 1);
        refused(certificate, request, "not made for this program");
        let (certificate, request) = fresh("spiffe://other", 1);
        refused(certificate, request, "not made for this program");
        let (mut certificate, request) = fresh(node, 1);
        certificate.ca = Ca::new().issue(&request.csr().unwrap(), node, 1).ca;
        refused(certificate, request, "was not issued by the CA");
        let (mut certificate, request) = fresh(node, 1);
        certificate.chain = "nonsense".into();
        refused(certificate, request, "no certificate can be read");
    }
}
