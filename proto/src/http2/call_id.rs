//! The id of a call, which stands in the logs of both programs.
//!
//! A caller that sends a W3C `traceparent` has chosen it: its trace-id. Every other call is known
//! by the id that the first of our programs gave it (`edge-csi-call`). `traceparent` itself is
//! copied like any other header, and never made up: a driver would take ours for its caller's wish.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use crate::http2::forward::CALL_ID;

/// The header of W3C Trace Context.
pub static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The id of a call. It is shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(u128);

impl CallId {
    /// The id of an arriving call. A call without an id gets a new one in its headers.
    pub fn arriving(headers: &mut HeaderMap) -> Self {
        let ours = match ours(headers) {
            Some(ours) => ours,
            None => {
                let made = Uuid::now_v7();
                headers.insert(&CALL_ID, value(made));
                made
            }
        };
        Self::of(headers, Some(ours)).unwrap_or(Self(ours.as_u128()))
    }

    /// The id of a call whose id of ours was read before; none if it has neither.
    pub fn of(headers: &HeaderMap, ours: Option<Uuid>) -> Option<Self> {
        trace_id(headers).or_else(|| ours.map(|ours| ours.as_u128())).map(Self)
    }
}

impl From<u128> for CallId {
    fn from(id: u128) -> Self {
        Self(id)
    }
}

impl From<CallId> for u128 {
    fn from(id: CallId) -> Self {
        id.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The id that one of our programs gave the call.
pub fn ours(headers: &HeaderMap) -> Option<Uuid> {
    headers.get(&CALL_ID).and_then(|id| Uuid::try_parse_ascii(id.as_bytes()).ok())
}

/// A new id, as the value of its header.
pub fn made() -> HeaderValue {
    value(Uuid::now_v7())
}

fn value(id: Uuid) -> HeaderValue {
    let mut text = Uuid::encode_buffer();
    let text = id.hyphenated().encode_lower(&mut text);
    // Hexadecimal digits and hyphens are a valid header value.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The trace-id of the only `traceparent`, if that is a valid one.
fn trace_id(headers: &HeaderMap) -> Option<u128> {
    let mut all = headers.get_all(&TRACEPARENT).iter();
    let only = all.next()?;
    if all.next().is_some() {
        return None;
    }
    // "version-format = trace-id "-" parent-id "-" trace-flags"; zeros are invalid, and so is
    // version ff. A later version may go on after the flags.
    let mut parts = only.to_str().ok()?.splitn(5, '-');
    let version = hex(parts.next()?, 2)?;
    let trace = hex(parts.next()?, 32)?;
    let parent = hex(parts.next()?, 16)?;
    hex(parts.next()?, 2)?;
    let goes_on = parts.next().is_some();
    let is_valid = version != 0xff && trace != 0 && parent != 0 && (version != 0 || !goes_on);
    is_valid.then_some(trace)
}

/// A number in so many digits of lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hex = text.len() == digits && text.bytes().all(is_digit);
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn traced(values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| HeaderValue::try_from(*value).unwrap());
        values.map(|value| (TRACEPARENT.clone(), value)).collect()
    }

    #[test]
    fn a_callers_trace_is_the_id_if_it_is_valid() {
        let parent = "00f067aa0ba902b7";
        let id = |values: &[&str]| CallId::of(&traced(values), None).map(|id| id.to_string());
        for version in ["00", "01", "fe"] {
            let header = format!("{version}-{TRACE}-{parent}-01");
            assert_eq!(id(&[&header]).as_deref(), Some(TRACE), "{header}");
        }
        assert_eq!(id(&[&format!("01-{TRACE}-{parent}-01-more")]).as_deref(), Some(TRACE));
        let zeros = "0".repeat(32);
        for invalid in [
            format!("ff-{TRACE}-{parent}-01"),
            format!("00-{TRACE}-{parent}-01-more"),
            format!("00-{}-{parent}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{parent}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{parent}"),
            format!("00-+{}-{parent}-01", &TRACE[1..]),
            format!("00-{TRACE}-{parent}-1"),
            "00-aa-bb-01".into(),
            String::new(),
        ] {
            assert_eq!(id(&[&invalid]), None, "{invalid}");
        }
        let valid = format!("00-{TRACE}-{parent}-01");
        assert_eq!(id(&[&valid, &valid]), None, "two are not valid");
    }

    #[test]
    fn a_call_without_a_trace_has_our_id_and_keeps_it() {
        let mut headers = HeaderMap::new();
        let first = CallId::arriving(&mut headers);
        assert_eq!(CallId::arriving(&mut headers), first);
        assert_eq!(CallId::of(&headers, ours(&headers)), Some(first));
        assert_eq!(first.to_string().len(), 32);
        assert!(!headers.contains_key(&TRACEPARENT), "none is made up");
        let mut headers = traced(&[&format!("00-{TRACE}-00f067aa0ba902b7-01")]);
        assert_eq!(CallId::arriving(&mut headers).to_string(), TRACE);
        assert!(ours(&headers).is_some(), "the edge joins repeated calls by it");
        assert_eq!(CallId::of(&HeaderMap::new(), None), None);
    }

    proptest! {
        #[test]
        fn no_header_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(&TRACEPARENT, value);
                let shown = CallId::arriving(&mut headers).to_string();
                prop_assert_eq!(shown.len(), 32);
            }
        }
    }
}
