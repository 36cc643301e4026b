//! Failures of runtimes, and the code that callers get for each.
//!
//! The code decides what the kubelet does next. It starts a pod whose volume could not be grown
//! only after FAILED_PRECONDITION, and takes statistics only from OK. After any other code, a
//! kubelet that was started again keeps a running pod's containers from starting anew.

use std::io;
use std::path::PathBuf;

use crate::error;
use crate::error::Fault;

use super::backend::Reject;
use super::http::Failure;
use super::sandbox::Sandbox;

/// The reason why a runtime failed a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No entry names the volume.
    #[error(
        "volume {volume} is not handed over to a runtime at {target}",
        target = target.display()
    )]
    NotHandedOver {
        /// The volume's id.
        volume: String,
        /// Its target.
        target: PathBuf,
    },
    /// No live sandbox records the volume.
    #[error(
        "no live sandbox is known to have volume {volume} ({stale} that had it are gone); ask \
         again when its pod runs"
    )]
    NoSandbox {
        /// The volume's id.
        volume: String,
        /// The number of sandboxes that had it.
        stale: usize,
    },
    /// It is handed over, so only its guest could grow it, and that did not.
    #[error("volume {volume} is handed over, and its guest did not grow it; {advice}")]
    NotInGuest {
        /// The volume's id.
        volume: String,
        /// The way in which its file system grows.
        advice: &'static str,
        /// The reason. `None` if no live sandbox is known to have it.
        #[source]
        source: Option<Box<Self>>,
    },
    /// Its guest did not grow it this time, and its runtime has grown volumes.
    #[error("the guest of volume {volume} did not grow it this time; it is asked again")]
    NotThisTime {
        /// The volume's id.
        volume: String,
        /// The reason.
        #[source]
        source: Box<Self>,
    },
    /// The sandbox lives, and no container in it has the volume mounted.
    #[error(
        "sandbox {sandbox} ({runtime}) has no running container with volume {volume}; ask again \
         when one runs"
    )]
    NoContainer {
        /// The runtime.
        runtime: &'static str,
        /// The sandbox.
        sandbox: Sandbox,
        /// The volume's id.
        volume: String,
    },
    /// The runtime cannot do it.
    #[error("runtime {runtime} cannot {what} a direct volume: {why}")]
    Cannot {
        /// The runtime.
        runtime: &'static str,
        /// The request, for people.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The shim did not answer.
    #[error("the shim of sandbox {sandbox} ({runtime}) was asked to {what} volume {volume}")]
    Silent {
        /// The runtime.
        runtime: &'static str,
        /// The sandbox.
        sandbox: Sandbox,
        /// The request, for people.
        what: &'static str,
        /// The volume's id.
        volume: String,
        /// The cause.
        #[source]
        source: Failure,
    },
    /// The shim's answer was not the expected one.
    #[error("the shim of sandbox {sandbox} ({runtime}) was asked to {what} volume {volume}")]
    Answered {
        /// The runtime.
        runtime: &'static str,
        /// The sandbox.
        sandbox: Sandbox,
        /// The request, for people.
        what: &'static str,
        /// The volume's id.
        volume: String,
        /// The answer.
        #[source]
        source: Reject,
    },
    /// The driver has not made the device large enough.
    #[error(
        "the device of volume {volume} has {bytes} bytes, and {required} are asked for: the driver \
         has not grown it yet"
    )]
    TooSmall {
        /// The volume's id.
        volume: String,
        /// The device's bytes.
        bytes: u64,
        /// The requested bytes.
        required: u64,
    },
    /// The runtime reported success, and the file system did not grow.
    #[error(
        "runtime {runtime} says that volume {volume} was grown to {size} bytes, and its guest sees \
         {bytes}"
    )]
    NotGrown {
        /// The runtime.
        runtime: &'static str,
        /// The volume's id.
        volume: String,
        /// The bytes that the guest sees.
        bytes: u64,
        /// The device's bytes.
        size: u64,
    },
    /// The recorded device is another one by now.
    #[error(
        "{device} is not the device of volume {volume} any more; it has to be published again",
        device = device.display()
    )]
    AnotherDevice {
        /// The volume's id.
        volume: String,
        /// The path.
        device: PathBuf,
    },
    /// A file of this host cannot be read.
    #[error("{path} cannot be read, of volume {volume}", path = path.display())]
    Read {
        /// The volume's id.
        volume: String,
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// The kind of failure, which decides its gRPC code.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotHandedOver { .. } => Fault::NotThere,
            Self::Cannot { .. } => Fault::Cannot,
            Self::NotInGuest { .. } => Fault::HandedOver,
            Self::Silent { source: Failure::Late(_), .. } => Fault::Late,
            // The outcome is known, and another attempt may or may not help.
            Self::Answered { .. } | Self::NotGrown { .. } | Self::AnotherDevice { .. } => {
                Fault::Failed
            }
            Self::NoSandbox { .. }
            | Self::NoContainer { .. }
            | Self::NotThisTime { .. }
            | Self::Silent { .. }
            | Self::TooSmall { .. }
            | Self::Read { .. } => Fault::Away,
        }
    }

    /// The failure of a call of this method.
    pub(crate) fn of_call(self, method: &'static str) -> error::Error {
        error::Error::Direct { method, fault: self.fault(), source: self.into() }
    }
}
