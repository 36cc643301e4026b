//! The calls stream of a link: lent to HTTP/2, and taken back when both sides have ended it.
//!
//! The socket itself is the stream. The cloud ends the stream with an empty binary message. The
//! edge answers with an empty message of its own, and then the socket is idle again. Bytes that the
//! edge sent before its empty message belong to no call and are dropped.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::socket::Socket;
use super::stream_end::StreamEnd;
use crate::link::end::{Io, Opening};
use crate::link::error::{LinkError, within_handshake};

/// The socket of a link, or the way back of one that is lent.
pub(super) struct Lending {
    socket: Option<Socket>,
    /// The stream of another calls stream, once it has ended.
    next: StreamEnd,
    back: Option<oneshot::Receiver<Socket>>,
    /// Waits for the socket.
    wanted: Option<oneshot::Sender<Io>>,
}

impl Lending {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket: Some(socket), next: StreamEnd::WithSocket, back: None, wanted: None }
    }

    /// Sets which side may end the calls streams that begin from now on.
    pub(super) fn set_end(&mut self, end: StreamEnd) {
        self.next = end;
    }

    /// True if another calls stream may follow one that has ended.
    pub(super) fn reopens(&self) -> bool {
        !matches!(self.next, StreamEnd::WithSocket)
    }

    /// Lends the socket, at once or when it is back.
    pub(super) fn lend(&mut self) -> Opening {
        if let Some(io) = self.idle_stream() {
            return Box::pin(std::future::ready(Ok(io)));
        }
        if self.back.is_none() && self.socket.is_none() {
            let ended = LinkError::Closed("its calls stream ended".into());
            return Box::pin(std::future::ready(Err(ended)));
        }
        let (wanted, opened) = oneshot::channel();
        self.wanted = Some(wanted);
        let ended = |_| LinkError::Closed("the link ended before its calls stream did".into());
        Box::pin(within_handshake(async move { opened.await.map_err(ended) }))
    }

    /// The socket as a stream, if it is idle.
    pub(super) fn idle_stream(&mut self) -> Option<Io> {
        let mut socket = self.socket.take_if(|socket| !socket.end.is_sent())?;
        socket.end = self.next;
        let (back, returned) = oneshot::channel();
        self.back = self.reopens().then_some(returned);
        Some(Box::new(LentSocket { socket: Some(socket), back: Some(back), is_unused: true }))
    }

    /// The socket, if it is here.
    pub(super) fn socket(&mut self) -> Option<&mut Socket> {
        self.socket.as_mut()
    }

    /// Takes the socket back if it was returned, and drives it while it is idle. Ready when the
    /// other side has begun a calls stream, or the socket is closed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_back(cx);
        let Some(socket) = &mut self.socket else { return Poll::Pending };
        if socket.end.is_sent() {
            ready!(socket.poll_end(cx))?;
            socket.end = StreamEnd::WithSocket;
        }
        if let Some(wanted) = self.wanted.take_if(|wanted| !wanted.is_closed())
            && let Some(io) = self.idle_stream()
        {
            // If nobody takes it, it comes back unused.
            let _ = wanted.send(io);
            return self.poll_lent(cx);
        }
        match &mut self.socket {
            Some(socket) => socket.poll_readable(cx),
            None => Poll::Pending,
        }
    }

    /// Sends what waits, if the socket is here.
    ///
    /// # Errors
    /// The connection broke.
    pub(super) fn drain(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.poll_back(cx);
        self.socket.as_mut().map_or(Ok(()), |socket| socket.drain(cx))
    }

    fn poll_lent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // So that this task is woken when the socket is back.
        self.poll_back(cx);
        if self.socket.is_some() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn poll_back(&mut self, cx: &mut Context<'_>) {
        let Some(back) = &mut self.back else { return };
        if let Poll::Ready(returned) = Pin::new(back).poll(cx) {
            self.back = None;
            // Without it the connection is gone, and the control messages end too.
            self.socket = returned.ok();
        }
    }
}

/// The socket while it carries the calls stream. Dropped between its first byte and its end, it
/// closes the link.
struct LentSocket {
    socket: Option<Socket>,
    back: Option<oneshot::Sender<Socket>>,
    /// True until something is written.
    is_unused: bool,
}

impl LentSocket {
    fn socket(&mut self) -> io::Result<Pin<&mut Socket>> {
        self.socket.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for LentSocket {
    fn drop(&mut self) {
        let Some(mut socket) = self.socket.take() else { return };
        let is_unused = self.is_unused && matches!(socket.end, StreamEnd::Ours);
        if is_unused {
            socket.end = StreamEnd::WithSocket;
        }
        if let Some(back) = self.back.take().filter(|_| is_unused || socket.end.is_sent()) {
            // If the link is gone, the socket goes too.
            let _ = back.send(socket);
        }
    }
}

impl AsyncRead for LentSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.socket()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for LentSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_unused = false;
        self.socket()?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_unused = false;
        self.socket()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket()?.poll_shutdown(cx)
    }
}
