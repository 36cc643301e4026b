//! The byte stream between TLS and a WebSocket. It ends at a message in fragments.
//!
//! Both ends of a link send whole messages, and nothing between them can change that. A fragment
//! without bytes costs its sender six bytes, and the WebSocket returns no message for it. So no
//! limit on messages would see a flood of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use super::metered::Metered;

/// The end of the head of an HTTP/1.1 message.
const HEAD_END: &[u8] = b"\r\n\r\n";
/// The beginning of the answer after which a server's bytes are a WebSocket's.
const SWITCHED: &[u8] = b"HTTP/1.1 101";
/// The longest head of a frame: two bytes, eight of length, four of mask. RFC 6455, 5.2.
const MAX_FRAME_HEAD: usize = 14;

/// A TLS stream on which a WebSocket arrives. It is boxed: each layer of a handshake holds the
/// layers below it.
pub(super) struct Unfragmented {
    tls: Box<TlsStream<Metered>>,
    scan: FrameScan,
}

impl Unfragmented {
    pub(super) fn new(tls: Box<TlsStream<Metered>>) -> Self {
        Self { tls, scan: FrameScan::default() }
    }

    pub(super) fn tls(&self) -> &TlsStream<Metered> {
        &self.tls
    }
}

/// Finds the heads of a WebSocket's frames in a stream of bytes that begins with a message of HTTP.
#[derive(Default)]
pub struct FrameScan {
    at: ScanPosition,
    /// The beginning of the HTTP message, then the head of a frame.
    head: [u8; MAX_FRAME_HEAD],
    /// How many bytes of it are there.
    have: usize,
}

#[derive(Default)]
enum ScanPosition {
    /// In the head of the HTTP message. So many bytes of its end are there.
    #[default]
    Http,
    HttpEnd(usize),
    /// In the head of a frame.
    Head,
    /// Before so many bytes of a frame's content.
    Content(u64),
    /// The HTTP message is an answer without a WebSocket.
    Other,
}

impl FrameScan {
    /// Reads the next bytes of the stream. Returns `false` if a frame is a fragment of a message.
    pub fn is_whole(&mut self, mut bytes: &[u8]) -> bool {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.at {
                ScanPosition::Other => return true,
                ScanPosition::Http => {
                    self.keep(byte);
                    self.at = self.http(0, byte);
                    bytes = rest;
                }
                ScanPosition::HttpEnd(matched) => {
                    self.keep(byte);
                    self.at = self.http(matched, byte);
                    bytes = rest;
                }
                ScanPosition::Head => {
                    self.keep(byte);
                    if self.is_fragment() {
                        return false;
                    }
                    if let Some(length) = self.content() {
                        self.have = 0;
                        self.at = ScanPosition::Content(length);
                    }
                    bytes = rest;
                }
                ScanPosition::Content(0) => self.at = ScanPosition::Head,
                ScanPosition::Content(left) => {
                    let here = u64::try_from(bytes.len()).unwrap_or(u64::MAX).min(left);
                    self.at = ScanPosition::Content(left - here);
                    let skipped = usize::try_from(here).unwrap_or(usize::MAX);
                    bytes = bytes.get(skipped..).unwrap_or_default();
                }
            }
        }
        true
    }

    fn keep(&mut self, byte: u8) {
        if let Some(place) = self.head.get_mut(self.have) {
            *place = byte;
            self.have += 1;
        }
    }

    /// The position after a byte of the HTTP message, of whose end so many bytes came before.
    fn http(&mut self, matched: usize, byte: u8) -> ScanPosition {
        let matched = match HEAD_END.get(matched) {
            Some(expected) if *expected == byte => matched + 1,
            _ => usize::from(byte == b'\r'),
        };
        if matched < HEAD_END.len() {
            return ScanPosition::HttpEnd(matched);
        }
        let is_other = self.head.starts_with(b"HTTP/") && !self.head.starts_with(SWITCHED);
        self.have = 0;
        if is_other { ScanPosition::Other } else { ScanPosition::Head }
    }

    /// True if the frame continues a message, or is not the last one of a message.
    fn is_fragment(&self) -> bool {
        let first = self.head.first().copied().unwrap_or_default();
        first & 0x80 == 0 || first & 0x0f == 0
    }

    /// The length of the frame's content; `None` while its head is not complete.
    fn content(&self) -> Option<u64> {
        let head = self.head.get(..self.have)?;
        let second = *head.get(1)?;
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        let (extended, length) = match second & 0x7f {
            126 => (2, u64::from(u16::from_be_bytes(*head.get(2..)?.first_chunk()?))),
            127 => (8, u64::from_be_bytes(*head.get(2..)?.first_chunk()?)),
            short => (0, u64::from(short)),
        };
        (head.len() == 2 + extended + mask).then_some(length)
    }
}

impl AsyncRead for Unfragmented {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.tls).poll_read(cx, buf))?;
        if !self.scan.is_whole(buf.filled().get(before..).unwrap_or_default()) {
            let why = "it sent a message in fragments, which no csi-edge or csi-cloud does";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Unfragmented {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ASKED: &[u8] = b"GET /link HTTP/1.1\r\nHost: x\r\n\r\n";
    const ANSWERED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";

    /// A frame with this first byte, masked or not.
    fn frame(first: u8, length: usize, is_masked: bool) -> Vec<u8> {
        let masked = if is_masked { 0x80 } else { 0 };
        let mut frame = vec![first];
        match (u8::try_from(length), u16::try_from(length)) {
            (Ok(short @ ..126), _) => frame.push(masked | short),
            (_, Ok(medium)) => {
                frame.push(masked | 126);
                frame.extend(medium.to_be_bytes());
            }
            _ => {
                frame.push(masked | 127);
                frame.extend(u64::try_from(length).unwrap().to_be_bytes());
            }
        }
        frame.extend(vec![0; if is_masked { 4 + length } else { length }]);
        frame
    }

    fn is_whole(bytes: &[u8]) -> bool {
        FrameScan::default().is_whole(bytes)
    }

    #[test]
    fn a_fragment_is_found_and_the_body_of_a_refusal_is_none() {
        for begin in [ASKED, ANSWERED] {
            assert!(is_whole(&[begin, &frame(0x82, 3, true), &frame(0x89, 0, true)].concat()));
            assert!(!is_whole(&[begin, &frame(0x02, 3, true)].concat()), "more follows");
            assert!(!is_whole(&[begin, &frame(0x80, 0, true)].concat()), "it continues");
        }
        assert!(is_whole(b"HTTP/1.1 404 Not Found\r\n\r\n\0\0\0 no link here"));
    }

    proptest! {
        #[test]
        fn whole_messages_pass_however_the_bytes_arrive(
            lengths in prop::collection::vec(0..70_000_usize, 0..8),
            is_masked in any::<bool>(),
            cuts in prop::collection::vec(1..5000_usize, 1..20),
            ends_in_fragment in any::<bool>(),
        ) {
            let frames = lengths.iter().flat_map(|length| frame(0x82, *length, is_masked));
            let mut bytes: Vec<u8> = ASKED.iter().copied().chain(frames).collect();
            if ends_in_fragment {
                bytes.extend(frame(0, 0, is_masked));
            }
            let mut scan = FrameScan::default();
            let mut rest = &bytes[..];
            let mut cuts = cuts.iter().cycle();
            let mut whole = true;
            while whole && !rest.is_empty() {
                let (chunk, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                whole = scan.is_whole(chunk);
                rest = after;
            }
            prop_assert_eq!(whole, !ends_in_fragment);
        }
    }
}
