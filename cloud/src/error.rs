//! The failures of csi-cloud, and the one place where each becomes a gRPC status.
//!
//! The codes are promises to the sidecars (`docs/reference/errors.md`). If an operation may still
//! run, or the cause may pass by itself, the code is UNAVAILABLE, DEADLINE_EXCEEDED or ABORTED,
//! never a final one. A driver's own status never passes through here; it is copied. May use: no
//! other room.

use proto::csi::direct::Contradiction;
use proto::csi::frame::FrameError;
use proto::csi::status::BadRequest;
use proto::http2::forward::DeadlinePassed;
use proto::http2::serve::Stopping;
use proto::names::{DriverName, FrontName, NodeName};

pub use not_leading::NotLeading;

mod not_leading;
mod retry;

/// The reason why a call was not carried out, or its outcome is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path names no method that we pass on.
    #[error(
        "there is no CSI method {0:?} here; csi-cloud and csi-edge pass on the csi.v1 services \
         only"
    )]
    UnknownMethod(String),
    /// The request is not what its method takes; it was not passed on.
    #[error("the request of {method} cannot be read; nothing was done")]
    BadRequest {
        /// The RPC's method name.
        method: &'static str,
        /// The fault of the request.
        #[source]
        source: BadRequest,
    },
    /// The caller's deadline passed; a call that was passed on before goes on at the edge.
    #[error(transparent)]
    DeadlinePassed(#[from] DeadlinePassed),
    /// A field that must be set is empty.
    #[error("{0} needs {1} in its request; nothing was done")]
    Missing(&'static str, &'static str),
    /// The node is known and has no link.
    #[error(
        "node {node} has no link to the cloud, so driver {driver} cannot be reached there; the \
         call can be sent again when csi-edge on {node} has linked"
    )]
    NotLinked {
        /// The node that the call is for.
        node: NodeName,
        /// The driver that the call is for.
        driver: DriverName,
    },
    /// The node has no link, and nothing was ever sent there: the scheduler may choose another one.
    #[error(
        "node {node} has no link to the cloud, and nothing of this name was ever sent to it; \
         another node may be chosen"
    )]
    Reschedule {
        /// The node that the call is for.
        node: NodeName,
    },
    /// The node is set apart: it gets no new volumes.
    #[error(
        "node {node} is set apart for driver {driver}, so nothing new is made there: {why}; \
         `csi-cloud nodes` shows it, and docs/design/nodes-and-drivers.md says \
         what to do"
    )]
    SetApart {
        /// The node that the call is for.
        node: NodeName,
        /// The driver that the call is for.
        driver: DriverName,
        /// The reason why it is set apart.
        why: String,
    },
    /// The node is set apart or its driver is down, and nothing was ever sent there: the scheduler
    /// may choose another one.
    #[error(
        "node {node} {why}, and nothing of this name was ever sent to it; another node may be \
         chosen"
    )]
    RescheduleUnfit {
        /// The node that the call is for.
        node: NodeName,
        /// Why it makes nothing new, as the predicate of a sentence.
        why: String,
    },
    /// Nothing says which node the call is for.
    #[error("cannot tell to which node a call for driver {driver} goes: {why}")]
    NoRoute {
        /// The driver that the call is for.
        driver: DriverName,
        /// The reason.
        why: String,
    },
    /// The call names things with homes on several nodes, and only one node can carry it out.
    #[error("the volumes live on several nodes ({nodes}); {method} takes volumes of one node")]
    SeveralHomes {
        /// The RPC's method name.
        method: &'static str,
        /// The nodes, joined by commas.
        nodes: String,
    },
    /// The link went away with the call on it.
    #[error(
        "the link to node {node} was lost during the call; its outcome is not known, send it \
         again"
    )]
    LinkLost {
        /// The node on the other end.
        node: NodeName,
        /// The failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A socket relay lost csi-cloud during the call, or found none in time.
    #[error(
        "csi-cloud, which carries the call out, is away or went away; the outcome is not known, \
         send it again when it runs"
    )]
    ServerLost {
        /// The last failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A socket relay serves a driver that its csi-cloud does not.
    #[error("csi-cloud serves no driver {0:?}; name it in its configuration (drivers, --driver)")]
    NoFront(String),
    /// A socket relay calls a driver that is not among those of its section.
    #[error(
        "the socket relay {relay} may not call driver {driver}; if it shall, add the driver to \
         [relay.\"{relay}\"] drivers in csi-cloud's configuration"
    )]
    NotOfRelay {
        /// The name in the relay's certificate.
        relay: FrontName,
        /// The driver's CSI name.
        driver: DriverName,
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
    #[error(
        "{0} is carried out on a node; call it on that node's own socket, which csi-edge serves \
         there"
    )]
    NodeOnly(&'static str),
    /// The answer is not known yet. A sidecar reads it once, and would keep an empty one for ever.
    #[error(
        "nothing is known of driver {0} yet: no node with it has ever linked; is csi-edge running \
         there?"
    )]
    NotLearned(DriverName),
    /// The store may lack creates that were sent.
    #[error("nothing is created for driver {driver}: {why}. Nothing was sent")]
    CreatesHeld {
        /// The driver.
        driver: DriverName,
        /// How that is known, and what ends it.
        why: String,
    },
    /// What may not be forgotten could not be kept.
    #[error(
        "a record of this call could not be made durable, so its outcome is not reported; send it \
         again when the store can be written"
    )]
    NotDurable {
        /// The failure of the store.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Two nodes say that they have the same thing.
    #[error(
        "node {node} made {id:?}, an id that already belongs to node {home}, which keeps it. \
         Delete {node}'s by hand; give the drivers distinct ids"
    )]
    Claimed {
        /// The id.
        id: String,
        /// The node that keeps it.
        home: NodeName,
        /// The node that made another.
        node: NodeName,
    },
    /// A driver answers two names with one id.
    #[error(
        "node {node}: its driver answered the create of {name:?} with {id:?}, which it made under \
         the name {other:?}; that name keeps it. If the one of {other:?} is gone there, `csi-cloud \
         volume forget {driver} ID --force`, and send the create again"
    )]
    NameTaken {
        /// The driver that the call is for.
        driver: DriverName,
        /// The node.
        node: NodeName,
        /// The id.
        id: String,
        /// The name of this create.
        name: String,
        /// The name that keeps the id.
        other: String,
    },
    /// An operator removed the node.
    #[error(
        "node {node} was removed for good, with what it has; `csi-cloud node admit {node}` lets \
         it in again"
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
        /// The request, and the alternatives that exist.
        why: String,
    },
    /// The source's node is not in the requested topology, and the operator does not want the
    /// volume there.
    #[error(
        "driver {driver} can make a volume from {made_from} at node {node} only, which is not in \
         the requested topology {topology}; it is not made there, because the driver's section \
         has beside_source = false"
    )]
    NotBesideSource {
        /// The driver that the call is for.
        driver: DriverName,
        /// The source's node.
        node: NodeName,
        /// The kind and id of the source.
        made_from: String,
        /// The requested topology.
        topology: String,
    },
    /// All nodes were asked, and none has it.
    #[error("no node with driver {driver} has {id:?}; all were asked")]
    NoSuchThing {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
    },
    /// No node has it that can be asked, and the drivers of others cannot say. No later answer can
    /// differ.
    #[error(
        "no node with driver {driver} says that it has {kind} {id:?}, and the drivers of these \
         cannot say it: {nodes}; `csi-cloud volume adopt {driver} ID --kind {kind} --node NODE` \
         says which node has it"
    )]
    NobodyCanSay {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
        /// Its kind.
        kind: &'static str,
        /// The nodes.
        nodes: String,
    },
    /// Some nodes could not be asked, and the others do not have it.
    #[error(
        "{id:?} is not known, and these nodes with driver {driver} could not be asked for it: \
         {nodes}"
    )]
    NotAsked {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
        /// The nodes.
        nodes: String,
    },
    /// One of several nodes refused the delete of an id without a home.
    #[error(
        "{node} refused {method} of {id:?}, which has no home among the nodes with driver \
         {driver}, and is gone only if each of them says so: {why}; if {node} has it, `csi-cloud \
         volume adopt {driver} ID --node {node}`, and if {node} cannot be trusted, `csi-cloud node \
         remove {node}`"
    )]
    RefusedByOne {
        /// The driver that the call is for.
        driver: DriverName,
        /// The RPC.
        method: &'static str,
        /// The id.
        id: String,
        /// The node.
        node: NodeName,
        /// The status of its driver.
        why: String,
    },
    /// Several nodes claim the same id without a home.
    #[error(
        "{nodes} each say that they have {id:?} of driver {driver}, so none is believed and \
         nothing was done; find out which one has it, then `csi-cloud volume adopt {driver} ID \
         --node NODE`"
    )]
    Disputed {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
        /// The nodes.
        nodes: String,
    },
    /// One node claims an id without a home, and others that may have it could not be asked.
    #[error(
        "{node} says that it has {id:?} of driver {driver}; that is not believed before these \
         nodes can be asked too: {nodes}. If it is right, `csi-cloud volume adopt {driver} ID \
         --node {node}` says so"
    )]
    Unconfirmed {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
        /// The node that claims it.
        node: NodeName,
        /// The nodes that could not be asked.
        nodes: String,
    },
    /// Only nodes say where an id without a home is, and the store is new: others may yet link.
    #[error(
        "{nodes} may have {id:?} of driver {driver}; that is not believed before {from}, because \
         this csi-cloud's store began empty and other nodes may have yet to link. `csi-cloud \
         volume adopt {driver} ID --kind {kind} --node NODE` says now which node has it; with the \
         name of each node in `nodes` of the driver's section nothing waits"
    )]
    NewStore {
        /// The driver that the call is for.
        driver: DriverName,
        /// The id.
        id: String,
        /// Its kind.
        kind: &'static str,
        /// The nodes that claim it, or that cannot say whether they have it.
        nodes: String,
        /// The time from which nodes are believed.
        from: String,
    },
    /// The driver's answer breaks CSI.
    #[error(
        "node {node}: driver {driver} answered OK to {method}, {why}; its outcome is not known"
    )]
    BadAnswer {
        /// The driver that the call is for.
        driver: DriverName,
        /// The node.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
        /// The fault of the answer.
        why: &'static str,
    },
    /// The list would lack the entries of these nodes, and its reader would take them for gone.
    #[error(
        "driver {driver} cannot be listed whole: it is not known what these nodes have: {nodes} \
         ({why}); list again when they have linked and answered"
    )]
    NotListed {
        /// The driver that the call is for.
        driver: DriverName,
        /// The nodes.
        nodes: String,
        /// The reason why one of them was not asked, or its answer.
        why: String,
    },
    /// No node has said how much room it has, nor has it been away for so long that it counts as
    /// full.
    #[error(
        "it is not known how much room driver {driver} has at {nodes}; ask again when they have \
         linked and answered"
    )]
    NoCapacity {
        /// The driver that the call is for.
        driver: DriverName,
        /// The nodes.
        nodes: String,
    },
    /// A page token that csi-cloud did not issue.
    #[error("the starting_token is none that this front gave; begin the list again")]
    BadToken,
    /// The node is over a quota.
    #[error(
        "node {node} is over a quota, so nothing new is made or kept there: {why}; delete what is \
         not needed there, or raise the quota"
    )]
    OverQuota {
        /// The node.
        node: NodeName,
        /// The quota, and how it is exceeded.
        why: String,
    },
    /// Too many calls are in flight.
    #[error("{0} calls are in flight here already, which is the limit; send the call again later")]
    Full(usize),
    /// A class has a parameter with our prefix that it cannot have: the method, and the reason.
    #[error("{0} is refused: {1}; nothing was done")]
    UnknownParameter(&'static str, String),
    /// The request is impossible for a direct volume.
    #[error("{method} is refused; nothing was done")]
    DirectAsked {
        /// The RPC's method name.
        method: &'static str,
        /// The contradiction.
        #[source]
        source: Contradiction,
    },
    /// The RuntimeClass of the pods is to decide, and does not.
    #[error(
        "volume {name} of driver {driver} is not created: edge-csi.io/direct is auto in its \
         class, and {why}; nothing was sent"
    )]
    DirectUndecided {
        /// The driver that the call is for.
        driver: DriverName,
        /// The volume's name.
        name: String,
        /// The reason and advice.
        why: String,
    },
    /// Whether a volume is direct is not decided yet, or was decided otherwise before.
    #[error("volume {name} of driver {driver} is not created yet: {why}")]
    DirectNotYet {
        /// The driver that the call is for.
        driver: DriverName,
        /// The volume's name.
        name: String,
        /// The reason.
        why: String,
    },
    /// The expansion of a volume on its node takes a secret that csi-edge does not have.
    #[error(
        "volume {volume} of driver {driver} is not expanded: csi-edge on {node} does the node's \
         half there (node_expansion = \"edge\") and has no secrets, and its PersistentVolume has a \
         nodeExpandSecretRef; nothing was done"
    )]
    NodeSecret {
        /// The driver that the call is for.
        driver: DriverName,
        /// The node that the call is for.
        node: NodeName,
        /// The volume's id.
        volume: String,
    },
    /// Kubernetes does not say whether an expansion takes a secret.
    #[error(
        "volume {volume} is not expanded yet: csi-edge on {node} does the node's half without \
         secrets, and Kubernetes does not say whether that takes one (nodeExpandSecretRef); send \
         the call again"
    )]
    NodeSecretUnknown {
        /// The node that the call is for.
        node: NodeName,
        /// The volume's id.
        volume: String,
    },
    /// The attach names a node by an id that it had before.
    #[error(
        "{node_id:?} is an id that node {node} had before, and driver {driver} reports another one \
         there by now; restart the driver's registrar on {node}, so that its kubelet learns it. \
         Nothing was sent"
    )]
    FormerNodeId {
        /// The driver that the call is for.
        driver: DriverName,
        /// The node that had it.
        node: NodeName,
        /// The former id.
        node_id: String,
    },
    /// Another node has the volume's lease; nothing was done.
    #[error("volume {volume} is owned by another: {why}; nothing was done")]
    Owned {
        /// The volume's id.
        volume: String,
        /// The holder and advice.
        why: String,
    },
    /// This csi-cloud is one of several, and does not lead.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// This process is going away.
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

