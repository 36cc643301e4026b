//! The error of a csi-cloud that is one of several and does not lead.
//!
//! Each case may pass, so callers send the call again. A socket relay sends it to the next
//! csi-cloud.

/// This csi-cloud does not lead, so it neither carries out nor answers the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLeading {
    /// It follows this one.
    #[error(
        "this csi-cloud follows {0}, which leads and carries calls out; nothing was done. Name \
         both to the socket relay (`csi-cloud relay --to`) and to csi-edge (cloud), which find the \
         leader"
    )]
    Follows(String),
    /// It follows, and nobody leads.
    #[error(
        "no csi-cloud leads at this moment, so none carries calls out; nothing was done, send the \
         call again. If this lasts, `csi-cloud replicas` says which ones reach the store"
    )]
    NoLeader,
    /// It cannot use etcd, so it does not know the leader.
    #[error(
        "this csi-cloud cannot use etcd, so it does not know who leads; nothing was done, send the \
         call again. etcd: {0}"
    )]
    NoEtcd(String),
    /// It led before, and another one may lead now.
    #[error(
        "this csi-cloud led, and another one may lead by now, so it answers nothing more; the \
         outcome is not known here, send the call again"
    )]
    Deposed,
}
