//! The inputs of a dial: endpoints, credentials, the node's drivers, and the receivers of messages.

use std::sync::Arc;
use std::time::Duration;

use edge_calls::drivers::Drivers;
use edge_calls::executor::Executor;
use edge_calls::lease_client::LeaseClient;
use edge_calls::metadata::Metadata;
use edge_calls::scopes::Scopes;
use proto::control::hello::{Run, Welcome};
use proto::control::machine::MachineId;
use proto::control::not_taken::NotTaken;
use proto::link::endpoint::Endpoint;
use proto::link::tls::Credentials;
use proto::link::{KeepAlive, NodeNetwork};
use proto::names::NodeName;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::identity::directory::NodeIdentity;

/// The link in use.
#[derive(Clone, Debug)]
pub struct Linked {
    /// The endpoint of the cloud.
    pub cloud: String,
    /// The time at which it came up.
    pub since: Instant,
}

/// All that dialing needs.
pub struct Dial {
    /// The endpoints of the cloud, the preferred first.
    pub cloud: Vec<Endpoint>,
    /// The first delay before a preferred endpoint is tried again; later delays are longer.
    pub return_after: Duration,
    /// This edge's certificate and key, and the CA that it trusts.
    pub credentials: Credentials,
    /// The identity behind them, if csi-edge renews it.
    pub identity: Option<NodeIdentity>,
    /// This node, as its certificate says.
    pub node: NodeName,
    /// The drivers that the hello names.
    pub drivers: Arc<Drivers>,
    /// Executes the calls.
    pub executor: Arc<Executor>,
    /// Takes the scopes that the cloud tells.
    pub scopes: Arc<Scopes>,
    /// Sends its requests on the link in use.
    pub leases: Arc<LeaseClient>,
    /// Takes the metadata of this node's volumes.
    pub metadata: Arc<Metadata>,
    /// The direct volumes that no runtime took, for the cloud; none until they were looked at.
    pub not_taken: watch::Receiver<Option<NotTaken>>,
    /// True if csi-edge expands volumes on this node in place of the kubelet.
    pub expands: bool,
    /// Gets the link in use; none without a link.
    pub linked: watch::Sender<Option<Linked>>,
    /// The keep-alive settings.
    pub keep_alive: KeepAlive,
    /// The real network, or a simulated one.
    pub network: NodeNetwork,
    /// True if no other csi-edge can have this one's state directory.
    pub answers_challenge: bool,
    /// This run of csi-edge.
    pub run: Run,
    /// This machine. `None` if it has no id.
    pub machine: Option<MachineId>,
}

impl Dial {
    /// Takes what a welcome sets for this node's drivers. It is made durable when the link is up: a
    /// disk that hangs keeps no node away.
    pub(super) fn receive(&self, welcome: Welcome) {
        self.scopes.receive(welcome.scopes);
        self.scopes.receive_published(welcome.publishes_topology);
        self.scopes.receive_node_info_periods(welcome.node_info_every_s);
        self.metadata.set_sent(welcome.metadata);
        welcome.watermark.into_iter().for_each(|told| self.executor.watermark().take(*told));
    }
}
