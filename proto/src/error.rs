//! Our own failures, and the only place where one becomes a gRPC status.
//!
//! The codes are promises to the sidecars (`docs/errors.md`): whatever may have left an operation running,
//! or may pass by itself, is UNAVAILABLE, DEADLINE_EXCEEDED or ABORTED, never a final code. A driver's own
//! status never passes through here; it is copied.

use http::Response;
use tonic::{Code, Status};

use crate::csi::direct::Contradiction;
use crate::csi::frame::FrameError;
use crate::http2::forward::Body;
use crate::names::{DriverName, NodeName};

/// Why a call was not carried out, or its outcome is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path names no method that we pass on.
    #[error("there is no CSI method {0:?} here; csi-cloud and csi-edge pass on the csi.v1 services only")]
    UnknownMethod(String),
    /// The request is not what its method takes; it was not passed on.
    #[error("the request of {method} cannot be read; nothing was done")]
    BadRequest {
        /// The RPC's method name.
        method: &'static str,
        /// What is wrong with it.
        #[source]
        source: BadRequest,
    },
    /// The caller's deadline passed; if the call had been passed on it goes on at the edge.
    #[error("the deadline of the call passed {0}; the same request may be sent again")]
    DeadlinePassed(&'static str),
    /// A field that must be set is empty.
    #[error("{0} needs {1} in its request; nothing was done")]
    Missing(&'static str, &'static str),
    /// The node is known and has no link.
    #[error(
        "node {node} has no link to the cloud, so driver {driver} cannot be reached there; \
         the call can be sent again when csi-edge on {node} has linked"
    )]
    NotLinked {
        /// The node that the call is for.
        node: NodeName,
        /// The driver that the call is for.
        driver: DriverName,
    },
    /// The node has no link, and nothing was ever sent there: the scheduler may choose another one.
    #[error(
        "node {node} has no link to the cloud, and nothing of this name was ever sent to it; another node may be chosen"
    )]
    Reschedule {
        /// The node that the call is for.
        node: NodeName,
    },
    /// Nothing says which node the call is for.
    #[error("cannot tell to which node a call for driver {driver} goes: {why}")]
    NoRoute {
        /// The driver that the call is for.
        driver: DriverName,
        /// What is missing.
        why: String,
    },
    /// What the call names lives on several nodes and the call can be carried out on one only.
    #[error("the volumes live on several nodes ({nodes}); {method} takes volumes of one node")]
    SeveralHomes {
        /// The RPC's method name.
        method: &'static str,
        /// The nodes, joined by commas.
        nodes: String,
    },
    /// The link went away with the call on it.
    #[error("the link to node {node} was lost during the call; its outcome is not known, send it again")]
    LinkLost {
        /// The node on the other end.
        node: NodeName,
        /// How it broke.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A holder lost csi-cloud with the call on it, or there was none in time.
    #[error(
        "csi-cloud, which carries the call out, is away or went away; the outcome is not known, send it again \
         when it runs"
    )]
    ServerLost {
        /// What was met last.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A holder serves a driver that its csi-cloud does not.
    #[error("csi-cloud serves no driver {0:?}; name it in its configuration (drivers, --driver)")]
    NoFront(String),
    /// The driver at this node cannot be reached.
    #[error("driver {driver} cannot be reached at {socket}; is it running, and is this its socket?")]
    DriverAway {
        /// The driver's CSI name.
        driver: DriverName,
        /// Its socket's path.
        socket: String,
        /// What the attempt met.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The driver went away, or misbehaved, with the call on it.
    #[error("driver {driver} broke the call off; its outcome is not known, send it again")]
    DriverBroke {
        /// The driver's CSI name.
        driver: DriverName,
        /// How it broke.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The driver itself does not implement the method.
    #[error("driver {driver} does not implement {method}")]
    NotImplemented {
        /// The driver's CSI name.
        driver: DriverName,
        /// The RPC's method name.
        method: &'static str,
    },
    /// A Node call on the cloud's socket.
    #[error("{0} is carried out on a node; call it on that node's own socket, which csi-edge serves there")]
    NodeOnly(&'static str),
    /// The node has no driver of this name.
    #[error("driver {0:?} is not configured at this node; name it in csi-edge's configuration")]
    NoSuchDriver(String),
    /// What a sidecar reads once at its start is not known yet; an empty answer would be kept for ever.
    #[error(
        "nothing is known of driver {0} yet: no node with it has ever linked; is csi-edge running there?"
    )]
    NotLearned(DriverName),
    /// Whether the node's own callers are to see our topology is the operator's word, which only the cloud has.
    #[error(
        "csi-edge was never told how far the volumes of driver {0} reach (scope), so it cannot say where they are \
         accessible from; it knows when it has linked to csi-cloud once, and then for good if it has --state"
    )]
    ScopeUnknown(DriverName),
    /// What may not be forgotten could not be kept.
    #[error(
        "it could not be made durable, so it was not answered; send it again when the store can be written"
    )]
    NotDurable {
        /// What the store met.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Two nodes say that they have the same thing.
    #[error(
        "{node} made {id:?}, and that is the id of what {home} has; {home} keeps it. \
         Delete the one on {node} by hand, and give the drivers ids that differ"
    )]
    Claimed {
        /// The id.
        id: String,
        /// The node that keeps it.
        home: NodeName,
        /// The node that made another.
        node: NodeName,
    },
    /// An operator removed the node.
    #[error(
        "node {node} was removed for good, with what it has; `csi-cloud node admit {node}` lets it in again"
    )]
    Removed {
        /// The node.
        node: NodeName,
    },
    /// No node is where a volume shall be.
    #[error("driver {driver} can make no volume there: {why}")]
    Nowhere {
        /// The driver that the call is for.
        driver: DriverName,
        /// What was asked for and what there is.
        why: String,
    },
    /// All nodes were asked, and none has it.
    #[error("no node with driver {driver} has {id:?}; all were asked")]
    NoSuchThing {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
    },
    /// Some nodes could not be asked, and the others do not have it.
    #[error("{id:?} is not known, and these nodes with driver {driver} could not be asked for it: {nodes}")]
    NotAsked {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
        /// The nodes.
        nodes: String,
    },
    /// The driver's answer breaks CSI.
    #[error("driver {driver} at {node} answered OK to {method}, {why}; its outcome is not known")]
    BadAnswer {
        /// The driver that the call is for.
        driver: DriverName,
        /// The node.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
        /// What is wrong with the answer.
        why: &'static str,
    },
    /// A list would lack what these nodes have, and who reads it would take that for gone.
    #[error(
        "driver {driver} cannot be listed whole: it is not known what these nodes have: {nodes} ({why}); \
         list again when they have linked and answered"
    )]
    NotListed {
        /// The driver that the call is for.
        driver: DriverName,
        /// The nodes.
        nodes: String,
        /// Why one of them was not asked, or what it said.
        why: String,
    },
    /// No node has said how much room it has, nor has it been away for so long that it counts as full.
    #[error(
        "it is not known how much room driver {driver} has at {nodes}; ask again when they have linked and answered"
    )]
    NoCapacity {
        /// The driver that the call is for.
        driver: DriverName,
        /// The nodes.
        nodes: String,
    },
    /// A page token that no list of ours gave.
    #[error("the starting_token is none that this front gave; begin the list again")]
    BadToken,
    /// Too many calls are in flight.
    #[error("{0} calls are in flight here already, which is the limit; send the call again later")]
    Full(usize),
    /// Something else is being done with what the call is about.
    #[error(
        "another operation is running for what this {method} is about, with a different request; \
         send it again when that has ended"
    )]
    Pending {
        /// The RPC's method name.
        method: &'static str,
    },
    /// The call arrived at the edge by a link that a newer one had replaced.
    #[error(
        "the call came late, on a link that a newer one has replaced; it was not passed on to the driver"
    )]
    LinkReplaced,
    /// What is asked of a direct volume cannot be.
    #[error("{method} is refused; nothing was done")]
    DirectAsked {
        /// The RPC's method name.
        method: &'static str,
        /// What contradicts what.
        #[source]
        source: Contradiction,
    },
    /// A direct volume cannot be handed over as things are; nothing was done.
    #[error("volume {volume} cannot be handed over directly: {why}; nothing was done")]
    DirectRefused {
        /// The volume's id.
        volume: String,
        /// What stands against it, and what to do.
        why: String,
    },
    /// A volume that one guest owns is another's; nothing was done.
    #[error("volume {volume} is owned by another: {why}; nothing was done")]
    Owned {
        /// The volume's id.
        volume: String,
        /// Who has it, and what to do.
        why: String,
    },
    /// A direct volume is published with other words than before.
    #[error("volume {volume} is published at {target} already, and differently; unpublish it first")]
    DirectDiffers {
        /// The volume's id.
        volume: String,
        /// Where it is published.
        target: String,
    },
    /// A direct volume has not been handed over, or taken back, and some of it may be done.
    #[error("volume {volume} is not {wanted} yet")]
    DirectNotYet {
        /// The volume's id.
        volume: String,
        /// What it is to be.
        wanted: &'static str,
        /// What stands against it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The runtime that a direct volume was handed to did not do it.
    #[error("{method} was not carried out for a volume that is handed over directly")]
    Direct {
        /// The RPC's method name.
        method: &'static str,
        /// What kind of failure it is.
        fault: Fault,
        /// What happened.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This process is going away.
    #[error("{0} is stopping; send the call again")]
    Stopping(&'static str),
}

/// How a runtime failed with a direct volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It cannot do that.
    Cannot,
    /// The volume is not handed over there.
    NotThere,
    /// It is handed over, and only who has it could do that.
    HandedOver,
    /// It did not answer in time.
    Late,
    /// It tried, and said that it failed.
    Failed,
    /// It cannot be reached now.
    Away,
}

/// What makes a request unreadable.
#[derive(Debug, thiserror::Error)]
pub enum BadRequest {
    /// It is not one gRPC message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The message is not the protobuf that the method takes.
    #[error("it is not the message that the method takes")]
    Protobuf(#[from] prost::DecodeError),
    /// The message cannot be edited, so it is none.
    #[error("it is not the message that the method takes")]
    Malformed(#[from] crate::csi::wire::Malformed),
    /// The header is not gRPC's.
    #[error("its grpc-timeout {0:?} is not a number of at most 8 digits and a unit (H M S m u n)")]
    Timeout(String),
}

impl Error {
    /// The gRPC code that this failure is answered with; `docs/errors.md` explains each.
    pub fn code(&self) -> Code {
        match self {
            Self::UnknownMethod(_)
            | Self::NotImplemented { .. }
            | Self::NodeOnly(_)
            | Self::Direct { fault: Fault::Cannot, .. }
            | Self::BadRequest { source: BadRequest::Frame(FrameError::Compressed), .. } => {
                Code::Unimplemented
            }
            // The caller itself broke its request off: nobody reads this.
            Self::BadRequest { source: BadRequest::Frame(FrameError::Broken(_)), .. } => Code::Cancelled,
            // Nothing was sent anywhere, and sending it again would not help.
            Self::BadRequest { .. }
            | Self::Missing(..)
            | Self::SeveralHomes { .. }
            | Self::DirectAsked { .. } => Code::InvalidArgument,
            // CSI, NodeExpandVolume: "currently published on a node but the plugin does not have ONLINE expansion
            // capability".
            Self::DirectRefused { .. } | Self::Direct { fault: Fault::HandedOver, .. } => {
                Code::FailedPrecondition
            }
            // CSI, ControllerPublishVolume: "Volume published to another node"; DeleteVolume: "Volume in use".
            Self::Owned { .. } => Code::FailedPrecondition,
            Self::Direct { fault: Fault::Late, .. } => Code::DeadlineExceeded,
            Self::Direct { fault: Fault::Failed, .. } => Code::Internal,
            Self::Direct { fault: Fault::NotThere, .. } => Code::NotFound,
            // CSI: "already been published ... but is incompatible".
            Self::DirectDiffers { .. } => Code::AlreadyExists,
            Self::DeadlinePassed(_) => Code::DeadlineExceeded,
            // CSI: an operation is pending for the volume.
            Self::Pending { .. } => Code::Aborted,
            // CSI: "the starting_token is not valid".
            Self::BadToken => Code::Aborted,
            // CSI: "Unable to provision in accessible_topology"; it was never sent anywhere.
            Self::Nowhere { .. } | Self::Reschedule { .. } => Code::ResourceExhausted,
            Self::NoSuchThing { .. } => Code::NotFound,
            Self::NotLinked { .. }
            | Self::NoRoute { .. }
            | Self::LinkLost { .. }
            | Self::LinkReplaced
            | Self::DriverAway { .. }
            | Self::DriverBroke { .. }
            | Self::NoSuchDriver(_)
            | Self::NotLearned(_)
            | Self::ScopeUnknown(_)
            | Self::ServerLost { .. }
            | Self::NoFront(_)
            | Self::NotDurable { .. }
            | Self::Claimed { .. }
            | Self::Removed { .. }
            | Self::NotAsked { .. }
            | Self::NotListed { .. }
            | Self::NoCapacity { .. }
            | Self::BadAnswer { .. }
            | Self::Full(_)
            // Not final: the kubelet must unpublish what may be published at the driver.
            | Self::DirectNotYet { .. }
            | Self::Direct { fault: Fault::Away, .. }
            | Self::Stopping(_) => Code::Unavailable,
        }
    }

    /// Whether an edge that links may end it: nothing was begun for want of one.
    pub fn awaits_link(&self) -> bool {
        matches!(
            self,
            Self::NotLinked { .. }
                | Self::NoRoute { .. }
                | Self::Reschedule { .. }
                | Self::NotLearned(_)
                | Self::NotAsked { .. }
                | Self::NotListed { .. }
                | Self::NoCapacity { .. }
        )
    }

    /// The failure and all that caused it, in one line.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// The failure as a gRPC status.
    pub fn status(&self) -> Status {
        Status::new(self.code(), self.chain())
    }

    /// The answer that carries this failure to the caller.
    pub fn response(&self) -> Response<Body> {
        self.status().into_http()
    }
}

/// An error and all its sources, joined by `: `. A source whose text its parent repeats is left out.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
