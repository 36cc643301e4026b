//! How far a calls stream over a WebSocket has ended: a side ends it with an empty binary message,
//! the cloud first.

use tokio::time::Instant;

use crate::link::error::HANDSHAKE;

/// How far the calls stream of a socket has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamEnd {
    /// It ends with its socket: the other side takes no other one, or has not said yet.
    WithSocket,
    /// This side may end it: the cloud's.
    Ours,
    /// The other side may end it: the edge's.
    Theirs,
    /// This side has ended it, since then.
    Sent(Instant),
    /// The other side has ended it.
    Received,
    /// Both sides have ended it.
    Both,
}

impl StreamEnd {
    /// Notes an empty message of the other side. False if it ends nothing.
    pub(super) fn receive(&mut self) -> bool {
        *self = match self {
            Self::Theirs => Self::Received,
            Self::Sent(_) => Self::Both,
            Self::WithSocket | Self::Ours | Self::Received | Self::Both => return false,
        };
        true
    }

    /// Notes the empty message of this side. False if this side must not send one.
    pub(super) fn send(&mut self) -> bool {
        *self = match self {
            Self::Ours => Self::Sent(Instant::now()),
            Self::Received => Self::Both,
            Self::WithSocket | Self::Theirs | Self::Sent(_) | Self::Both => return false,
        };
        true
    }

    /// True once the other side has ended it.
    pub(super) fn is_received(self) -> bool {
        matches!(self, Self::Received | Self::Both)
    }

    /// True once this side has ended it.
    pub(super) fn is_sent(self) -> bool {
        matches!(self, Self::Sent(_) | Self::Both)
    }

    /// True if the other side should have ended it by now.
    pub(super) fn is_overdue(self) -> bool {
        matches!(self, Self::Sent(since) if since.elapsed() >= HANDSHAKE)
    }
}