proto::codes! { Error:
    UnknownMethod(_) => Unimplemented,
    BadRequest { source: BadRequest::Frame(FrameError::Compressed), .. } => Unimplemented,
    // The caller itself broke its request off: nobody reads this.
    BadRequest { source: BadRequest::Frame(FrameError::Broken(_)), .. } => Cancelled,
    // Nothing was sent anywhere, and sending it again would not help.
    BadRequest { .. } => InvalidArgument,
    DeadlinePassed(_) => DeadlineExceeded,
    Missing(..) => InvalidArgument,
    NotLinked { .. } => Unavailable,
    Reschedule { .. } => ResourceExhausted,
    SetApart { .. } => Unavailable,
    RescheduleUnfit { .. } => ResourceExhausted,
    NoRoute { .. } => Unavailable,
    SeveralHomes { .. } => InvalidArgument,
    LinkLost { .. } => Unavailable,
    ServerLost { .. } => Unavailable,
    NoFront(_) => Unavailable,
    NotOfRelay { .. } => Unavailable,
    NotImplemented { .. } => Unimplemented,
    NodeOnly(_) => Unimplemented,
    NotLearned(_) => Unavailable,
    CreatesHeld { .. } => Unavailable,
    NotDurable { .. } => Unavailable,
    Claimed { .. } => Unavailable,
    NameTaken { .. } => Unavailable,
    Removed { .. } => Unavailable,
    // CSI: "Unable to provision in accessible_topology"; it was never sent anywhere.
    Nowhere { .. } => ResourceExhausted,
    // The same, by the operator's setting.
    NotBesideSource { .. } => ResourceExhausted,
    NoSuchThing { .. } => NotFound,
    NobodyCanSay { .. } => FailedPrecondition,
    NotAsked { .. } => Unavailable,
    RefusedByOne { .. } => Unavailable,
    Disputed { .. } => Unavailable,
    Unconfirmed { .. } => Unavailable,
    NewStore { .. } => Unavailable,
    BadAnswer { .. } => Unavailable,
    NotListed { .. } => Unavailable,
    NoCapacity { .. } => Unavailable,
    // CSI: "the starting_token is not valid".
    BadToken => Aborted,
    // Nothing was sent; the scheduler may choose another node.
    OverQuota { .. } => ResourceExhausted,
    Full(_) => Unavailable,
    UnknownParameter(..) => InvalidArgument,
    DirectAsked { .. } => InvalidArgument,
    // external-provisioner shows it at the claim, and tries again.
    DirectUndecided { .. } => FailedPrecondition,
    DirectNotYet { .. } => Unavailable,
    // external-resizer shows it at the claim and tries seldom; nothing was sent.
    NodeSecret { .. } => InvalidArgument,
    NodeSecretUnknown { .. } => Unavailable,
    FormerNodeId { .. } => Unavailable,
    // CSI, ControllerPublishVolume: "Volume published to another node";
    // DeleteVolume: "Volume in use".
    Owned { .. } => FailedPrecondition,
    NotLeading(_) => Unavailable,
    Stopping(_) => Unavailable,
}

#[cfg(test)]
mod tests;
