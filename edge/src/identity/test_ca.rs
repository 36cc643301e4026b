//! A CA for tests: it issues what csi-cloud would.

use std::path::Path;
use std::time::{Duration, SystemTime};

use proto::control::base64::Base64;
use proto::control::certificate::Certificate;
use proto::link::tls::{Credentials, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivatePkcs8KeyDer};

use super::directory::Directory;

const DAY: Duration = Duration::from_secs(86_400);

pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A certificate for the key of a request, which ends after so many days and began 20 days
    /// before that.
    pub(crate) fn issue(&self, csr: &Base64, uri: &str, days: i64) -> Certificate {
        let der = CertificateSigningRequestDer::from(csr.0.to_vec());
        let mut request = CertificateSigningRequestParams::from_der(&der).unwrap();
        request.params = client(uri, days);
        let certificate = request.signed_by(&self.0).unwrap();
        Certificate { chain: certificate.pem(), ca: self.0.pem() }
    }

    /// The directory with an identity of n1 that ends in so many days, or ended before.
    pub(crate) fn identity(&self, dir: &Path, days: i64) -> Directory {
        let directory = Directory::new(dir);
        let request = directory.request().unwrap();
        let certificate = self.issue(&request.csr().unwrap(), "edge-csi://node/n1", days);
        let chain = format!("{}{}", certificate.chain, request.key()).into_bytes();
        let pem = Pem { ca: certificate.ca.into(), cert: chain.clone(), key: chain.into() };
        directory.write(&pem).unwrap();
        directory
    }

    /// A cloud's credentials for `localhost`.
    pub(crate) fn cloud(&self) -> Credentials {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::made(self.der(), certificate.der().clone(), key.into()).unwrap()
    }
}

fn client(uri: &str, days: i64) -> CertificateParams {
    let far = DAY * u32::try_from(days.unsigned_abs()).unwrap();
    let now = SystemTime::now();
    let end = if days < 0 { now - far } else { now + far };
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = (end - 20 * DAY).into();
    params.not_after = end.into();
    params
}
