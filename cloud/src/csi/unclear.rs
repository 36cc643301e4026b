//! The reasons for which a call has no certain node, and the error of each.

use proto::csi::{DirectCall, Method};
use proto::names::{DriverName, NodeName};

use crate::error::Error;
use crate::state::node_names::names;

/// Why no node is certain.
#[derive(Debug, PartialEq, Eq)]
pub enum Unclear {
    /// An edge may still link and make it certain; the reason is for an operator.
    Yet(String),
    /// The node is certain, has no link, and was sent nothing.
    Away(NodeName),
    /// The node is certain and was sent nothing, and its driver has been down for `failover_s`.
    /// Only with `reschedule`, so that the scheduler chooses another node.
    Down(NodeName),
    /// The node is certain, and it is set apart, so it creates nothing.
    Apart {
        /// The node.
        node: NodeName,
        /// The reason why it is set apart.
        why: String,
        /// True if the create was sent to it before, so that no other node may get it.
        was_sent: bool,
    },
    /// No node is at the topology. CSI: "Unable to provision in accessible_topology".
    Nowhere(String),
    /// The requested topology excludes the node of the source, and the policy refuses that.
    NotBesideSource {
        /// The source's node.
        node: NodeName,
        /// The kind and id of the source.
        made_from: String,
        /// The requested topology.
        topology: String,
    },
    /// An operator removed the node.
    Removed(NodeName),
    /// The ids live on several nodes, so no node can serve the call.
    SeveralHomes(Vec<NodeName>),
}

impl Unclear {
    /// The error for a caller of this driver. With `may_reschedule`, a create that was certainly
    /// not sent is given back: the scheduler may choose another node.
    pub(super) fn error(self, driver: &DriverName, method: Method, may_reschedule: bool) -> Error {
        let may_reschedule = may_reschedule && method.direct() == Some(DirectCall::Create);
        let driver = driver.clone();
        match self {
            Self::Yet(why) => Error::NoRoute { driver, why },
            Self::Nowhere(why) => Error::Nowhere { driver, why },
            Self::NotBesideSource { node, made_from, topology } => {
                Error::NotBesideSource { driver, node, made_from, topology }
            }
            Self::Removed(node) => Error::Removed { node },
            Self::Away(node) if may_reschedule => Error::Reschedule { node },
            Self::Away(node) => Error::NotLinked { node, driver },
            Self::Apart { node, why, was_sent: false } if may_reschedule => {
                Error::RescheduleUnfit { node, why: format!("is set apart ({why})") }
            }
            Self::Apart { node, why, .. } => Error::SetApart { node, driver, why },
            Self::Down(node) => {
                let why = format!("has driver {driver} down for longer than `failover_s`");
                Error::RescheduleUnfit { node, why }
            }
            Self::SeveralHomes(nodes) => {
                Error::SeveralHomes { method: method.name(), nodes: names(&nodes) }
            }
        }
    }
}
