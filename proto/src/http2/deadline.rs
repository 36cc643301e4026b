//! The deadline of a call: read from the caller's header, waited for, and passed on.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;
use tonic::Code;

use crate::csi::status::{BadRequest, ToStatus};

/// gRPC's header for the caller's timeout.
pub static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The caller's deadline passed. A call that was passed on before goes on at the edge.
#[derive(Debug, thiserror::Error)]
#[error("the deadline of the call passed {0}; the same request may be sent again")]
pub struct DeadlinePassed(pub &'static str);

impl ToStatus for DeadlinePassed {
    fn code(&self) -> Code {
        Code::DeadlineExceeded
    }
}

/// Waits for a call, at most until its deadline.
///
/// # Errors
/// [`DeadlinePassed`], or the call's own.
pub async fn until<T, E: From<DeadlinePassed>>(
    deadline: Option<Instant>,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    // Pinned here: moved into a second future, its memory would be there twice.
    let mut call = std::pin::pin!(call);
    let Some(deadline) = deadline else { return call.await };
    let expired = |_| Err(DeadlinePassed("before it was answered").into());
    tokio::time::timeout_at(deadline, call.as_mut()).await.unwrap_or_else(expired)
}

/// The caller's deadline, from its `grpc-timeout`; none if it waits for ever.
///
/// # Errors
/// [`BadRequest::Timeout`] if the header is malformed.
pub fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, BadRequest> {
    deadline_in(headers, &TIMEOUT)
}

/// Reads a timeout from a header in the format of `grpc-timeout`, and returns the time at which it
/// ends. `None` without that header.
///
/// # Errors
/// [`BadRequest::Timeout`] if the header is malformed.
pub fn deadline_in(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Instant>, BadRequest> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let bad = || BadRequest::Timeout(String::from_utf8_lossy(value.as_bytes()).into_owned());
    let text = value.to_str().map_err(|_| bad())?;
    let timeout = parse_timeout(text).ok_or_else(bad)?;
    // A timeout beyond the range of the clock is none.
    Ok(Instant::now().checked_add(timeout))
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// The time left until a deadline, in the finest unit that fits eight digits.
pub fn timeout_value(deadline: Instant) -> HeaderValue {
    let left = deadline.saturating_duration_since(Instant::now());
    let units =
        [(left.as_micros(), 'u'), (left.as_millis(), 'm'), (u128::from(left.as_secs()), 'S')];
    let fits = units.into_iter().find(|(amount, _)| *amount < 100_000_000);
    let (amount, unit) = fits.unwrap_or((99_999_999, 'S'));
    // Digits and a letter are always a header value.
    HeaderValue::try_from(format!("{amount}{unit}"))
        .unwrap_or_else(|_| HeaderValue::from_static("0u"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_timeout_is_read_as_grpc_writes_it() {
        assert_eq!(parse_timeout("10S"), Some(Duration::from_secs(10)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse_timeout("0n"), Some(Duration::ZERO));
        for bad in ["", "S", "10", "123456789S", "-1S", "1 S", "1s", "é", "1é"] {
            assert_eq!(parse_timeout(bad), None, "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_left_is_never_more_than_the_time_given() {
        for seconds in [0, 1, 99, 100, 86_400, 99_999_999] {
            let given = Duration::from_secs(seconds);
            let value = timeout_value(Instant::now() + given);
            let left = parse_timeout(value.to_str().unwrap()).unwrap();
            assert!(left <= given && given - left < Duration::from_secs(1), "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_timeout_or_none(text in ".*") {
            let _ = parse_timeout(&text);
        }
    }
}
