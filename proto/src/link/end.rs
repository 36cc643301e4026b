//! One end of a link, its byte streams and its events: the interface of a transport.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use super::endpoint::Transport;
use super::error::LinkError;
use super::keep_alive::KeepAlive;
use crate::control::hello::Message;

/// A stream of bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A byte stream of a link, ready for HTTP/2; the cloud calls, the edge serves.
pub type Io = Box<dyn ByteStream>;

/// Connects to an address: the system's way, or through a simulated network.
pub type Connect = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Io>> + Send + Sync>;

/// The kind of a byte stream. There are two, so that a large answer does not delay a small call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Small calls.
    Calls,
    /// Lists and streams.
    Bulk,
}

/// An event on a link.
pub enum Event {
    /// The other side sent a control message.
    Message(Message),
    /// At the edge: the cloud opened a byte stream.
    Opened(StreamKind, Io),
    /// The link ended.
    Closed(LinkError),
}

/// A byte stream that is being opened; see [`End::open`].
pub type Opening = Pin<Box<dyn Future<Output = Result<Io, LinkError>> + Send>>;

/// One end of a link. Call [`End::next`] again and again: it also keeps the link alive.
pub trait End: Send {
    /// The transport that made it.
    fn transport(&self) -> Transport;

    /// When the other side's certificate ends; none if that cannot be read.
    fn expires(&self) -> Option<SystemTime>;

    /// At the cloud: true if it opens another stream for calls when one has ended.
    fn reopens_calls(&self) -> bool;

    /// The interval of its signs of life.
    fn keep_alive(&self) -> KeepAlive;

    /// At the edge: changes the interval to what the cloud wants.
    fn set_keep_alive(&mut self, keep_alive: KeepAlive);

    /// At the edge, each interval: true if nothing came since the last look, so that the cloud is
    /// to be asked. False where the transport asks on its own.
    fn is_silent(&mut self) -> bool;

    /// The next event. May be dropped and called again without loss.
    fn next(&mut self) -> BoxFuture<'_, Event>;

    /// Sends an encoded control message; it goes out while [`End::next`] is called. Dropped before
    /// its end, it leaves a link that can only be closed.
    fn send(&mut self, text: String) -> BoxFuture<'_, Result<(), LinkError>>;

    /// At the cloud: opens a byte stream. The future does not borrow the link, and ends only if
    /// [`End::next`] goes on being called.
    fn open(&mut self, kind: StreamKind) -> Opening;

    /// Closes the link and its byte streams, and tells the other side why.
    fn close<'a>(self: Box<Self>, reason: &'a str) -> BoxFuture<'a, ()>;
}
