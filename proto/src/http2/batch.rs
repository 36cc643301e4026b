//! Batched writes: a byte stream that holds small writes until no task has more of them.
//!
//! HTTP/2 flushes a request's headers before its body is queued. Each flush is a system call here
//! and a wake-up at the other end. So a flush first lets every other task of this thread run once,
//! and their writes go out in the same system call. That costs less than a microsecond, and a
//! wake-up costs ten.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Waiting gains nothing if this many bytes are held.
const ENOUGH: usize = 4 * 1024;

/// A byte stream whose small writes are batched.
pub(crate) struct Batched<I> {
    io: I,
    held: BytesMut,
    /// True if the other tasks have run since the first held byte was written.
    waited: bool,
}

impl<I> Batched<I> {
    /// Holds the writes to `io`.
    pub(crate) fn new(io: I) -> Self {
        Self { io, held: BytesMut::new(), waited: false }
    }
}

impl<I: AsyncWrite + Unpin> Batched<I> {
    /// Writes all held bytes to the stream below.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.advance(written);
        }
        self.waited = false;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Batched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Batched<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.held.len() + buf.len() >= ENOUGH {
            ready!(self.poll_drain(cx))?;
        }
        if buf.len() >= ENOUGH {
            return Pin::new(&mut self.io).poll_write(cx, buf);
        }
        self.held.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.waited && !self.held.is_empty() && self.held.len() < ENOUGH {
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::task::Waker;
    use tokio::io::AsyncWriteExt;

    /// Records the size of each write.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<usize>>>);

    impl AsyncWrite for Writes {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0.lock().push(buf.len());
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn writes_of_other_tasks_before_the_flush_join_it() {
        let writes = Writes::default();
        let mut io = Batched::new(writes.clone());
        let mut cx = Context::from_waker(Waker::noop());
        io.write_all(b"headers").await.unwrap();
        assert!(Pin::new(&mut io).poll_flush(&mut cx).is_pending());
        // Here the task with the body runs.
        io.write_all(b"body").await.unwrap();
        assert!(Pin::new(&mut io).poll_flush(&mut cx).is_ready());
        assert_eq!(*writes.0.lock(), [11]);
    }

    #[tokio::test]
    async fn no_byte_is_lost_and_large_writes_are_not_held() {
        let writes = Writes::default();
        let mut io = Batched::new(writes.clone());
        for size in [1, ENOUGH - 1, 1, 3 * ENOUGH, 5] {
            io.write_all(&vec![0; size]).await.unwrap();
        }
        io.flush().await.unwrap();
        io.flush().await.unwrap();
        let written: usize = writes.0.lock().iter().sum();
        assert_eq!(written, 4 * ENOUGH + 6);
        assert!(io.held.is_empty() && writes.0.lock().iter().all(|size| *size <= 3 * ENOUGH));
    }
}
