//! ttrpc as NRI uses it: unary calls, each a message of a header and a protobuf `Request` or
//! `Response`.
//!
//! `docs/decisions/0009-runtimes.md` says why this is not a crate. Streams are refused: NRI has
//! none.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message as _;

/// Length, stream, kind and flags.
pub const HEADER: usize = 10;
/// The longest payload of a message, in bytes, as in containerd.
pub const MAX: usize = 4 << 20;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// A call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    /// The protobuf service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Its method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The request's message.
    #[prost(bytes = "bytes", tag = "3")]
    pub payload: Bytes,
    /// The caller's timeout, in ns; 0 is for ever.
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

/// The result of a call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    /// A failure if it is present and its code is not 0.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The answer's message.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// A gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// One message of a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A call, by the number of its stream.
    Request(u32, Request),
    /// The answer to the call of this number.
    Response(u32, Response),
}

/// The reason why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum BadMessage {
    /// A length that is refused.
    #[error("a message of {0} bytes is longer than any call of NRI")]
    TooLong(usize),
    /// A kind that a unary call does not have.
    #[error("a message is of kind {0}, which no unary call has")]
    Kind(u8),
    /// The protobuf.
    #[error("a message cannot be read")]
    Protobuf(#[from] prost::DecodeError),
}

impl Message {
    /// Takes the next whole message from the received bytes; none if it is incomplete.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn take(from: &mut BytesMut) -> Result<Option<Self>, BadMessage> {
        let mut header = from.as_ref();
        let Ok(length) = header.try_get_u32() else { return Ok(None) };
        let Ok(stream) = header.try_get_u32() else { return Ok(None) };
        let Ok(kind) = header.try_get_u8() else { return Ok(None) };
        let Ok(_flags) = header.try_get_u8() else { return Ok(None) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MAX {
            return Err(BadMessage::TooLong(length));
        }
        if header.len() < length {
            return Ok(None);
        }
        from.advance(HEADER);
        let payload = from.split_to(length).freeze();
        match kind {
            REQUEST => Ok(Some(Self::Request(stream, Request::decode(payload)?))),
            RESPONSE => Ok(Some(Self::Response(stream, Response::decode(payload)?))),
            other => Err(BadMessage::Kind(other)),
        }
    }

    /// As it goes over the connection.
    pub fn bytes(&self) -> Bytes {
        let (stream, kind, payload) = match self {
            Self::Request(stream, request) => (*stream, REQUEST, request.encode_to_vec()),
            Self::Response(stream, response) => (*stream, RESPONSE, response.encode_to_vec()),
        };
        let mut bytes = BytesMut::with_capacity(HEADER + payload.len());
        // The mux refuses a longer message; it has the same limit.
        bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        bytes.put_u32(stream);
        bytes.put_u8(kind);
        bytes.put_u8(0);
        bytes.put_slice(&payload);
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_is_as_ttrpc_has_it() {
        let request = Request {
            service: "s".into(),
            method: "m".into(),
            payload: Bytes::from_static(b"p"),
            timeout_nano: 0,
        };
        let bytes = Message::Request(3, request).bytes();
        assert_eq!(&bytes[..], b"\0\0\0\x09\0\0\0\x03\x01\0\x0a\x01s\x12\x01m\x1a\x01p");
    }

    #[test]
    fn what_is_no_unary_call_ends_the_connection() {
        let mut stream = BytesMut::from(&b"\0\0\0\0\0\0\0\x01\x03\0"[..]);
        assert!(matches!(Message::take(&mut stream), Err(BadMessage::Kind(3))));
        let mut long = BytesMut::from(&b"\x7f\0\0\0\0\0\0\x01\x01\0"[..]);
        assert!(matches!(Message::take(&mut long), Err(BadMessage::TooLong(_))));
    }

    proptest! {
        #[test]
        fn calls_come_out_as_they_went_in(
            stream: u32,
            method in "[a-z]{0,9}",
            payload: Vec<u8>,
            cut in 1..20_usize,
        ) {
            let payload = payload.into();
            let request = Request { service: "s".into(), method, payload, timeout_nano: 7 };
            let sent = Message::Request(stream, request);
            let mut arrived = BytesMut::new();
            let mut got = Vec::new();
            for part in [sent.bytes(), sent.bytes()].concat().chunks(cut) {
                arrived.extend_from_slice(part);
                while let Some(message) = Message::take(&mut arrived).unwrap() {
                    got.push(message);
                }
            }
            prop_assert_eq!(got, [sent.clone(), sent]);
        }

        #[test]
        fn bytes_from_a_runtime_do_no_harm(bytes: Vec<u8>) {
            let mut bytes = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = Message::take(&mut bytes) {}
        }
    }
}
