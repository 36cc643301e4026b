//! The failures of csi-edge, and the one place where each becomes a gRPC status.
//!
//! The codes are promises to the sidecars (`docs/reference/errors.md`). If an operation may still
//! run, or the cause may pass by itself, the code is UNAVAILABLE, DEADLINE_EXCEEDED or ABORTED,
//! never a final one. It may use `fence`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proto::csi::Method;
use proto::csi::frame::FrameError;
use proto::csi::status::{BadRequest, ToStatus};
use proto::http2::forward::DeadlinePassed;
use proto::http2::serve::Stopping;
use proto::names::{DriverName, NodeName};
use tonic::Code;

use crate::fence::FenceError;
use crate::many_deletes::{AT_ONCE, PER_HOUR};

/// A driver's socket at a node, as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverSocket {
    /// The node.
    pub node: NodeName,
    /// The driver's CSI name.
    pub driver: DriverName,
    /// Its socket's path.
    pub socket: String,
}

impl fmt::Display for DriverSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, driver, socket } = self;
        write!(f, "node {node}: driver {driver} at {socket}")
    }
}

/// The reason why a call was not carried out, or its outcome is not known. What a driver or this
/// node causes names the node first.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path names no method that we pass on.
    #[error(
        "there is no CSI method {0:?} here; csi-cloud and csi-edge pass on the csi.v1 services \
         only"
    )]
    UnknownMethod(String),
    /// csi-cloud does not send this over a link.
    #[error(
        "{0:?} is no call that csi-cloud sends over a link; nothing was done (Node calls come by \
         the node's own front)"
    )]
    NotSent(String),
    /// The node's operator denies the call, and no run of it is open.
    #[error(
        "node {node}: {method} is denied at this node (deny in csi-edge's configuration); nothing \
         was done"
    )]
    Denied {
        /// The node.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
    },
    /// The node's operator denies the call, and an earlier run of it may be open.
    #[error(
        "node {node}: {method} is denied at this node (deny in csi-edge's configuration) and was \
         not passed on, but {why}, so what came of it is not known"
    )]
    DeniedInDoubt {
        /// The node.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
        /// The reason why a run may be open.
        why: &'static str,
    },
    /// csi-cloud deletes more different things than the node's operator lets it.
    #[error(
        "node {node}: {method} was not passed on: csi-cloud may delete {AT_ONCE} different volumes \
         and snapshots at this node, and {PER_HOUR} more each hour (\"many-deletes\" in deny of \
         csi-edge's configuration). If these deletes are meant, the node's operator takes that \
         out and starts csi-edge again"
    )]
    ManyDeletes {
        /// The node.
        node: NodeName,
        /// The RPC's method name.
        method: &'static str,
    },
    /// The request is not what its method takes; it was not passed on.
    #[error("the request of {method} cannot be read; nothing was done")]
    BadRequest {
        /// The RPC's method name.
        method: &'static str,
        /// The fault of the request.
        #[source]
        source: BadRequest,
    },
    /// The request was not there in time, or found no room; nothing of it was passed on.
    #[error(
        "node {node}: the request was not whole within 10 s, or too many large ones came at once; \
         nothing was done, so send it again"
    )]
    BodyLate {
        /// The node.
        node: NodeName,
    },
    /// The caller's deadline passed; a call that was passed on before goes on at the edge.
    #[error(transparent)]
    DeadlinePassed(#[from] DeadlinePassed),
    /// The caller's deadline passed before the call was passed on, so the driver never got it.
    #[error(transparent)]
    TooLate(DeadlinePassed),
    /// The time passed in which a shared driver's call may begin here, so the driver never got it.
    #[error(
        "the call came too late to begin at this node: csi-cloud may have sent it to another node \
         of this shared driver by now; the same request may be sent again"
    )]
    BeginsTooLate,
    /// The driver at this node cannot be reached.
    #[error("{at} cannot be reached; is it running, and is this its socket?")]
    DriverAway {
        /// The driver.
        at: Arc<DriverSocket>,
        /// The error of the attempt.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The driver went away, or misbehaved, with the call on it.
    #[error("{at} broke the call off; its outcome is not known, send it again")]
    DriverBroke {
        /// The driver.
        at: Arc<DriverSocket>,
        /// The failure of the connection.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The node has no driver of this name.
    #[error(
        "node {node}: there is no driver {driver:?} here; name it in csi-edge's configuration, \
         or allow it there and let it register ([discovery])"
    )]
    NoSuchDriver {
        /// The node.
        node: NodeName,
        /// The name.
        driver: String,
    },
    /// No certificate says which node this is.
    #[error(
        "node {node}: NodeGetInfo is not answered, because csi-edge knows this name from its state \
         directory alone; its identity cannot be used: {why}"
    )]
    NameUncertain {
        /// The name.
        node: NodeName,
        /// Why the identity cannot be used.
        why: String,
    },
    /// Whether the node's own callers are to see our topology is the operator's word, which only
    /// the cloud has.
    #[error(
        "node {}: csi-edge was never told how far the volumes of driver {} reach (scope), so it \
         cannot say where they are accessible from; it knows when it has linked to csi-cloud \
         once, and then for good if it has --state", at.node, at.driver
    )]
    ScopeUnknown {
        /// The driver.
        at: Arc<DriverSocket>,
    },
    /// The driver's answer breaks CSI.
    #[error("{at} answered OK to {method}, {why}; its outcome is not known")]
    BadAnswer {
        /// The driver.
        at: Arc<DriverSocket>,
        /// The RPC's method name.
        method: &'static str,
        /// The fault of the answer.
        why: &'static str,
    },
    /// A volume has grown at its driver's controller, and not yet on this node.
    #[error(
        "node {}: volume {volume} of driver {} has grown, but not on this node: {why}; its node's \
         half is tried again with this call, and when the volume is next staged or published",
        at.node, at.driver
    )]
    NotGrownHere {
        /// The driver.
        at: Arc<DriverSocket>,
        /// The volume's id.
        volume: String,
        /// The driver's message, or the failure.
        why: String,
    },
    /// The growth of a volume cannot be kept in the state directory.
    #[error(
        "the growth of volume {volume} cannot be noted in csi-edge's --state, so the call is not \
         answered: {why}; make that directory writable and send the call again"
    )]
    NotNoted {
        /// The volume's id.
        volume: String,
        /// The reason.
        why: String,
    },
    /// Too many calls are in flight.
    #[error(
        "{at} has {limit} calls in flight already, which is the limit; send the call again later"
    )]
    Full {
        /// The driver.
        at: Arc<DriverSocket>,
        /// The most calls.
        limit: usize,
    },
    /// A different request holds what this one needs for itself.
    #[error(
        "{running} of {about:?} has been running for {} s, so this {method} was refused; send it \
         again when that has ended", age.as_secs()
    )]
    Pending {
        /// The RPC's method name.
        method: &'static str,
        /// The name of the method that runs.
        running: &'static str,
        /// The id or name that it is about.
        about: String,
        /// The time since it began.
        age: Duration,
    },
    /// The deadline of the call that began the run passed, and it was ended at the driver.
    #[error(
        "{at} did not answer by the deadline of the call, which was ended there; a driver that \
         heeds no cancellation may do it all the same, so send it again"
    )]
    Ended {
        /// The driver.
        at: Arc<DriverSocket>,
    },
    /// The call arrived at the edge by a link that a newer one had replaced.
    #[error(
        "the call came late, on a link that a newer one has replaced; it was not passed on to the \
         driver"
    )]
    LinkReplaced,
    /// Another csi-cloud leads, or it cannot be noted that this one does.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// This process is going away.
    #[error(transparent)]
    Stopping(#[from] Stopping),
    /// The delete guard refused the call; nothing was done.
    #[error(transparent)]
    Guarded(#[from] GuardRefusal),
}

proto::codes! { Error:
    UnknownMethod(_) => Unimplemented,
    NotSent(_) => Unimplemented,
    // Final, as no run of the call is open.
    Denied { .. } => PermissionDenied,
    DeniedInDoubt { .. } => Unavailable,
    ManyDeletes { .. } => Unavailable,
    BadRequest { source: BadRequest::Frame(FrameError::Compressed), .. } => Unimplemented,
    // The caller itself broke its request off: nobody reads this.
    BadRequest { source: BadRequest::Frame(FrameError::Broken(_)), .. } => Cancelled,
    // Nothing was sent anywhere, and sending it again would not help.
    BadRequest { .. } => InvalidArgument,
    BodyLate { .. } => Unavailable,
    DeadlinePassed(_) => DeadlineExceeded,
    TooLate(_) => DeadlineExceeded,
    BeginsTooLate => Unavailable,
    DriverAway { .. } => Unavailable,
    DriverBroke { .. } => Unavailable,
    NoSuchDriver { .. } => Unavailable,
    NameUncertain { .. } => Unavailable,
    ScopeUnknown { .. } => Unavailable,
    BadAnswer { .. } => Unavailable,
    NotGrownHere { .. } => Unavailable,
    NotNoted { .. } => Unavailable,
    Full { .. } => Unavailable,
    // CSI: an operation is pending for the volume.
    Pending { .. } => Aborted,
    Ended { .. } => DeadlineExceeded,
    LinkReplaced => Unavailable,
    // The csi-cloud that leads sends it again.
    Fenced(_) => Unavailable,
    Stopping(_) => Unavailable,
    ;
    Guarded(refusal),
}

impl Error {
    /// A request that cannot be read; without a method it is newer than this csi-edge.
    pub(crate) fn bad(method: Option<Method>, source: impl Into<BadRequest>) -> Self {
        let method = method.map_or("a method newer than this csi-edge", Method::name);
        Self::BadRequest { method, source: source.into() }
    }

    /// The deadline passed before the driver was called.
    pub(crate) fn too_late() -> Self {
        Self::TooLate(DeadlinePassed("before it was passed on to the driver"))
    }

    /// True if it is certain that no byte of the call went to the driver. The cloud then frees the
    /// name of a create, so a doubt counts as a no.
    pub fn is_not_dispatched(&self) -> bool {
        match self {
            Self::UnknownMethod(_)
            | Self::NotSent(_)
            | Self::Denied { .. }
            | Self::ManyDeletes { .. }
            | Self::BadRequest { .. }
            | Self::BodyLate { .. }
            | Self::TooLate(_)
            | Self::BeginsTooLate
            | Self::DriverAway { .. }
            | Self::NoSuchDriver { .. }
            | Self::Full { .. }
            | Self::LinkReplaced
            | Self::Fenced(_) => true,
            // Another run of what the call is about is open, or was.
            Self::DeniedInDoubt { .. } | Self::Pending { .. } => false,
            // A run may go on.
            Self::DeadlinePassed(_)
            | Self::Ended { .. }
            | Self::DriverBroke { .. }
            | Self::Stopping(_) => false,
            // The driver has answered.
            Self::BadAnswer { .. } | Self::NotGrownHere { .. } => false,
            // No create is refused so.
            Self::NameUncertain { .. }
            | Self::ScopeUnknown { .. }
            | Self::NotNoted { .. }
            | Self::Guarded(_) => false,
        }
    }
}

/// A delete guard's refusal, as the caller gets it.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct GuardRefusal {
    code: Code,
    text: String,
}

