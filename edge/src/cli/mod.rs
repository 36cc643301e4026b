//! The command line of csi-edge: what its commands take, and what `csi-edge direct` does.
//!
//! It may use `identity`, `edge-calls` and `edge-direct`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use edge_calls::drivers::Sockets;
use edge_direct::climbs;
use proto::admin::output::Output;
use proto::config::Flags;
use proto::host::socket::{abstract_name, path_of};
use proto::link::endpoint::Endpoint;
use proto::link::proxy::ProxyText;
use proto::link::tls::Pin;
use proto::names::DriverName;

pub mod direct;
pub mod join;
pub(crate) mod place;

/// What `doctor` takes.
#[derive(Debug, Args)]
pub struct Doctor {
    /// What `serve` takes. Without --config and --cloud, /etc/edge-csi/edge.toml is read
    #[command(flatten)]
    pub serve: Box<Serve>,
    /// As a table or as JSON, whose field names do not change
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// What `serve` takes. A flag overrides the file.
#[derive(Debug, Args)]
// The variant of the commands has a group of this name.
#[group(skip)]
pub struct Serve {
    /// What both programs have
    #[command(flatten)]
    pub common: Flags,
    /// An endpoint of the cloud: wss://HOST:PORT or quic://HOST:PORT; give the preferred one first
    #[arg(long, value_name = "URL")]
    pub cloud: Vec<Endpoint>,
    /// The HTTP proxy for wss:// endpoints, in place of the environment's; none for no proxy
    #[arg(long, value_name = "URL")]
    pub proxy: Option<ProxyText>,
    /// A driver of this node and its CSI socket; give it once for each driver
    #[arg(long = "driver", value_name = "NAME=SOCKET", value_parser = driver_at)]
    pub drivers: Vec<DriverAt>,
    /// The directory of this node's identity, as `csi-edge join` makes it; instead of --ca, --cert
    /// and --key. csi-edge renews it by itself
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// The hash of csi-cloud's CA: csi-edge joins by itself while --identity has no certificate.
    /// With --token-file. In the chart's pods it is in the environment, so that all commands have
    /// it
    #[arg(long, value_name = "sha256:HEX", env = "EDGE_CSI_CA_HASH")]
    pub ca_hash: Option<Pin>,
    /// The file of the token to join with, for example of a projected ServiceAccount token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The socket of `csi-edge status`, `drivers` and so on [default: FRONTS/_admin.sock]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
    /// Where to serve /livez, /readyz and /metrics over HTTP; nowhere if it is not given
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,
    /// A directory for this node's own CSI sockets, one NAME.sock for each driver
    #[arg(long, value_name = "DIR")]
    pub fronts: Option<PathBuf>,
    /// A directory for what csi-edge must know after a restart without the cloud; on a disk that
    /// outlives a reboot
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Where VM runtimes look for direct volumes; /run/kata-containers/shared/direct-volumes if it
    /// is not given
    #[arg(long, value_name = "DIR")]
    pub direct_volumes: Option<PathBuf>,
    /// Where VM runtimes that serve csi-edge's own contract have their sandboxes;
    /// /run/edge-csi/sandboxes if it is not given
    #[arg(long, value_name = "DIR")]
    pub sandboxes: Option<PathBuf>,
    /// A directory that targets of direct volumes may be in; give it once for each. The kubelet's,
    /// /var/lib/kubelet, if it is not given
    #[arg(long, value_name = "DIR", value_parser = target_directory)]
    pub targets: Vec<PathBuf>,
}

/// A driver and its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverAt {
    /// Its CSI name.
    pub name: DriverName,
    /// Where it is reached.
    pub sockets: Sockets,
}

/// A directory of targets. An absolute one: what the kubelet names is absolute too.
///
/// # Errors
/// The path is not absolute, or climbs with `..`.
pub(crate) fn target_directory(path: &str) -> Result<PathBuf, String> {
    let directory = PathBuf::from(path);
    let plain = directory.is_absolute() && !climbs(&directory);
    plain.then_some(directory).ok_or_else(|| format!("{path:?} is no absolute path without .."))
}

fn driver_at(text: &str) -> Result<DriverAt, String> {
    let (name, socket) = text.split_once('=').ok_or("write NAME=SOCKET")?;
    let name = name.parse().map_err(|error: proto::names::IdentityError| error.to_string())?;
    let socket = if abstract_name(socket).is_some() { socket } else { path_of(socket) };
    if socket.is_empty() {
        Err("the socket's path is missing".into())
    } else {
        Ok(DriverAt { name, sockets: PathBuf::from(socket).into() })
    }
}
