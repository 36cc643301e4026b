//! A byte stream of HTTP/2 whose other side may send little that no call accounts for.
//!
//! Frames such as WINDOW_UPDATE, RST_STREAM, PING and SETTINGS cost time here and nothing there. So
//! each counts, and so do bytes: data of streams that have ended is read and thrown away. Headers
//! count by their length, since each of their bytes can name a header. A link beyond its budget is
//! read later. Calls pay for their answers. All byte streams of a link have one budget: otherwise
//! whoever breaks a connection off would get another budget with the next one. And after one on
//! which HTTP/2 was violated the next one is begun late, since over QUIC each brings a window's
//! worth of bytes that are received before any is read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Frames. Each costs some microseconds. The answer of a call has headers, data and trailers, each
/// perhaps in packets of its own, and a reset and window updates may follow.
const FRAMES: Allowance = Allowance { per_second: 10_000.0, per_call: 32.0, most: 100_000.0 };
/// Bytes. Their decryption and copies take a few percent of a core. The answer of a call has a
/// message of 4 MiB at most.
const BYTES: Allowance =
    Allowance { per_second: 32.0 * MIB, per_call: 4.25 * MIB, most: 256.0 * MIB };
const MIB: f64 = 1024.0 * 1024.0;
/// Frames and reads of at least so many bytes count by their bytes only, if they are data.
const LARGE: usize = 256;
/// The length of the client's connection preface. RFC 9113, 3.4.
const PREFACE: usize = 24;
/// The head of a frame, in bytes: three of length, one of type, flags, and stream. RFC 9113, 4.1.
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// So many bytes of headers count as a frame more. That many headers by their index, each of which
/// is a byte, take as long as a frame.
const HEADER_BYTES: usize = 16;

/// How long after a violation of HTTP/2 the peer's next byte stream is begun.
const PARDON: Duration = Duration::from_secs(2);

/// A byte stream that we call on, read no faster than its budgets allow.
pub struct Paced<I> {
    io: I,
    received: Frames,
    sent: Frames,
    budget: Budget,
    pause: Option<Pin<Box<Sleep>>>,
}

/// What one peer may send. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<Mutex<Accounts>>);

/// The accounts of a budget.
struct Accounts {
    frames: Account,
    bytes: Account,
    since: Instant,
    /// When the last violation of HTTP/2 is pardoned, if there was one.
    pardoned: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        let (frames, bytes) = (Account::new(&FRAMES), Account::new(&BYTES));
        let since = Instant::now();
        Self(Arc::new(Mutex::new(Accounts { frames, bytes, since, pardoned: None })))
    }
}

impl Budget {
    /// Notes that the peer violated HTTP/2.
    pub fn violated(&self) {
        self.0.lock().pardoned = Some(Instant::now() + PARDON);
    }

    /// Waits until the peer may have another byte stream.
    pub async fn pardoned(&self) {
        let pardoned = self.0.lock().pardoned;
        if let Some(pardoned) = pardoned {
            sleep_until(pardoned).await;
        }
    }

    /// The time since anything was received.
    pub fn silence(&self) -> Duration {
        self.0.lock().since.elapsed()
    }

    /// Charges for what was received; returns the seconds to wait.
    fn charge(&self, frames: u32, bytes: u32) -> f64 {
        let now = Instant::now();
        let mut accounts = self.0.lock();
        let seconds = now.saturating_duration_since(accounts.since).as_secs_f64();
        accounts.since = now;
        let for_frames = accounts.frames.charge(frames.into(), seconds);
        let for_bytes = accounts.bytes.charge(bytes.into(), seconds);
        for_frames.max(for_bytes)
    }

    /// Notes calls.
    fn pay(&self, calls: u32) {
        let mut accounts = self.0.lock();
        accounts.frames.pay(calls.into());
        accounts.bytes.pay(calls.into());
    }
}

/// A rate limit for received frames of one kind.
struct Allowance {
    /// The allowance per second without calls, and the burst.
    per_second: f64,
    /// The allowance that each call adds.
    per_call: f64,
    /// The most that calls pay for ahead.
    most: f64,
}

/// The remaining allowance of the peer for frames of one kind.
struct Account {
    allowance: &'static Allowance,
    /// The remaining amount; below zero, reading waits.
    left: f64,
}

/// Finds the heads of frames in a stream of bytes.
pub struct Frames {
    head: [u8; HEAD],
    /// The bytes of the head that are there.
    have: usize,
    /// The bytes that come before the next head.
    skip: usize,
}

impl Account {
    fn new(allowance: &'static Allowance) -> Self {
        Self { allowance, left: allowance.per_second }
    }

    /// Charges for frames received within so many seconds; returns the seconds to wait.
    fn charge(&mut self, received: f64, seconds: f64) -> f64 {
        // What calls paid for stays.
        let earned =
            (self.left + seconds * self.allowance.per_second).min(self.allowance.per_second);
        self.left = self.left.max(earned) - received;
        -self.left / self.allowance.per_second
    }

