//! A link: one authenticated connection, dialed by the edge, on which the cloud calls.
//!
//! A transport presents control messages and two kinds of byte streams, which the cloud opens when it has a
//! first call for them; nothing above this module knows which transport it is. A new transport is one file
//! here and one arm in each `match` below.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::control::hello::{Message, MessageError};

pub mod endpoint;
pub mod quic;
pub mod tls;
pub mod ws;

/// A stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A byte stream of a link, ready for HTTP/2; the cloud calls, the edge serves.
pub type Io = Box<dyn ByteStream>;

/// How a byte stream to an address is made: the system's way, or a simulated network's.
pub type Connect = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Io>> + Send + Sync>;

/// What a byte stream is for. Two, so that a large answer does not stand before a small call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Small calls.
    Calls,
    /// Lists and streams.
    Bulk,
}

/// How liveness is watched, on both sides of every link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// A sign of life is sent this often.
    pub every: Duration,
    /// Without one for this long, the other side is taken for dead.
    pub dead_after: Duration,
}

impl KeepAlive {
    /// The other side is taken for dead after this long; a sign of life is sent three times as often.
    pub fn dead_after(time: Duration) -> Self {
        Self { every: time / 3, dead_after: time }
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self::dead_after(Duration::from_secs(15))
    }
}

/// Dials the cloud, as the endpoint's transport does it; WebSocket over what `connect` makes.
///
/// # Errors
/// The cloud cannot be reached, is not who it should be, or does not take our certificate.
pub async fn dial(
    endpoint: &endpoint::Endpoint,
    credentials: &tls::Credentials,
    keep_alive: KeepAlive,
    connect: &Connect,
) -> Result<Link, LinkError> {
    match endpoint.transport {
        endpoint::Transport::Ws => {
            let tls = tls::client_config(credentials, ws::ALPN)?;
            let (endpoint, connect) = (endpoint.clone(), connect.clone());
            let dialer = ws::Dialer { endpoint, tls, keep_alive, connect };
            Ok(ws::dial(Arc::new(dialer)).await?.into())
        }
        endpoint::Transport::Quic => {
            let tls = tls::client_config(credentials, quic::ALPN)?;
            Ok(quic::dial(endpoint, tls, keep_alive).await?.into())
        }
    }
}

/// How long dialing and authenticating may take.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Why there is no link, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The name or address cannot be reached.
    #[error("cannot reach {0}")]
    Unreachable(String, #[source] io::Error),
    /// TLS failed; the text says whose certificate is to blame and what to do.
    #[error("{0}")]
    Tls(String),
    /// Taken, but not by a peer that speaks our transport.
    #[error("the other side does not speak the link's transport: {0}")]
    Transport(String),
    /// It took longer than [`HANDSHAKE`].
    #[error("the other side did not answer within {HANDSHAKE:?}")]
    TimedOut,
    /// The peer's certificate names nobody that may link.
    #[error("the certificate of the other side is not a node's")]
    Identity(#[from] crate::names::IdentityError),
    /// A control message that cannot be read or written.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The link ended.
    #[error("the link ended: {0}")]
    Closed(String),
}

/// What happens on a link.
pub enum Event {
    /// The other side says something.
    Message(Message),
    /// At the edge: the cloud opened a byte stream.
    Opened(Kind, Io),
    /// The link is no more.
    Closed(LinkError),
}

/// A byte stream on its way; see [`Link::open`].
pub type Opening = Pin<Box<dyn Future<Output = Result<Io, LinkError>> + Send>>;

/// One end of a link. Call [`Link::next`] again and again: it also keeps the link alive.
pub struct Link(Inner);

enum Inner {
    Ws(Box<ws::WsLink>),
    Quic(Box<quic::QuicLink>),
}

impl From<ws::WsLink> for Link {
    fn from(link: ws::WsLink) -> Self {
        Self(Inner::Ws(Box::new(link)))
    }
}

impl From<quic::QuicLink> for Link {
    fn from(link: quic::QuicLink) -> Self {
        Self(Inner::Quic(Box::new(link)))
    }
}

impl Link {
    /// The transport, as the scheme of an endpoint's URL has it.
    pub fn transport(&self) -> &'static str {
        match &self.0 {
            Inner::Ws(_) => "wss",
            Inner::Quic(_) => "quic",
        }
    }

    /// The next thing that happens. May be dropped and called again without loss.
    pub async fn next(&mut self) -> Event {
        match &mut self.0 {
            Inner::Ws(link) => link.next().await,
            Inner::Quic(link) => link.next().await,
        }
    }

    /// Says something to the other side; it goes out while [`Link::next`] is called.
    ///
    /// # Errors
    /// The message is too large, or the link is gone.
    pub async fn send(&mut self, message: &Message) -> Result<(), LinkError> {
        let text = message.encode()?;
        match &mut self.0 {
            Inner::Ws(link) => link.send(text),
            Inner::Quic(link) => Box::pin(link.send(text)).await,
        }
    }

    /// At the cloud: opens a byte stream. The future does not borrow the link; [`Link::next`] must go on
    /// being called for it to end.
    pub fn open(&mut self, kind: Kind) -> Opening {
        match &mut self.0 {
            Inner::Ws(link) => link.open(kind),
            Inner::Quic(link) => link.open(kind),
        }
    }

    /// Closes the link, its byte streams with it; the other side is told why.
    pub async fn close(self, reason: &str) {
        // Boxed, because whoever may call this keeps room for its future, on every idle link.
        match self.0 {
            Inner::Ws(link) => Box::pin(link.close(reason)).await,
            Inner::Quic(link) => Box::pin(link.close(reason)).await,
        }
    }
}

/// Why a link ended, as first found out; shared by all that work on it.
#[derive(Clone, Default)]
pub(crate) struct Reason(Arc<OnceLock<String>>);

impl Reason {
    pub(crate) fn set(&self, reason: impl Into<String>) {
        let _ = self.0.set(reason.into());
    }

    pub(crate) fn error(&self) -> LinkError {
        let reason = self.0.get().map_or("the other side is gone", String::as_str);
        LinkError::Closed(reason.to_owned())
    }
}

/// A future with the time limit of a handshake.
pub(crate) async fn within_handshake<T>(
    future: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    tokio::time::timeout(HANDSHAKE, future).await.unwrap_or(Err(LinkError::TimedOut))
}
