//! `csi-cloud ca`: makes certificates. Another CA takes over in `admin::ca_rotation`.

use std::path::PathBuf;

use clap::Args;
use proto::admin::command_line::Local;
use proto::host::program;
use proto::names::{FrontName, NodeName};

use crate::pki::ca;
use crate::pki::install::{Use, use_ca};

/// Make a CA and the cloud's certificate: ca.crt, ca.key, cloud.crt and cloud.key.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// Where the files go; the directory is made if it is not there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A host name or address by which edges dial the cloud; may be given several times
    #[arg(long = "host", value_name = "HOST")]
    #[arg(default_values = ["localhost", "127.0.0.1", "::1"])]
    hosts: Vec<String>,
    /// How long the cloud's certificate is valid, in days; the CA is valid ten times as long
    #[arg(long, value_name = "N", default_value_t = 365)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

impl Local for Init {
    const NAME: &'static str = "ca init";

    fn run(self) -> anyhow::Result<()> {
        ca::init(&self.dir, &self.hosts, self.days)
    }
}

/// Make the certificate of a node, NODE.crt and NODE.key, or of a socket relay.
#[derive(Debug, Args)]
pub(super) struct Issue {
    /// The node's name, as Kubernetes knows it
    #[arg(required_unless_present = "relay")]
    node: Option<NodeName>,
    /// Instead of a node's: that of a `csi-cloud relay` on another host, by any name: NAME.crt and
    /// NAME.key
    #[arg(long, value_name = "NAME", conflicts_with = "node", alias = "front")]
    relay: Option<FrontName>,
    /// Where ca.crt and ca.key are, and where the files go
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// How long the certificate is valid, in days
    #[arg(long, value_name = "N", default_value_t = 365)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

impl Local for Issue {
    const NAME: &'static str = "ca issue";

    fn run(self) -> anyhow::Result<()> {
        match (self.relay, self.node) {
            (Some(relay), _) => ca::issue_front(&self.dir, &relay, self.days),
            (None, Some(node)) => ca::issue(&self.dir, &node, self.days),
            // clap requires one of them.
            (None, None) => Ok(()),
        }
    }
}

/// Take an existing CA: check it, and write ca.crt, issuer.crt and issuer.key for csi-cloud.
///
/// With an intermediate, the root's key can stay offline. In Kubernetes a mounted TLS Secret
/// needs no such step: name its files in the section `[ca]`.
#[derive(Debug, Args)]
pub(super) struct UseCa {
    /// The certificate of the CA that issues, and those between it and the root, PEM; - is stdin
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// Its private key: PKCS #8, PEM; - is stdin
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The root, PEM; not needed if --cert is one; - is stdin
    #[arg(long, value_name = "FILE")]
    root: Option<PathBuf>,
    /// Where the files go
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A name or address at which edges dial csi-cloud; may be given several times. Then
    /// cloud.crt and cloud.key are made too
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// How long the certificate of csi-cloud is valid, in days
    #[arg(long, value_name = "N", default_value_t = 90)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

impl Local for UseCa {
    const NAME: &'static str = "ca use";

    fn run(self) -> anyhow::Result<()> {
        let Self { cert, key, root, dir, hosts, days } = &self;
        let from = Use { cert, key, root: root.as_deref(), dir, hosts, days: *days };
        program::tell(use_ca(&from)?);
        Ok(())
    }
}
