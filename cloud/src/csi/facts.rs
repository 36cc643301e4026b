//! What routing decides from, and what it can decide.

use std::collections::BTreeMap;

use proto::csi::Id;
use proto::names::NodeName;

use crate::nodes::node_status::NodeStatus;
use crate::state::affinity::VolumeAnswer;
use crate::state::driver_state::DriverState;
use crate::state::policy::{Policy, Scope};

/// The destination of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The front answers it.
    Local,
    /// This node's driver answers it.
    Node(NodeName),
    /// This node's driver answers it, unless a node claims the id. The node's own word brings the
    /// call there, so it gets no secrets.
    WithoutSecrets(NodeName),
    /// This node's driver answers the delete or detach of what the node alone says that it has, or
    /// had. So it gets no secrets.
    Claimed(NodeName),
    /// This node's driver answers with a stream.
    Stream(NodeName),
    /// The node with the fewest volumes creates it, after the intent is durable. All have a link.
    Create(Id, Vec<NodeName>),
    /// An earlier attempt of this create was sent to this node.
    CreateAgain(Id, NodeName),
    /// A list over all nodes.
    All,
    /// The capacity of these nodes together.
    Capacity(Vec<NodeName>),
    /// A delete of an id without a home goes to every node.
    Everywhere(Id),
    /// This volume has no confirmed home: Kubernetes is asked, then the call is routed again.
    AskKubernetes(String),
    /// These ids have no home: the nodes are asked, then the call is routed again.
    Discover(Vec<Id>),
    /// Answered OK at once, since the node was removed.
    Done,
    /// Only a node's own socket answers this RPC.
    NodeOnly,
}

impl Plan {
    /// The plan of a call whose answer is a stream.
    pub(super) fn streamed(self) -> Self {
        match self {
            Self::Node(node) => Self::Stream(node),
            Self::Local
            | Self::WithoutSecrets(_)
            | Self::Claimed(_)
            | Self::Stream(_)
            | Self::Create(..)
            | Self::CreateAgain(..)
            | Self::All
            | Self::Capacity(_)
            | Self::Everywhere(_)
            | Self::AskKubernetes(_)
            | Self::Discover(_)
            | Self::Done
            | Self::NodeOnly => self,
        }
    }

    /// True if the plan is complete only when every node that may have the driver is known.
    pub(super) fn takes_all_nodes(&self) -> bool {
        match self {
            Self::All | Self::Capacity(_) | Self::Everywhere(_) | Self::Discover(_) => true,
            Self::Local
            | Self::Node(_)
            | Self::WithoutSecrets(_)
            | Self::Claimed(_)
            | Self::Stream(_)
            | Self::Create(..)
            | Self::CreateAgain(..)
            | Self::AskKubernetes(_)
            | Self::Done
            | Self::NodeOnly => false,
        }
    }
}

/// The nodes of one driver at the moment of a decision.
pub trait Nodes {
    /// The status of a node.
    fn status(&self, node: &NodeName) -> NodeStatus;

    /// True if the operator names a node for the driver that never reported it. Such a node may
    /// have an id without a home.
    fn awaits(&self) -> bool;

    /// The reason why the nodes that may have an id without a home are not known. `None` if they
    /// are.
    fn why_uncounted(&self) -> Option<&'static str>;

    /// True if the store is so new that other nodes with the driver may have yet to link.
    fn may_grow(&self) -> bool;
}

/// The facts about one driver.
pub struct RoutingFacts<'a> {
    /// The stored state. `None` if no node ever had the driver.
    pub driver: Option<&'a DriverState>,
    /// The driver's nodes.
    pub nodes: &'a dyn Nodes,
    /// The node of a node's own front.
    pub only: Option<&'a NodeName>,
    /// The driver's scope.
    pub scope: Scope,
    /// The operator's policy.
    pub policy: &'a Policy,
    /// The current time, in ms since 1970.
    pub now: u64,
    /// Kubernetes' answers about volumes, by id. One that is missing was not asked for.
    pub kubernetes: &'a BTreeMap<String, VolumeAnswer>,
    /// The unframed request.
    pub request: &'a [u8],
    /// The CSI node id of a detach.
    pub node_id: Option<&'a str>,
    /// Nodes that had no room for this create lately.
    pub exhausted: &'a [NodeName],
}

impl RoutingFacts<'_> {
    /// The only node that may have an id without a home.
    pub(super) fn only_home(&self) -> Option<NodeName> {
        self.only_node().filter(|_| !self.nodes.may_grow())
    }

    /// The only node that may have the driver, as far as nodes have linked.
    pub(super) fn only_node(&self) -> Option<NodeName> {
        let mut nodes = self.driver?.nodes().keys();
        let only = nodes.next().filter(|_| nodes.next().is_none())?;
        (!self.nodes.awaits() && self.nodes.why_uncounted().is_none()).then(|| only.clone())
    }
}
