//! One WebSocket as a byte stream with control messages beside it.
//!
//! Binary messages are the stream's bytes, text messages are control messages. All work happens
//! when the owner polls the stream: the link while it is idle, HTTP/2 from the first call on. So
//! bytes pass through no further task.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_channel::mpsc;
use futures_util::{Sink, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as WsError, Message as Frame};

use super::stream::{Ws, explain};
use super::stream_end::StreamEnd;
use crate::host::limit::{Bucket, Rate};
use crate::host::plain::{plain, start};
use crate::link::error::{LinkError, Reason, WRITE};
use crate::link::keep_alive::{KeepAlive, QUESTIONS};

/// The largest binary message, in bytes.
const MAX_CHUNK: usize = 64 * 1024;
/// A close frame holds 125 bytes, two of them its code.
const MAX_REASON: usize = 123;

/// The allowed rate of signs of life.
const SIGNS: Rate = Rate::per_second(20, 200);
const TOO_MANY_SIGNS: &str = "it sent more signs of life than it may: 20 a second, 200 at once";

/// A frame that the owner of the link sends beside the stream.
pub(super) enum Outgoing {
    /// A control message.
    Text(String),
    /// A close with its reason.
    Close(String),
}

/// The byte stream.
pub(super) struct Socket {
    ws: Ws,
    unread: Bytes,
    /// How far the stream has ended.
    pub(super) end: StreamEnd,
    received: mpsc::Sender<String>,
    to_send: mpsc::Receiver<Outgoing>,
    /// Since when the socket has had something to send.
    unsent: Option<Instant>,
    /// True once bytes of the stream were sent.
    has_written: bool,
    ping: Interval,
    keep_alive: KeepAlive,
    /// The pings since the peer sent anything.
    unanswered: u32,
    /// True once a full interval has passed after the last of [`QUESTIONS`] pings.
    is_silent: bool,
    /// The signs of life that the peer may still send.
    signs: Bucket,
    reason: Reason,
}

/// The control messages of a [`Socket`], for the owner of the link.
pub(super) struct Control {
    pub(super) received: mpsc::Receiver<String>,
    pub(super) send: mpsc::Sender<Outgoing>,
    pub(super) reason: Reason,
}

impl Socket {
    pub(super) fn new(ws: Ws, keep_alive: KeepAlive) -> (Self, Control) {
        // tokio's channels take 1.3 KiB each, on every idle link.
        let (received, receive) = mpsc::channel(8);
        // A message may have 256 KiB, and a peer may read none.
        let (send, to_send) = mpsc::channel(2);
        let reason = Reason::default();
        let ping = pings(keep_alive.every);
        let control = Control { received: receive, send, reason: reason.clone() };
        let unread = Bytes::new();
        (
            Self {
                ws,
                unread,
                end: StreamEnd::WithSocket,
                received,
                to_send,
                unsent: None,
                has_written: false,
                ping,
                keep_alive,
                unanswered: 0,
                is_silent: false,
                signs: Bucket::default(),
                reason,
            },
            control,
        )
    }

    /// Sends pings at this interval from now on.
    pub(super) fn set_keep_alive(&mut self, keep_alive: KeepAlive) {
        if self.keep_alive != keep_alive {
            self.keep_alive = keep_alive;
            self.ping = pings(keep_alive.every);
        }
    }

