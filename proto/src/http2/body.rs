//! The bodies of answers: as an upstream's arrives, and as a caller gets it.
//!
//! A body that breaks off without a status ends with a status of ours in its trailers.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Frame, SizeHint};
use tonic::Status;

/// gRPC's header for the code of an answer.
pub static STATUS: HeaderName = HeaderName::from_static("grpc-status");
static MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// CSI: "details MUST be empty". A driver's details are dropped.
static DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// The code UNKNOWN.
const UNKNOWN: &str = "2";
/// UNAUTHENTICATED, the last code that gRPC defines.
const LAST_CODE: u8 = 16;
/// The longest status message passed on, in bytes on the wire: callers' header lists are bounded.
const MAX_STATUS_MESSAGE: usize = 4096;

/// The body of an answer as it arrives.
pub struct Received(pub(super) h2::RecvStream);

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.0.poll_data(cx)) {
            Some(Ok(data)) => {
                // The caller takes the data at once.
                let released = self.0.flow_control().release_capacity(data.len());
                Poll::Ready(Some(released.map(|()| Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => self
                .0
                .poll_trailers(cx)
                .map(|trailers| trailers.transpose().map(|t| t.map(Frame::trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// The body of an answer.
#[derive(Default)]
pub enum Body {
    /// Nothing, not even trailers.
    #[default]
    Empty,
    /// One chunk and then the trailers.
    Whole {
        /// The rest to send.
        data: Option<Bytes>,
        /// Sent after the data.
        trailers: Option<HeaderMap>,
    },
    /// An upstream's answer as it arrives.
    Passing {
        /// The upstream's body.
        body: Received,
        /// The status if the body ends without one; none once a status was sent.
        broken: Option<Box<Status>>,
        /// Its part of a limit, released on drop.
        room: Box<dyn Any + Send + Sync>,
    },
}

impl Body {
    /// The trailers that are still to be sent, unless they have yet to arrive.
    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        match self {
            Self::Whole { trailers, .. } => trailers.as_ref(),
            Self::Empty | Self::Passing { .. } => None,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Whole { data, trailers } => {
                let frame =
                    data.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
            Self::Passing { body, broken, .. } => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(pass_frame(frame, broken).map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Self::Passing { body, broken, .. } => broken.is_none() && body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |d| d.len() as u64))
            }
            Self::Passing { .. } => SizeHint::default(),
        }
    }
}

/// One frame of a passing body; if the body ends without a status, that is `broken`.
fn pass_frame(
    frame: Option<Result<Frame<Bytes>, h2::Error>>,
    broken: &mut Option<Box<Status>>,
) -> Option<Frame<Bytes>> {
    match frame {
        Some(Ok(mut frame)) => {
            if let Some(trailers) = frame.trailers_mut() {
                if trailers.contains_key(&STATUS) {
                    *broken = None;
                }
                tidy(trailers);
            }
            Some(frame)
        }
        Some(Err(_)) | None => {
            let status = broken.take()?;
            let mut trailers = HeaderMap::new();
            // Fails only for metadata that is not a header; ours has none.
            let _ = status.add_header(&mut trailers);
            Some(Frame::trailers(trailers))
        }
    }
}

/// Removes details, which CSI forbids, cuts a message that no caller could receive, and makes a
/// status that gRPC does not define UNKNOWN.
///
/// gRPC's implementations read such a status as UNKNOWN, as INTERNAL, or as the number itself.
pub(super) fn tidy(headers: &mut HeaderMap) {
    headers.remove(&DETAILS);
    if let Some(status) = headers.get_mut(&STATUS)
        && !is_defined(status)
    {
        *status = HeaderValue::from_static(UNKNOWN);
    }
    if let Some(message) = headers.get_mut(&MESSAGE)
        && message.len() > MAX_STATUS_MESSAGE
    {
        let cut = message.as_bytes().get(..MAX_STATUS_MESSAGE).unwrap_or_default();
        // A percent-encoded byte is three characters long, and is not cut.
        let whole = cut
            .iter()
            .rposition(|b| *b == b'%')
            .filter(|at| at + 3 > cut.len())
            .unwrap_or(cut.len());
        if let Ok(short) = HeaderValue::from_bytes(cut.get(..whole).unwrap_or_default()) {
            *message = short;
        }
    }
}

/// True for the codes 0 to 16, as gRPC writes them.
fn is_defined(status: &HeaderValue) -> bool {
    let text = status.to_str().unwrap_or_default();
    let is_written_so = text == "0" || !text.starts_with(['0', '+', '-']);
    is_written_so && text.parse().is_ok_and(|code: u8| code <= LAST_CODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_grpc_does_not_define_is_unknown() {
        for (said, passed) in [
            ("0", "0"),
            ("14", "14"),
            ("16", "16"),
            ("17", "2"),
            ("-1", "2"),
            ("+5", "2"),
            ("05", "2"),
            ("00", "2"),
            ("", "2"),
            ("ok", "2"),
            ("4294967310", "2"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(&STATUS, HeaderValue::from_static(said));
            tidy(&mut headers);
            assert_eq!(headers[&STATUS], passed, "{said:?}");
        }
        let mut without = HeaderMap::new();
        tidy(&mut without);
        assert!(without.is_empty());
    }

    #[test]
    fn a_long_status_message_is_cut_between_encoded_bytes() {
        for shift in 0..3 {
            let mut headers = HeaderMap::new();
            let text = format!("{}{}", "x".repeat(shift), "%E2%82%AC".repeat(1000));
            headers.insert(&MESSAGE, HeaderValue::try_from(text).unwrap());
            headers.insert(&DETAILS, HeaderValue::from_static("AAAA"));
            tidy(&mut headers);
            let message = headers.get(&MESSAGE).unwrap().to_str().unwrap();
            assert!(message.len() <= MAX_STATUS_MESSAGE && message.len() > MAX_STATUS_MESSAGE - 3);
            assert_eq!((message.len() - shift) % 3, 0);
            assert!(!headers.contains_key(&DETAILS));
        }
    }
}
