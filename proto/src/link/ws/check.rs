//! The look at a WebSocket endpoint: a question for a path at which there is no link.

use std::time::SystemTime;

use http::header::{DATE, HeaderMap, HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::handshake::server::ErrorResponse;

/// The path of the check. Every version of csi-cloud answers 404 to it, after TLS on both sides.
pub(super) const PATH: &str = "/check";

/// What makes a message large. The answer to a question that has it has it too.
const PADDING: HeaderName = HeaderName::from_static("edge-csi-padding");

/// The padding of a large message, in bytes: more than any network sends in one packet.
const LARGE: usize = 16 * 1024;

/// The header that makes a message large.
pub(super) fn padding() -> (HeaderName, String) {
    (PADDING, "x".repeat(LARGE))
}

/// Makes the answer as large as the question was, up to [`LARGE`].
pub(super) fn pad(question: &HeaderMap, answer: &mut ErrorResponse) {
    if let Some(padding) = question.get(PADDING).filter(|padding| padding.len() <= LARGE) {
        answer.headers_mut().insert(PADDING, padding.clone());
    }
}

/// True if the whole padding came back.
pub(super) fn is_padded(answer: &HeaderMap) -> bool {
    answer.get(PADDING).is_some_and(|padding| padding.len() == LARGE)
}

/// Tells the peer the time here.
pub(super) fn date(answer: &mut ErrorResponse) {
    let now = httpdate::fmt_http_date(SystemTime::now());
    if let Ok(now) = HeaderValue::try_from(now) {
        answer.headers_mut().insert(DATE, now);
    }
}

/// The time in an answer, if it has one.
pub(super) fn time(answer: &HeaderMap) -> Option<SystemTime> {
    let date = answer.get(DATE)?.to_str().ok()?;
    httpdate::parse_http_date(date).ok()
}
