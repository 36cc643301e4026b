//! Identities for the API server: a CA, a certificate for each component as in a real cluster, and
//! kubeconfigs.
//!
//! Nobody but the stand's own administrator gets more than Kubernetes' built-in roles or our
//! manifests give.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use proto::host::publish::{Existing, publish};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;

/// The certificates' directory, and its CA.
pub(super) struct Access {
    dir: PathBuf,
    server: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Access {
    /// Makes the CA, the API server's certificate and the key that signs the tokens of service
    /// accounts.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn new(dir: &Path, address: Ipv4Addr, port: u16) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "stand");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        write(dir, "ca.crt", &params.self_signed(&key)?.pem())?;
        let accounts = KeyPair::generate()?;
        write(dir, "accounts.key", &accounts.serialize_pem())?;
        write(dir, "accounts.pub", &accounts.public_key_pem())?;
        let issuer = Issuer::new(params, key);
        let access =
            Self { dir: dir.to_owned(), server: format!("https://{address}:{port}"), issuer };
        let mut server = CertificateParams::default();
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.subject_alt_names = vec![
            SanType::IpAddress(IpAddr::V4(address)),
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))),
            SanType::DnsName("kubernetes.default.svc".try_into()?),
        ];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        access.issue("apiserver", server)?;
        Ok(access)
    }

    fn issue(&self, name: &str, params: CertificateParams) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        write(&self.dir, &format!("{name}.crt"), &params.signed_by(&key, &self.issuer)?.pem())?;
        write(&self.dir, &format!("{name}.key"), &key.serialize_pem())
    }

    /// Where a file of this name is.
    pub(super) fn at(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// The kubeconfig of somebody who is known by a certificate.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn user(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> anyhow::Result<PathBuf> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(file, params)?;
        let of = |kind: &str| self.at(&format!("{file}.{kind}"));
        self.config(file, &json!({"client-certificate": of("crt"), "client-key": of("key")}))
    }

    /// The certificates of an etcd at this address and of its client: `etcd` and `csi-cloud-etcd`.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn etcd(&self, address: Ipv4Addr) -> anyhow::Result<()> {
        let mut members = CertificateParams::default();
        members.distinguished_name.push(DnType::CommonName, "etcd");
        members.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(address))];
        // A member is a client of itself, for its gateway.
        members.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue("etcd", members)?;
        let mut client = CertificateParams::default();
        client.distinguished_name.push(DnType::CommonName, "csi-cloud");
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue("csi-cloud-etcd", client)
    }

    /// The kubeconfig of an account of a namespace, which is known by a token in a file. It is for
    /// that namespace, as in a pod.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn account(
        &self,
        namespace: &str,
        file: &str,
        token: &str,
    ) -> anyhow::Result<PathBuf> {
        write(&self.dir, &format!("{file}.token"), token)?;
        let user = json!({"tokenFile": self.at(&format!("{file}.token"))});
        self.config_within(namespace, file, &user)
    }

    fn config(&self, file: &str, user: &serde_json::Value) -> anyhow::Result<PathBuf> {
        self.config_within("default", file, user)
    }

    fn config_within(
        &self,
        namespace: &str,
        file: &str,
        user: &serde_json::Value,
    ) -> anyhow::Result<PathBuf> {
        let context = json!({"cluster": "stand", "user": file, "namespace": namespace});
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "stand", "cluster": {
                "server": self.server, "certificate-authority": self.at("ca.crt")}}],
            "users": [{"name": file, "user": user}],
            "contexts": [{"name": "stand", "context": context}],
            "current-context": "stand",
        });
        let name = format!("{file}.kubeconfig");
        write(&self.dir, &name, &serde_json::to_string_pretty(&config)?)?;
        Ok(self.dir.join(name))
    }
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = dir.join(name);
    publish(&path, text.as_bytes(), 0o600, Existing::Replace)
        .with_context(|| format!("cannot write {}", path.display()))
}
