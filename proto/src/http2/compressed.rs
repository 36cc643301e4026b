//! Answers that a server compressed unasked, as some of the field do.

use std::io::Read;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderName};

use crate::csi::frame;
use crate::csi::frame::{FrameError, MAX_MESSAGE};

/// The message encoding of an answer.
static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A message as it was before its server compressed it, which some servers do unasked. One that is
/// not gzip stays as it came.
///
/// # Errors
/// It is not gzip, or larger than a message may be.
pub(super) fn uncompressed(headers: &mut HeaderMap, body: Bytes) -> Result<Bytes, BoxError> {
    let is_gzip = headers.get(&ENCODING).is_some_and(|encoding| encoding == "gzip");
    let Some(gzip) = frame::compressed(&body).filter(|_| is_gzip) else { return Ok(body) };
    headers.remove(&ENCODING);
    let mut message = Vec::new();
    let most = MAX_MESSAGE as u64 + 1;
    GzDecoder::new(gzip).take(most).read_to_end(&mut message)?;
    if message.len() > MAX_MESSAGE {
        return Err(FrameError::TooLarge.into());
    }
    Ok(frame::frame(&message))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn an_answer_that_was_compressed_unasked_is_read_up_to_the_longest_message() {
        use std::io::Write;
        let gzip = |length: usize| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            packed.write_all(&vec![7; length]).unwrap();
            let mut body = frame::frame(&packed.finish().unwrap()).to_vec();
            body[0] = 1;
            Bytes::from(body)
        };
        let read = |encoding: &'static str, body: Bytes| {
            let mut headers = HeaderMap::new();
            headers.insert(&ENCODING, HeaderValue::from_static(encoding));
            uncompressed(&mut headers, body).map(|body| (body, headers.contains_key(&ENCODING)))
        };
        for length in [0, 1, MAX_MESSAGE] {
            let (body, is_encoded) = read("gzip", gzip(length)).unwrap();
            assert_eq!(frame::message(&body).unwrap(), vec![7; length]);
            assert!(!is_encoded);
        }
        let bomb = read("gzip", gzip(MAX_MESSAGE + 1)).unwrap_err();
        assert!(matches!(bomb.downcast_ref(), Some(FrameError::TooLarge)), "{bomb}");
        let mut cut = gzip(100).to_vec();
        cut.truncate(20);
        cut[4] = 15;
        assert!(read("gzip", cut.into()).is_err());
        // A server may announce it and not use it; and what nobody here knows is the caller's.
        assert_eq!(read("gzip", frame::frame(b"x")).unwrap(), (frame::frame(b"x"), true));
        assert_eq!(read("zstd", gzip(1)).unwrap(), (gzip(1), true));
    }
}
