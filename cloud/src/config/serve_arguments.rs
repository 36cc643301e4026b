//! The flags of `csi-cloud serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use proto::config::Flags;
use proto::link::endpoint::Endpoint;
use proto::names::{DriverName, NodeName};

use crate::kubernetes::settings::{ApiChoice, Publish};
use crate::relay::address::Address;
use crate::state::store::replica::replica_name;
use crate::state::store::url::StoreAt;

/// The flags of `serve`. A flag overrides the file.
#[derive(Debug, Default, Args)]
// The variant of the commands has a group of this name.
#[group(skip)]
pub struct Serve {
    /// What both programs have
    #[command(flatten)]
    pub common: Flags,
    /// Where to listen for edges: wss://HOST:PORT or quic://HOST:PORT; may be given several times
    #[arg(long, value_name = "URL")]
    pub listen: Vec<Endpoint>,
    /// A driver to serve a CSI socket for; give it once for each
    #[arg(long = "driver", value_name = "NAME")]
    pub drivers: Vec<DriverName>,
    /// The directory of the CSI sockets, one NAME.sock for each driver
    #[arg(long, value_name = "DIR")]
    pub fronts: Option<PathBuf>,
    /// The node for calls that name none [default: the only node known, if there is just one]
    #[arg(long, value_name = "NODE")]
    pub default_node: Option<NodeName>,
    /// The store of all records: file:PATH; etcd://HOST:PORT,HOST:PORT/PREFIX for several
    /// csi-clouds; or memory: to forget them at the end
    #[arg(long, value_name = "URL")]
    pub store: Option<StoreAt>,
    /// Ignored with a warning: calls that ended are in memory since 0.3.0
    #[arg(long, value_name = "FILE", hide = true)]
    pub calls: Option<PathBuf>,
    /// The name of this csi-cloud among several with one store in etcd [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = replica_name)]
    pub replica: Option<String>,
    /// Where edges reach this csi-cloud: wss://HOST:PORT or quic://HOST:PORT; may be given several
    /// times. The first is in the command that joins a node
    #[arg(long, value_name = "URL")]
    pub advertise: Vec<Endpoint>,
    /// The socket of `csi-cloud nodes`, `volumes` and so on [default: FRONTS/_admin.sock]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
    /// The socket that csi-page reads; nothing can be changed there [default: none]
    #[arg(long, value_name = "PATH")]
    pub view: Option<PathBuf>,
    /// Where /livez, /readyz and /metrics are served, for example 127.0.0.1:9808 [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,
    /// The API of Kubernetes: in-cluster, the path of a kubeconfig, or off [default: off]
    #[arg(long, value_name = "WHERE")]
    pub kubernetes: Option<ApiChoice>,
    /// Publish CSINode entries and labels of nodes: on, off, or auto for nodes whose kubelet does
    /// not [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub publish_csinode: Option<Publish>,
    /// Serve a CSI socket for each driver at each node as well: FRONTS/NODE/DRIVER.sock
    #[arg(long)]
    pub node_fronts: bool,
    /// Where to take the calls of a `csi-cloud relay`: unix:PATH or https://HOST:PORT; may be given
    /// several times. Then --fronts may be left out, and --admin says where the admin socket is
    #[arg(long, value_name = "PLACE")]
    pub relays: Vec<Address>,
    /// The name of --relays before 0.3.0
    #[arg(long, value_name = "PLACE", hide = true)]
    pub holders: Vec<Address>,
}