    /// Notes calls.
    fn pay(&mut self, calls: f64) {
        self.left = (self.left + calls * self.allowance.per_call).min(self.allowance.most);
    }
}

impl<I> Paced<I> {
    /// Paces the other side of `io`, on which nothing was sent yet, within its budget.
    pub fn calling(io: I, budget: Budget) -> Self {
        Self { io, received: Frames::after(0), sent: Frames::after(PREFACE), budget, pause: None }
    }

    /// Paces the client of `io`, which we serve, and from which nothing was read yet.
    pub fn serving(io: I) -> Self {
        let (received, budget) = (Frames::after(PREFACE), Budget::default());
        Self { io, received, sent: Frames::after(0), budget, pause: None }
    }

    /// Charges for received bytes.
    fn charge(&mut self, bytes: &[u8]) {
        let mut frames: u32 = u32::from(bytes.len() < LARGE);
        self.received.scan(bytes, |kind, length| {
            frames = frames.saturating_add(weight(kind, length));
        });
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let wait = self.budget.charge(frames, length);
        if wait > 0.0 {
            self.pause = Some(Box::pin(sleep(Duration::from_secs_f64(wait))));
        }
    }

    /// Notes the calls that were sent.
    fn pay(&mut self, bytes: &[u8]) {
        let mut calls: u32 = 0;
        self.sent.scan(bytes, |kind, _| calls += u32::from(kind == HEADERS));
        if calls > 0 {
            self.budget.pay(calls);
        }
    }
}

/// What a frame of this type, whose content has so many bytes, counts.
pub fn weight(kind: u8, length: usize) -> u32 {
    match kind {
        DATA => u32::from(length < LARGE),
        HEADERS | CONTINUATION => {
            u32::try_from(length / HEADER_BYTES).unwrap_or(u32::MAX).saturating_add(1)
        }
        _ => 1,
    }
}

impl Frames {
    /// The frames that come after so many bytes.
    pub fn after(skip: usize) -> Self {
        Self { head: [0; HEAD], have: 0, skip }
    }

    /// Calls `each` with the type and the length of each frame whose head ends in these bytes.
    pub fn scan(&mut self, mut bytes: &[u8], mut each: impl FnMut(u8, usize)) {
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
        time_within(&Budget::default(), received, calls).await
    }

    /// The same within a budget that is used already.
    async fn time_within(budget: &Budget, received: &[u8], calls: usize) -> Duration {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut paced = Paced::calling(near, budget.clone());
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
    async fn headers_that_no_call_accounts_for_count_by_their_length() {
        // 250 headers by their index, as in an answer of 103 or in a CONTINUATION of it.
        for kind in [HEADERS, CONTINUATION] {
            let flood = frame(kind, 250).repeat(100_000);
            let time = time_of(&flood, 0).await;
            assert!((158.0..160.0).contains(&time.as_secs_f64()), "{kind}: {time:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_stream_of_a_link_has_no_budget_of_its_own() {
        let (budget, flood) = (Budget::default(), frame(3, 4).repeat(10_000));
        let first = time_within(&budget, &flood, 0).await;
        assert!(first < Duration::from_millis(10), "{first:?}");
        let second = time_within(&budget, &flood, 0).await;
        assert!((0.8..1.0).contains(&second.as_secs_f64()), "{second:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_violates_http2_waits_for_its_next_byte_stream() {
        let (budget, begun) = (Budget::default(), Instant::now());
        budget.pardoned().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        budget.violated();
        budget.clone().pardoned().await;
        assert_eq!(begun.elapsed(), PARDON);
        budget.pardoned().await;
        assert_eq!(begun.elapsed(), PARDON);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_calls_and_large_data_are_read_at_once() {
        let answer = [frame(HEADERS, 60), frame(DATA, 100), frame(HEADERS, 20)].concat();
        assert_eq!(time_of(&answer.repeat(5_000), 5_000).await, Duration::ZERO);
        assert_eq!(time_of(&frame(DATA, 16 * 1024).repeat(2_000), 0).await, Duration::ZERO);
        let large = [frame(HEADERS, 60), frame(DATA, 16 * 1024).repeat(256), frame(HEADERS, 20)];
        assert_eq!(time_of(&large.concat().repeat(20), 20).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn data_that_no_call_accounts_for_is_read_slowly() {
        // 128 MiB, of which 32 are free.
        let flood = frame(DATA, 16 * 1024 - HEAD).repeat(8 * 1024);
        let time = time_of(&flood, 0).await;
        assert!((2.9..3.1).contains(&time.as_secs_f64()), "{time:?}");
        // A call pays for its answer, and for no other data.
        let time = time_of(&flood, 1).await;
        assert!((2.8..2.9).contains(&time.as_secs_f64()), "{time:?}");
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
