//! `csi-cloud ca use`: takes an existing CA, for example an intermediate of a company's root.
//!
//! Nothing is written before a trial has shown that the files fit together.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use proto::admin::input;
use proto::host::publish::{Existing, publish};
use rcgen::KeyPair;
use zeroize::Zeroizing;

use crate::pki::issuer::{CaPem, Issuer};

/// The inputs of `ca use`.
pub struct Use<'a> {
    /// The certificate of the CA that issues, PEM, and those between it and the root. `-` is
    /// standard input, as for the key or the root.
    pub cert: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The root, PEM; without one, the certificate is a root itself.
    pub root: Option<&'a Path>,
    /// The directory of the files.
    pub dir: &'a Path,
    /// The hosts of csi-cloud's own certificate; without any, none is made.
    pub hosts: &'a [String],
    /// Its validity, in days.
    pub days: u16,
}

/// Checks a CA and writes its files; returns what to put into the configuration.
///
/// # Errors
/// The files do not fit together, a file exists already, or one cannot be written.
pub fn use_ca(from: &Use<'_>) -> anyhow::Result<String> {
    let cert = input::read(from.cert)?;
    let roots = from.root.map_or_else(|| Ok(cert.clone()), input::read)?;
    let pem = CaPem { key: Zeroizing::new(input::read(from.key)?), cert, roots };
    let issuer = Issuer::of(&pem, from.cert, from.key, from.root.unwrap_or(from.cert))?;
    let mut files = vec![
        ("ca.crt", Zeroizing::new(pem.roots.into_bytes()), 0o644),
        ("issuer.crt", Zeroizing::new(pem.cert.into_bytes()), 0o644),
        ("issuer.key", Zeroizing::new(pem.key.as_bytes().to_vec()), 0o600),
    ];
    if !from.hosts.is_empty() {
        let key = KeyPair::generate()?;
        let issued = issuer.issue_cloud(from.hosts, &key, from.days);
        let chain = issued.context("a --host is no name and no address")?.chain;
        files.push(("cloud.key", Zeroizing::new(key.serialize_pem().into_bytes()), 0o600));
        files.push(("cloud.crt", Zeroizing::new(chain.into_bytes()), 0o644));
    }
    std::fs::create_dir_all(from.dir)
        .with_context(|| format!("the directory {} cannot be made", from.dir.display()))?;
    let at = |name: &str| -> PathBuf { from.dir.join(name) };
    if let Some((name, ..)) = files.iter().find(|(name, ..)| at(name).exists()) {
        bail!(
            "{} is there already and is left alone; choose another --dir, or move it away",
            at(name).display()
        );
    }
    for (name, content, mode) in &files {
        let path = at(name);
        publish(&path, content, *mode, Existing::Keep)
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let hash = issuer.root_pin();
    let dir = from.dir.canonicalize().unwrap_or_else(|_| from.dir.to_owned());
    let dir = dir.display();
    let own = match from.hosts {
        [] => String::new(),
        _ => format!("\ncert = \"{dir}/cloud.crt\"\nkey = \"{dir}/cloud.key\""),
    };
    Ok(format!(
        "wrote {names} in {dir}\n\
         The root's hash is {hash}\n\
         Put this into csi-cloud's configuration:\n\n\
         [tls]\n\
         ca = \"{dir}/ca.crt\"{own}\n\n\
         [ca]\n\
         cert = \"{dir}/issuer.crt\"\n\
         key = \"{dir}/issuer.key\"",
        names = files.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::ca;
    use proto::link::tls::{Credentials, Files, Role};

    #[test]
    fn an_existing_ca_is_taken_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        ca::init(dir.path(), &["localhost".into()], 1).unwrap();
        let [cert, key, other] =
            ["ca.crt", "ca.key", "cloud.key"].map(|name| dir.path().join(name));
        let to = dir.path().join("taken");
        let hosts = ["cloud.example".to_owned()];
        let from = Use { cert: &cert, key: &key, root: None, dir: &to, hosts: &hosts, days: 1 };
        let refused = use_ca(&Use { key: &other, ..from }).unwrap_err().to_string();
        assert!(refused.contains("one pair"), "{refused}");
        assert!(!to.exists());
        let from = Use { cert: &cert, key: &key, root: None, dir: &to, hosts: &hosts, days: 1 };
        let said = use_ca(&from).unwrap();
        assert!(said.contains("[ca]\ncert = ") && said.contains("sha256:"), "{said}");
        Credentials::load(&Files::of(&to, "cloud"), Role::Cloud).unwrap();
        let again = use_ca(&from).unwrap_err().to_string();
        assert!(again.contains("left alone"), "{again}");
    }
}
