//! gRPC's message framing: a flag byte, four bytes of length, the message.
//!
//! A body is read whole and passed on as it came; the message inside is a view of the same bytes.

use bytes::{BufMut, Bytes, BytesMut};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};

/// The largest message that passes, in bytes; grpc-go's default for received messages.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// The bytes before each message.
pub const PREFIX: usize = 5;

/// The reason why a body is not one gRPC message.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// More than [`MAX_MESSAGE`].
    #[error("the message is larger than {MAX_MESSAGE} bytes")]
    TooLarge,
    /// The compressed flag is set; nothing here offers a compression.
    #[error("the message is compressed, which no CSI endpoint here offers; send it uncompressed")]
    Compressed,
    /// The body ends before the message does, or goes on after it, or has an unknown flag.
    #[error("the body is not one whole gRPC message ({0})")]
    Malformed(&'static str),
    /// The body broke off.
    #[error("the body broke off")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Reads a body of one message to its end and gives it back as it came, prefix included.
///
/// # Errors
/// [`FrameError::TooLarge`] and [`FrameError::Broken`]; the content is not looked at.
pub async fn collect<B>(body: B) -> Result<Bytes, FrameError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, MAX_MESSAGE + PREFIX).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(FrameError::TooLarge),
        Err(error) => Err(FrameError::Broken(error)),
    }
}

/// The message in a body that holds exactly one.
///
/// # Errors
/// All but [`FrameError::Broken`].
pub fn message(body: &Bytes) -> Result<Bytes, FrameError> {
    let Some((&[flag, a, b, c, d], rest)) = body.split_first_chunk::<PREFIX>() else {
        return Err(FrameError::Malformed("cut inside the prefix"));
    };
    match flag {
        0 => {}
        1 => return Err(FrameError::Compressed),
        _ => return Err(FrameError::Malformed("unknown flag")),
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        return Err(FrameError::TooLarge);
    }
    match rest.len().cmp(&length) {
        std::cmp::Ordering::Less => Err(FrameError::Malformed("cut inside the message")),
        std::cmp::Ordering::Greater => Err(FrameError::Malformed("bytes after the message")),
        std::cmp::Ordering::Equal => Ok(body.slice(PREFIX..)),
    }
}

/// The compressed message in a body that holds exactly one; `None` if it is not compressed, or not
/// whole.
pub fn compressed(body: &[u8]) -> Option<&[u8]> {
    let (&[flag, a, b, c, d], rest) = body.split_first_chunk::<PREFIX>()?;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    (flag == 1 && rest.len() == length).then_some(rest)
}

/// A body that holds this one message, which is shorter than [`MAX_MESSAGE`].
pub fn frame(message: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(PREFIX + message.len());
    body.put_u8(0);
    body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    body.put_slice(message);
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use proptest::prelude::*;

    #[test]
    fn each_malformed_body_has_its_own_error() {
        let cases: [(&[u8], &str); 6] = [
            (b"", "cut inside the prefix"),
            (b"\0\0\0\0", "cut inside the prefix"),
            (b"\0\0\0\0\x02a", "cut inside the message"),
            (b"\0\0\0\0\x01ab", "bytes after the message"),
            (b"\x02\0\0\0\0", "unknown flag"),
            (b"\x01\0\0\0\0", "compressed"),
        ];
        for (body, expected) in cases {
            let error = message(&Bytes::from_static(body)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert!(matches!(
            message(&Bytes::from_static(b"\0\xff\xff\xff\xff")),
            Err(FrameError::TooLarge)
        ));
    }

    #[tokio::test]
    async fn a_body_of_the_largest_message_passes_and_one_byte_more_does_not() {
        let largest = Full::new(Bytes::from(vec![0; MAX_MESSAGE + PREFIX]));
        assert_eq!(collect(largest).await.unwrap().len(), MAX_MESSAGE + PREFIX);
        let larger = Full::new(Bytes::from(vec![0; MAX_MESSAGE + PREFIX + 1]));
        assert!(matches!(collect(larger).await, Err(FrameError::TooLarge)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let body = Bytes::from(bytes);
            if let Ok(inner) = message(&body) {
                prop_assert_eq!(inner.len() + PREFIX, body.len());
            }
        }

        #[test]
        fn a_framed_message_is_read_back(
            content in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            prop_assert_eq!(message(&frame(&content)).unwrap(), content);
        }
    }
}
