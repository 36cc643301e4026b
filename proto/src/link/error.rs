//! Failures of a link, and the time limits of its handshake.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::control::hello::MessageError;
use crate::control::join::JoinError;
use crate::names::{IdentityError, NodeName};

/// The time limit for dialing and authenticating.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// The time limit for the whole TLS ClientHello of a connection.
pub const GREETING: Duration = Duration::from_secs(2);

/// The time limit for the peer to accept a control message.
pub const WRITE: Duration = Duration::from_secs(10);

/// The time limit for an authenticated connection to ask for a link. It is shorter than
/// [`HANDSHAKE`], because a node that was removed meanwhile keeps the connection open until then.
pub const ASKING: Duration = Duration::from_secs(4);

/// The reason why a link failed or ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The name or address cannot be reached.
    #[error("cannot reach {0}")]
    Unreachable(String, #[source] io::Error),
    /// TLS failed; the text says whose certificate is to blame and what to do.
    #[error("{0}")]
    Tls(String),
    /// The peer does not speak our transport.
    #[error("the other side does not speak the link's transport: {0}")]
    Transport(String),
    /// It took longer than [`HANDSHAKE`].
    #[error("the other side did not answer within {HANDSHAKE:?}")]
    TimedOut,
    /// It sent no whole ClientHello within [`GREETING`].
    #[error("the other side sent no TLS ClientHello within {GREETING:?}")]
    Silent,
    /// It is authenticated, and asked for no link within [`ASKING`].
    #[error("the other side asked for no link within {ASKING:?} of its authentication")]
    NotAsked,
    /// It took no control message for [`WRITE`].
    #[error("the other side took no message for {WRITE:?}")]
    NotRead,
    /// The peer's certificate names nobody that may link.
    #[error("the certificate of the other side is not a node's")]
    Identity(#[from] IdentityError),
    /// A control message that cannot be read or written.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A message of joining that cannot be read or written.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The cloud was asked for a certificate, and refused.
    #[error("csi-cloud issues no certificate: {0}")]
    NotJoined(String),
    /// The cloud was asked for a certificate, and said nothing for this time.
    #[error("csi-cloud did not answer within {0:?}")]
    Unanswered(Duration),
    /// The other side is `csi-edge doctor` of this node, which asks for no link.
    #[error("csi-edge doctor of node {0} has looked whether it can link")]
    Checked(NodeName),
    /// The link ended.
    #[error("the link ended: {0}")]
    Closed(String),
}

/// The reason why a link ended, and whether one side closed it in order; the first one counts.
/// Clones share it.
#[derive(Clone, Default)]
pub(super) struct Reason(Arc<OnceLock<(String, bool)>>);

impl Reason {
    pub(super) fn set(&self, reason: impl Into<String>) {
        let _ = self.0.set((reason.into(), false));
    }

    /// Sets the reason that one side gave as it closed the link.
    pub(super) fn set_closed(&self, reason: impl Into<String>) {
        let _ = self.0.set((reason.into(), true));
    }

    /// True if neither side closed the link: it ended by silence, or the other side broke it off.
    pub(super) fn is_silence(&self) -> bool {
        self.0.get().is_none_or(|(_, is_closed)| !is_closed)
    }

    pub(super) fn error(&self) -> LinkError {
        let reason = self.0.get().map_or("the other side is gone", |(reason, _)| reason.as_str());
        LinkError::Closed(reason.to_owned())
    }
}

/// A future with the time limit of a handshake.
///
/// # Errors
/// [`LinkError::TimedOut`] after [`HANDSHAKE`], or the future's own.
pub(super) async fn within_handshake<T>(
    future: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    tokio::time::timeout(HANDSHAKE, future).await.unwrap_or(Err(LinkError::TimedOut))
}
