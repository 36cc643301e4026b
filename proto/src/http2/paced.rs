//! A byte stream of HTTP/2 whose other side may send few frames that no call accounts for.
//!
//! Frames such as WINDOW_UPDATE, RST_STREAM, PING and SETTINGS cost time here and nothing there. So
//! each counts, and a link beyond its budget is read later. Calls pay for the frames of their
//! answers, and large frames with data are free: flow control bounds those.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Frames that no call accounts for, per second. Each costs some microseconds.
const RATE: f64 = 10_000.0;
/// The most frames at once.
const BURST: f64 = 10_000.0;
/// The frames that a call pays for. Its answer has headers, data and trailers, each perhaps in
/// packets of its own. A reset and window updates may follow.
const PER_CALL: f64 = 16.0;
/// The most that calls pay for ahead, in frames.
const MOST: f64 = 100_000.0;
/// Frames and reads of at least so many bytes are free, if they are data.
const LARGE: usize = 256;
/// What a client sends before its first frame, in bytes. RFC 9113, 3.4.
const PREFACE: usize = 24;
/// The head of a frame, in bytes: three of length, one of type, flags, and stream. RFC 9113, 4.1.
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// A byte stream that we call on, read no faster than its budget allows.
pub struct Paced<I> {
    io: I,
    received: Frames,
    sent: Frames,
    /// The frames that it may send now; below zero it waits.
    budget: f64,
    since: Instant,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Finds the heads of frames in a stream of bytes.
struct Frames {
    head: [u8; HEAD],
    /// The bytes of the head that are there.
    have: usize,
    /// The bytes that come before the next head.
    skip: usize,
}

impl<I> Paced<I> {
    /// Paces the other side of `io`, on which nothing was sent yet.
    pub fn new(io: I) -> Self {
        let received = Frames::after(0);
        let sent = Frames::after(PREFACE);
        Self { io, received, sent, budget: BURST, since: Instant::now(), pause: None }
    }

    /// Charges for received bytes.
    fn charge(&mut self, bytes: &[u8]) {
        let now = Instant::now();
        let earned = (now - self.since).as_secs_f64() * RATE;
        self.since = now;
        // What calls paid for stays.
        self.budget = self.budget.max((self.budget + earned).min(BURST));
        let mut frames: u32 = u32::from(bytes.len() < LARGE);
        self.received.scan(bytes, |kind, length| {
            frames = frames.saturating_add(u32::from(kind != DATA || length < LARGE));
        });
        self.budget -= f64::from(frames);
        if self.budget < 0.0 {
            self.pause = Some(Box::pin(sleep(Duration::from_secs_f64(-self.budget / RATE))));
        }
    }

    /// Notes what we sent: calls.
    fn pay(&mut self, bytes: &[u8]) {
        let mut calls = 0;
        self.sent.scan(bytes, |kind, _| calls += u32::from(kind == HEADERS));
        self.budget = (self.budget + f64::from(calls) * PER_CALL).min(MOST);
    }
}

impl Frames {
    fn after(skip: usize) -> Self {
        Self { head: [0; HEAD], have: 0, skip }
    }

    /// Calls `each` with the type and the length of each frame whose head ends in these bytes.
    fn scan(&mut self, mut bytes: &[u8], mut each: impl FnMut(u8, usize)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let rest = self.head.get_mut(self.have..).unwrap_or_default();
            let taken = rest.len().min(bytes.len());
            let (head, after) = bytes.split_at(taken);
            rest.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
            self.have += taken;
            bytes = after;
            if self.have == HEAD {
                let [a, b, c, kind, ..] = self.head;
                let length = u32::from_be_bytes([0, a, b, c]);
                self.skip = usize::try_from(length).unwrap_or(usize::MAX);
                self.have = 0;
                each(kind, self.skip);
            }
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Paced<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.charge(buf.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Paced<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.pay(buf.get(..written).unwrap_or_default());
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A frame with this payload.
    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(length).unwrap().to_be_bytes();
        [vec![a, b, c, kind, 0, 0, 0, 0, 1], vec![0; length]].concat()
    }

    /// The time that reading all of it takes, after so many calls.
    async fn time_of(received: &[u8], calls: usize) -> Duration {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut paced = Paced::new(near);
        let sent = [vec![0; PREFACE], frame(HEADERS, 100).repeat(calls)].concat();
        let calling = paced.write_all(&sent);
        let mut taken = vec![0; sent.len()];
        let (calling, taking) = tokio::join!(calling, far.read_exact(&mut taken));
        assert!(calling.is_ok() && taking.is_ok());
        let begun = Instant::now();
        let mut buffer = vec![0; 16 * 1024];
        let reading = async {
            let mut left = received.len();
            while left > 0 {
                left -= paced.read(&mut buffer).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(far.write_all(received), reading);
        assert!(written.is_ok());
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_no_call_accounts_for_are_read_slowly() {
        // WINDOW_UPDATE, RST_STREAM, PING.
        for kind in [8, 3, 6] {
            let flood = frame(kind, 4).repeat(100_000);
            let time = time_of(&flood, 0).await;
            assert!((8.0..10.0).contains(&time.as_secs_f64()), "{kind}: {time:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_calls_and_large_data_are_read_at_once() {
        let answer = [frame(HEADERS, 60), frame(DATA, 100), frame(HEADERS, 20)].concat();
        assert_eq!(time_of(&answer.repeat(5_000), 5_000).await, Duration::ZERO);
        assert_eq!(time_of(&frame(DATA, 16 * 1024).repeat(2_000), 0).await, Duration::ZERO);
    }

    proptest! {
        #[test]
        fn frames_are_found_however_the_bytes_arrive(
            lengths in prop::collection::vec(0..300_usize, 0..20),
            cuts in prop::collection::vec(1..50_usize, 1..20),
        ) {
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| frame(8, *length)).collect();
            let mut frames = Frames::after(0);
            let mut found = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let (chunk, after) = rest.split_at((*cut).min(rest.len()));
                frames.scan(chunk, |kind, length| {
                    assert_eq!(kind, 8);
                    found.push(length);
                });
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(found, lengths);
        }
    }
}
