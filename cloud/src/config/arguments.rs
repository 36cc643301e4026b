//! The command line of csi-cloud.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use proto::admin::output::Output;
use proto::config::{Problems, Reader};
use proto::link::tls::Files;
use proto::names::{DriverName, FrontName, NodeName};

use crate::config::admin_arguments::{Ask, RotateCommand};
use crate::config::serve_arguments::Serve;
use crate::etcd::settings::EtcdSettings;
use crate::relay;
use crate::relay::address::Address;
use crate::state::store::url::StoreAt;

/// One CSI socket per driver in the cloud, carried out by the drivers of edge nodes.
///
/// csi-cloud serves CSI to the unmodified Kubernetes sidecars and passes each call to the csi-edge
/// of the node that it is for. Edges dial csi-cloud, so they may sit behind NAT.
#[derive(Debug, Parser)]
#[command(name = "csi-cloud", version, after_help = EXAMPLE)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLE: &str = "\
Example:
  csi-cloud ca init --dir pki --host cloud.example
  csi-cloud ca issue node-1 --dir pki
  csi-cloud serve --listen wss://0.0.0.0:7443 --driver hostdir.edge-csi.io --fronts /run/edge-csi \\
    --store file:/var/lib/edge-csi/cloud.redb \\
    --ca pki/ca.crt --cert pki/cloud.crt --key pki/cloud.key

  csi-cloud front --fronts /run/csi --driver hostdir.edge-csi.io \\
    --to unix:/run/edge-csi/holders.sock

RUST_LOG sets what is logged, for example RUST_LOG=debug or RUST_LOG=cloud=debug,info.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take links and serve CSI sockets until told to stop (SIGTERM, SIGINT).
    Serve {
        /// Only read the configuration and the flags: print ok, or every fault. Nothing else is
        /// touched, neither files nor sockets
        #[arg(long)]
        check: bool,
        /// Where and how to serve
        #[command(flatten)]
        flags: Box<Serve>,
    },
    /// The other commands.
    #[command(flatten)]
    Tool(Tool),
}

/// The commands beside `serve`.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Hold the sidecars' sockets and their calls while the csi-cloud that serves is started again.
    Front(Front),
    /// Make the certificates of both ends.
    #[command(subcommand)]
    Ca(CaCommand),
    /// Look after the store while no csi-cloud has it open. One in etcd may be read at any time.
    #[command(subcommand)]
    Store(StoreCommand),
    /// The commands that ask a running csi-cloud.
    #[command(flatten)]
    Ask(Ask),
}

/// The flags of `front`.
#[derive(Debug, Args)]
pub struct Front {
    /// The directory of the CSI sockets, one NAME.sock for each driver
    #[arg(long, value_name = "DIR")]
    pub fronts: PathBuf,
    /// A driver to hold a CSI socket for; give it once for each
    #[arg(long = "driver", value_name = "NAME", required = true)]
    pub drivers: Vec<DriverName>,
    /// Where csi-cloud takes the calls (its --relays): unix:PATH or https://HOST:PORT; of several
    /// the first that answers
    #[arg(long, value_name = "PLACE", required = true)]
    pub to: Vec<Address>,
    /// For https: the CA that both ends trust, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub ca: Option<PathBuf>,
    /// This front's certificate, PEM: `csi-cloud ca issue --front NAME` makes it
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "ca")]
    pub key: Option<PathBuf>,
    /// How long calls in flight may still take when told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub grace: u16,
}

impl From<Front> for relay::run::Settings {
    fn from(front: Front) -> Self {
        let Front { fronts, drivers, to: servers, ca, cert, key, grace } = front;
        // clap requires all three or none.
        let tls = ca.zip(cert).zip(key).map(|((ca, cert), key)| Files { ca, cert, key });
        let grace = Duration::from_secs(grace.into());
        Self { fronts, drivers, servers, tls, grace }
    }
}

/// The commands that make certificates.
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Make a CA and the cloud's certificate: ca.crt, ca.key, cloud.crt and cloud.key.
    Init {
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
    },
    /// Make the certificate of a node, NODE.crt and NODE.key, or of a front.
    Issue {
        /// The node's name, as Kubernetes knows it
        #[arg(required_unless_present = "front")]
        node: Option<NodeName>,
        /// Instead of a node's: that of a `csi-cloud front` on another host, by any name: NAME.crt
        /// and NAME.key
        #[arg(long, value_name = "NAME", conflicts_with = "node")]
        front: Option<FrontName>,
        /// Where ca.crt and ca.key are, and where the files go
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// How long the certificate is valid, in days
        #[arg(long, value_name = "N", default_value_t = 365)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=3650))]
        days: u16,
    },
    /// Take an existing CA: check it, and write ca.crt, issuer.crt and issuer.key for csi-cloud.
    ///
    /// With an intermediate, the root's key can stay offline. In Kubernetes a mounted TLS Secret
    /// needs no such step: name its files in the section `[ca]`.
    Use {
        /// The certificate of the CA that issues, and those between it and the root, PEM
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// Its private key: PKCS #8, PEM
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The root, PEM; not needed if --cert is one
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
    },
    /// Let another CA take over, with both trusted for a time.
    #[command(subcommand)]
    Rotate(RotateCommand),
}

/// Which store a command is about.
#[derive(Debug, Args)]
pub struct StorePlace {
    /// Where it is: file:PATH, or etcd://HOST:PORT,HOST:PORT/PREFIX
    #[arg(long, value_name = "URL")]
    pub store: StoreAt,
    /// The configuration of csi-cloud, whose section `etcd` says how etcd is reached
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl StorePlace {
    /// The store, and how it is reached. Other keys of the configuration do not matter here.
    ///
    /// # Errors
    /// What the section says contradicts itself.
    pub fn at(self) -> Result<StoreAt, Problems> {
        let mut file = Reader::open(self.config.as_deref());
        let etcd = file.section("etcd", EtcdSettings::read).unwrap_or_default();
        file.finish_part()?;
        Ok(self.store.with_etcd(etcd))
    }
}

/// The commands that look after the store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Check that the store is whole and its records agree; exit code 1 if not.
    Check {
        /// Which
        #[command(flatten)]
        place: Box<StorePlace>,
        /// How to say what is wrong
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Write all records to stdout, one line of JSON each.
    Export {
        /// Which
        #[command(flatten)]
        place: Box<StorePlace>,
        /// The secret keys of csi-cloud as well, in clear. Without them csi-cloud makes new keys
        /// after an import: links are dialed anew, and leases are confirmed anew
        #[arg(long)]
        with_secrets: bool,
    },
    /// Make a store of an export. It must not be there yet, or be empty.
    Import {
        /// Where it goes
        #[command(flatten)]
        place: Box<StorePlace>,
        /// The exported file; - is stdin
        #[arg(default_value = "-")]
        file: PathBuf,
    },
}
