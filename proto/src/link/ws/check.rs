//! The look at a WebSocket endpoint: a question for a path at which there is no link.

use std::time::SystemTime;

use http::header::{DATE, HeaderMap, HeaderValue};
use tokio_tungstenite::tungstenite::handshake::server::ErrorResponse;

/// The path of the check. Every version of csi-cloud answers 404 to it, after TLS on both sides.
pub(super) const PATH: &str = "/check";

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
