//! The failures of direct volumes, and the one place where each becomes a gRPC status.
//!
//! The codes are promises to the kubelet (`docs/reference/errors.md`). If an operation may still
//! run, or the cause may pass by itself, the code is UNAVAILABLE, DEADLINE_EXCEEDED or ABORTED,
//! never a final one. It uses no other room.

use std::time::Duration;

use edge_calls::error::Shared;
use proto::csi::direct::Contradiction;
use proto::csi::frame::FrameError;
use proto::csi::status::BadRequest;
use proto::http2::forward::DeadlinePassed;
use proto::http2::serve::Stopping;

/// The reason why a call on a direct volume was not carried out, or its outcome is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is not what its method takes; it was not passed on.
    #[error("the request of {method} cannot be read; nothing was done")]
    BadRequest {
        /// The RPC's method name.
        method: &'static str,
        /// The fault of the request.
        #[source]
        source: BadRequest,
    },
    /// The caller's deadline passed; an operation that was begun goes on.
    #[error(transparent)]
    DeadlinePassed(#[from] DeadlinePassed),
    /// A field that must be set is empty.
    #[error("{0} needs {1} in its request; nothing was done")]
    Missing(&'static str, &'static str),
    /// A path climbs out of its directory.
    #[error("{method} names the path {path:?}, which climbs with `..`; nothing was done")]
    Climbs {
        /// The RPC's method name.
        method: &'static str,
        /// The path.
        path: String,
    },
    /// Another operation on the volume is running.
    #[error(
        "{running} has been running for {} s on the same direct volume, so this {method} was \
         refused; send it again when that has ended", age.as_secs()
    )]
    Pending {
        /// The RPC's method name.
        method: &'static str,
        /// What runs.
        running: &'static str,
        /// The time since it began.
        age: Duration,
    },
    /// The request is impossible for a direct volume.
    #[error("{method} is refused; nothing was done")]
    DirectAsked {
        /// The RPC's method name.
        method: &'static str,
        /// The contradiction.
        #[source]
        source: Contradiction,
    },
    /// A direct volume cannot be handed over as things are; nothing was done.
    #[error("volume {volume} cannot be handed over directly: {why}; nothing was done")]
    DirectRefused {
        /// The volume's id.
        volume: String,
        /// The obstacle and advice.
        why: String,
    },
    /// The pod's RuntimeClass is not of the kind that the volume was made for; nothing was done.
    #[error("volume {volume} is not published: {why}; nothing was done")]
    OtherRuntime {
        /// The volume's id.
        volume: String,
        /// The pod, the purpose of the volume, and advice.
        why: String,
    },
    /// The RuntimeClass of the pod is not known, and the volume was made for one kind of them.
    #[error("volume {volume} is not published yet: {why}; nothing was done")]
    RuntimeUnknown {
        /// The volume's id.
        volume: String,
        /// The reason.
        why: String,
    },
    /// Another node has the volume's lease; nothing was done.
    #[error("volume {volume} is owned by another: {why}; nothing was done")]
    Owned {
        /// The volume's id.
        volume: String,
        /// The holder and advice.
        why: String,
    },
    /// The volume is published at this target with another file system, other options or another
    /// group.
    #[error(
        "volume {volume} is published at {target} already, and differently; unpublish it first"
    )]
    DirectDiffers {
        /// The volume's id.
        volume: String,
        /// The target at which it is published.
        target: String,
    },
    /// A direct volume has not been handed over, or taken back, and some of it may be done.
    #[error("volume {volume} is not {wanted} yet")]
    DirectNotYet {
        /// The volume's id.
        volume: String,
        /// The state that it is to reach.
        wanted: &'static str,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The runtime that a direct volume was handed to did not do it.
    #[error("{method} was not carried out for a volume that is handed over directly")]
    Direct {
        /// The RPC's method name.
        method: &'static str,
        /// The kind of failure.
        fault: Fault,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This process is going away.
    #[error(transparent)]
    Stopping(#[from] Stopping),
    /// The driver could not be called.
    #[error(transparent)]
    Calls(#[from] Shared),
}

proto::codes! { Error:
    BadRequest { source: BadRequest::Frame(FrameError::Compressed), .. } => Unimplemented,
    // The caller itself broke its request off: nobody reads this.
    BadRequest { source: BadRequest::Frame(FrameError::Broken(_)), .. } => Cancelled,
    // Nothing was sent anywhere, and sending it again would not help.
    BadRequest { .. } => InvalidArgument,
    DeadlinePassed(_) => DeadlineExceeded,
    Missing(..) => InvalidArgument,
    Climbs { .. } => InvalidArgument,
    // CSI: an operation is pending for the volume.
    Pending { .. } => Aborted,
    DirectAsked { .. } => InvalidArgument,
    // CSI, NodeExpandVolume: "currently published on a node but the plugin does not have ONLINE
    // expansion capability".
    DirectRefused { .. } => FailedPrecondition,
    // The pod has to change, or to have another volume.
    OtherRuntime { .. } => FailedPrecondition,
    RuntimeUnknown { .. } => Unavailable,
    // CSI, ControllerPublishVolume: "Volume published to another node";
    // DeleteVolume: "Volume in use".
    Owned { .. } => FailedPrecondition,
    // CSI: "already been published ... but is incompatible".
    DirectDiffers { .. } => AlreadyExists,
    // Not final: the kubelet must unpublish what may be published at the driver.
    DirectNotYet { .. } => Unavailable,
    Direct { fault: Fault::Cannot, .. } => Unimplemented,
    Direct { fault: Fault::NotThere, .. } => NotFound,
    Direct { fault: Fault::HandedOver, .. } => FailedPrecondition,
    Direct { fault: Fault::Late, .. } => DeadlineExceeded,
    Direct { fault: Fault::Failed, .. } => Internal,
    Direct { fault: Fault::Away, .. } => Unavailable,
    Stopping(_) => Unavailable,
    ;
    Calls(error),
}

/// The failure of a runtime with a direct volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It cannot do that.
    Cannot,
    /// The volume is not handed over there.
    NotThere,
    /// It is handed over, and only its holder could do that.
    HandedOver,
    /// It did not answer in time.
    Late,
    /// It tried, and said that it failed.
    Failed,
    /// It cannot be reached now.
    Away,
}

pub(crate) const HANDED_OVER: &str = "handed over directly";
pub(crate) const TAKEN_BACK: &str = "taken back";

/// Turns an error into the failure of a volume that is not `wanted` yet; some of it may be done.
pub(crate) fn not_yet<E>(volume: &str, wanted: &'static str) -> impl Fn(E) -> Error
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let volume = volume.to_owned();
    move |source| Error::DirectNotYet { volume: volume.clone(), wanted, source: source.into() }
}
