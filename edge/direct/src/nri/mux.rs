//! NRI's multiplexing of two ttrpc connections on one socket: frames of a connection number, a
//! length and bytes.
//!
//! The payload of a connection is a stream; the ends of its frames mean nothing.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

use super::ttrpc;

/// The connection on which the runtime calls the plugin.
pub const PLUGIN: u32 = 1;
/// The connection on which the plugin calls the runtime.
pub const RUNTIME: u32 = 2;

/// Number and length, four bytes each.
const HEADER: usize = 8;
/// The longest payload: one whole ttrpc message.
const MAX: usize = ttrpc::HEADER + ttrpc::MAX;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The connection's number.
    pub connection: u32,
    /// A frame.
    pub payload: Bytes,
}

/// The reason why bytes are no frame.
#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    /// A length that nobody sends.
    #[error("a frame of {0} bytes is longer than any message")]
    TooLong(usize),
    /// The socket.
    #[error("the NRI socket broke")]
    Io(#[from] std::io::Error),
}

/// The codec of the socket.
#[derive(Debug, Default)]
pub struct Mux;

impl Decoder for Mux {
    type Item = Frame;
    type Error = BadFrame;

    fn decode(&mut self, from: &mut BytesMut) -> Result<Option<Frame>, BadFrame> {
        let mut header = from.as_ref();
        let Ok(connection) = header.try_get_u32() else { return Ok(None) };
        let Ok(length) = header.try_get_u32() else { return Ok(None) };
        // A usize has at least 32 bits on the supported targets.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MAX {
            return Err(BadFrame::TooLong(length));
        }
        if header.len() < length {
            from.reserve(HEADER + length - from.len());
            return Ok(None);
        }
        from.advance(HEADER);
        Ok(Some(Frame { connection, payload: from.split_to(length).freeze() }))
    }
}

impl Encoder<Frame> for Mux {
    type Error = BadFrame;

    fn encode(&mut self, frame: Frame, to: &mut BytesMut) -> Result<(), BadFrame> {
        let length = frame.payload.len();
        let short = u32::try_from(length).ok().filter(|_| length <= MAX);
        let short = short.ok_or(BadFrame::TooLong(length))?;
        to.reserve(HEADER + length);
        to.put_u32(frame.connection);
        to.put_u32(short);
        to.put(frame.payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_as_nri_has_it() {
        let mut bytes = BytesMut::new();
        Mux.encode(Frame { connection: RUNTIME, payload: Bytes::from_static(b"abc") }, &mut bytes)
            .unwrap();
        assert_eq!(&bytes[..], [0, 0, 0, 2, 0, 0, 0, 3, b'a', b'b', b'c']);
    }

    #[test]
    fn a_length_that_nobody_sends_is_no_reason_to_wait() {
        let mut bytes = BytesMut::from(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff][..]);
        assert!(matches!(Mux.decode(&mut bytes), Err(BadFrame::TooLong(_))));
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            sent in vec((any::<u32>(), vec(any::<u8>(), 0..40)), 0..8),
            cut in 1..9_usize,
        ) {
            let mut bytes = BytesMut::new();
            let sent: Vec<_> = sent
                .into_iter()
                .map(|(connection, payload)| Frame { connection, payload: payload.into() })
                .collect();
            for frame in &sent {
                Mux.encode(frame.clone(), &mut bytes).unwrap();
            }
            let mut arrived = BytesMut::new();
            let mut got = Vec::new();
            for part in bytes.chunks(cut) {
                arrived.extend_from_slice(part);
                while let Some(frame) = Mux.decode(&mut arrived).unwrap() {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn bytes_from_a_socket_do_no_harm(bytes: Vec<u8>) {
            let mut bytes = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = Mux.decode(&mut bytes) {}
        }
    }
}
