//! What a kubelet does after each code, by the sources of Kubernetes 1.36.

use tonic::Code;

/// What becomes of a pod when its volume could not be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publication {
    /// The kubelet takes the volume as not mounted. If the pod goes before another attempt
    /// succeeds, it never unpublishes the volume: whatever the attempt left is left for good.
    NotMounted,
    /// The volume may be mounted, and is unpublished when the pod goes.
    Uncertain,
}

impl Publication {
    /// After NodeStageVolume or NodePublishVolume: `isFinalError` of `pkg/volume/csi`.
    #[must_use]
    pub fn after(code: Code) -> Self {
        match code {
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted => Self::Uncertain,
            _ => Self::NotMounted,
        }
    }
}

/// What becomes of a pod and its claim after NodeExpandVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expansion {
    /// The claim has the new size.
    Done,
    /// The claim keeps its old size until the next pod. This pod goes on, and its containers start
    /// again.
    NextPod,
    /// The kubelet asks again every few seconds. After a restart of it, no container of the pod
    /// starts before the answer is another one.
    KeepsPodDown,
}

impl Expansion {
    /// After NodeExpandVolume: `inUseError` of `pkg/volume/csi`, and the node expander of
    /// `pkg/volume/util/operationexecutor`.
    #[must_use]
    pub fn after(code: Code) -> Self {
        match code {
            Code::Ok => Self::Done,
            Code::FailedPrecondition => Self::NextPod,
            _ => Self::KeepsPodDown,
        }
    }
}