    /// Ready when bytes of the stream can be read, or the socket is closed.
    ///
    /// Meanwhile it passes control messages and keeps the connection alive.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() && !self.end.is_received() {
            self.unread = ready!(self.poll_bytes(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the peer has ended the stream too, or the socket is closed. What else comes of
    /// the stream is dropped.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unread = Bytes::new();
        while !self.end.is_received() {
            if ready!(self.poll_bytes(cx))?.is_empty() && !self.end.is_received() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// True if bytes can be read; if not after [`Socket::poll_readable`], the socket is closed.
    pub(super) fn has_bytes(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The next bytes of the stream; none when it is closed.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        if let Poll::Ready(closed) = self.poll_outgoing(cx)? {
            return Poll::Ready(Ok(closed));
        }
        loop {
            // A control message that finds no room holds up what follows it.
            let _ = ready!(self.received.poll_ready(cx));
            let Poll::Ready(frame) = Pin::new(&mut self.ws).poll_next(cx) else {
                // All that has come is read.
                if self.is_silent {
                    let every = self.keep_alive.every;
                    let dead = format!("no sign of life: {QUESTIONS} pings, one each {every:?}");
                    return Poll::Ready(Err(self.failed(dead)));
                }
                return Poll::Pending;
            };
            (self.unanswered, self.is_silent) = (0, false);
            match frame {
                Some(Ok(Frame::Binary(bytes))) if !bytes.is_empty() => {
                    return Poll::Ready(Ok(bytes));
                }
                Some(Ok(Frame::Binary(_))) if self.end.receive() => {
                    return Poll::Ready(Ok(Bytes::new()));
                }
                Some(Ok(Frame::Text(text))) => {
                    // There is room if anybody listens.
                    let full = self.received.try_send(text.as_str().to_owned()).is_err();
                    if full {
                        return Poll::Ready(Err(
                            self.broke_off(cx, "it sent control messages that nobody awaits")
                        ));
                    }
                }
                Some(Ok(Frame::Close(frame))) => {
                    let reason =
                        frame.map(|frame| plain(frame.reason.as_str())).unwrap_or_default();
                    self.reason.set_closed(format!("the other side closed it: {reason}"));
                    self.end = StreamEnd::WithSocket;
                }
                // Pings, pongs, and messages without bytes.
                Some(Ok(_)) if self.signs.try_take(SIGNS, Instant::now()) => {}
                Some(Ok(_)) => return Poll::Ready(Err(self.broke_off(cx, TOO_MANY_SIGNS))),
                Some(Err(WsError::ConnectionClosed | WsError::AlreadyClosed)) | None => {
                    return Poll::Ready(Ok(Bytes::new()));
                }
                Some(Err(error)) => {
                    return Poll::Ready(Err(self.broke_off(cx, &explain(&error))));
                }
            }
        }
    }

    /// Sends control messages and pings. Ready when the socket shall be closed.
    fn poll_outgoing(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        self.poll_pings(cx)?;
        loop {
            // The buffer holds one control message at most: a peer may read slowly, or not at all.
            if self.unsent.is_some() {
                ready!(Pin::new(&mut self.ws).poll_flush(cx)).map_err(|e| self.ws_failed(&e))?;
                self.unsent = None;
            }
            match self.to_send.poll_next_unpin(cx) {
                Poll::Ready(Some(Outgoing::Text(text))) => {
                    self.send_outgoing(cx, Frame::text(text))?;
                }
                Poll::Ready(Some(Outgoing::Close(reason))) => {
                    self.reason.set_closed(format!("closed here: {reason}"));
                    self.end = StreamEnd::WithSocket;
                    self.send_outgoing(cx, close_frame(&reason))?;
                    let _ = Pin::new(&mut self.ws).poll_flush(cx);
                    return Poll::Ready(Ok(Bytes::new()));
                }
                _ => return Poll::Pending,
            }
        }
    }

    /// Sends as much as possible, without reading.
    ///
    /// # Errors
    /// The peer said nothing or took nothing for too long, or the connection broke.
    pub(super) fn drain(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.poll_outgoing(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Ends when the peer has closed. Its last messages are dropped.
    pub(super) async fn drained(&mut self) {
        while let Some(Ok(_)) = self.ws.next().await {}
    }

    /// Sends pings, and gives up a peer that reads nothing.
    fn poll_pings(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.ping.poll_tick(cx).is_ready() {
            self.is_silent = self.unanswered >= QUESTIONS;
            self.unanswered += 1;
            let took = self.ws.get_ref().tls().get_ref().0.took();
            if self.unsent.is_some_and(|since| since.max(took).elapsed() >= WRITE) {
                return Err(self.failed(LinkError::NotRead.to_string()));
            }
            if self.end.is_overdue() {
                return Err(self.failed("the other side did not end its calls stream"));
            }
            self.send_outgoing(cx, Frame::Ping(Bytes::new()))?;
        }
        Ok(())
    }

    /// Queues a frame. The socket's buffer takes it even while the network takes none, so there is
    /// one such frame at a time, and pings.
    fn send_outgoing(&mut self, cx: &mut Context<'_>, frame: Frame) -> io::Result<()> {
        let _ = Pin::new(&mut self.ws).poll_ready(cx).map_err(|e| self.ws_failed(&e))?;
        self.unsent.get_or_insert_with(Instant::now);
        Pin::new(&mut self.ws).start_send(frame).map_err(|e| self.ws_failed(&e))
    }

    /// Ends the connection, and tells the other side why if it can.
    fn broke_off(&mut self, cx: &mut Context<'_>, reason: &str) -> io::Error {
        let _ = self.send_outgoing(cx, close_frame(reason));
        let _ = Pin::new(&mut self.ws).poll_flush(cx);
        self.failed(reason)
    }

    fn ws_failed(&self, error: &WsError) -> io::Error {
        self.failed(explain(error))
    }

    fn failed(&self, reason: impl Into<String>) -> io::Error {
        let reason = reason.into();
        self.reason.set(reason.clone());
        io::Error::new(io::ErrorKind::ConnectionAborted, reason)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, chunk: Bytes) -> Poll<io::Result<usize>> {
        let length = chunk.len();
        if length == 0 {
            // An empty message would end the stream.
            return Poll::Ready(Ok(0));
        }
        if !self.has_written {
            // What the owner of the link sent before, such as the welcome, goes first.
            self.drain(cx)?;
            if self.unsent.is_some() {
                return Poll::Pending;
            }
            self.has_written = true;
        }
        let Poll::Ready(ready) = Pin::new(&mut self.ws).poll_ready(cx) else {
            // HTTP/2 may read nothing while it cannot write.
            return self.poll_pings(cx).map_or_else(|e| Poll::Ready(Err(e)), |()| Poll::Pending);
        };
        ready.map_err(|e| self.ws_failed(&e))?;
        Pin::new(&mut self.ws).start_send(Frame::Binary(chunk)).map_err(|e| self.ws_failed(&e))?;
        Poll::Ready(Ok(length))
    }
}

/// Ticks at this interval, and never sooner: a tick that is late puts the next ones off.
fn pings(every: Duration) -> Interval {
    let mut ping = tokio::time::interval_at(Instant::now() + every, every);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping
}

fn close_frame(reason: &str) -> Frame {
    let reason = start(reason, MAX_REASON).to_owned().into();
    Frame::Close(Some(CloseFrame { code: CloseCode::Normal, reason }))
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_readable(cx))?;
        let length = self.unread.len().min(buf.remaining());
        buf.put_slice(self.unread.get(..length).unwrap_or_default());
        self.unread.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let chunk = buf.get(..buf.len().min(MAX_CHUNK)).unwrap_or_default();
        self.poll_send(cx, Bytes::copy_from_slice(chunk))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut chunk = BytesMut::with_capacity(total.min(MAX_CHUNK));
        for buf in bufs {
            let room = MAX_CHUNK - chunk.len();
            chunk.extend_from_slice(buf.get(..buf.len().min(room)).unwrap_or_default());
        }
        self.poll_send(cx, chunk.freeze())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Poll::Ready(flushed) = Pin::new(&mut self.ws).poll_flush(cx) else {
            return self.poll_pings(cx).map_or_else(|e| Poll::Ready(Err(e)), |()| Poll::Pending);
        };
        self.unsent = None;
        Poll::Ready(flushed.map_err(|e| self.ws_failed(&e)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.end, StreamEnd::Theirs) {
            // HTTP/2 ends here with the other side's GOAWAY, which comes before its end. If the
            // socket closes instead, there is nothing to wait for.
            let _ = ready!(self.poll_end(cx));
        }
        if self.end.send() {
            self.send_outgoing(cx, Frame::Binary(Bytes::new()))?;
        }
        if self.end.is_sent() {
            return self.poll_flush(cx);
        }
        match ready!(Pin::new(&mut self.ws).poll_close(cx)) {
            Ok(()) | Err(WsError::ConnectionClosed | WsError::AlreadyClosed) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(self.ws_failed(&error))),
        }
    }
}