impl GuardRefusal {
    /// The refusal for a failure of the guard.
    pub fn of(error: &impl ToStatus) -> Self {
        Self { code: error.code(), text: error.chain() }
    }
}

impl ToStatus for GuardRefusal {
    fn code(&self) -> Code {
        self.code
    }
}

/// The failure of one run, which all its callers get.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct Shared(Arc<Error>);

impl<E: Into<Error>> From<E> for Shared {
    fn from(error: E) -> Self {
        Self(Arc::new(error.into()))
    }
}

impl Shared {
    /// See [`Error::is_not_dispatched`].
    pub(crate) fn is_not_dispatched(&self) -> bool {
        self.0.is_not_dispatched()
    }

    /// True if the run was ended at its deadline, so that others that wait for it begin anew.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(*self.0, Error::Ended { .. })
    }
}

impl ToStatus for Shared {
    fn code(&self) -> Code {
        self.0.code()
    }
}

#[cfg(test)]
mod tests {
    use proto::control::leader::LeaderEpoch;

    use super::*;

    #[test]
    fn only_what_certainly_never_reached_the_driver_is_marked() {
        let node: NodeName = "n1".parse().unwrap();
        let driver = "d.example".parse().unwrap();
        let socket = "/d.sock".into();
        let at = Arc::new(DriverSocket { node: node.clone(), driver, socket });
        let away = Error::DriverAway { at: at.clone(), source: "nobody".into() };
        let broke = Error::DriverBroke { at: at.clone(), source: "it died".into() };
        let full = Error::Full { at: at.clone(), limit: 1 };
        let replaced = Error::LinkReplaced;
        let newest = LeaderEpoch(9);
        let fenced = FenceError::OldLeader { node: node.clone(), epoch: None, newest }.into();
        let method = "CreateVolume";
        let denied = Error::Denied { node: node.clone(), method };
        for error in [away, replaced, denied, fenced, Error::too_late(), full] {
            assert!(error.is_not_dispatched(), "{error}");
        }
        let late = Error::DeadlinePassed(DeadlinePassed("before it was answered"));
        let doubt = Error::DeniedInDoubt { node, method, why: "it may run" };
        let about = "v".into();
        let pending = Error::Pending { method, running: method, about, age: Duration::ZERO };
        let ended = Error::Ended { at };
        for error in [broke, late, doubt, pending, ended, Error::Stopping(Stopping("csi-edge"))] {
            assert!(!error.is_not_dispatched(), "{error}");
        }
    }
}
