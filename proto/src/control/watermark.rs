//! How far the store of the leading csi-cloud was when an edge heard of it.
//!
//! csi-cloud sends a watermark with each welcome and with each create, when that is durable. An
//! edge keeps the newest, and tells it in its hello. One that is beyond the store of csi-cloud
//! shows that the store is an older copy. Edges cannot make one, because it has a MAC.

use std::fmt;
use std::str::FromStr;

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The longest text of a watermark, in bytes.
const LONGEST: usize = 128;

/// A start of a csi-cloud, and the number of the last create in it that was durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Watermark {
    /// The start of the csi-cloud that counted.
    pub start: Uuid,
    /// The number of the create. It grows within a start.
    pub number: u64,
    /// The MAC of both and of the node, in base64.
    pub mac: String,
}

/// The text is not a [`Watermark`].
#[derive(Debug, thiserror::Error)]
#[error("not a watermark of csi-cloud's store: START.NUMBER.MAC")]
pub struct NotAWatermark;

impl Watermark {
    /// True if this is later than another one, which was told before. Another start is: csi-cloud
    /// goes on in one that is not over.
    pub fn follows(&self, before: &Self) -> bool {
        self.start != before.start || self.number > before.number
    }

    /// The watermark as the value of a header; none if it cannot be one.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.to_string()).ok()
    }

    /// Reads the value of a header; none if that is not a watermark.
    pub fn of_header(value: &HeaderValue) -> Option<Self> {
        value.to_str().ok()?.parse().ok()
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.start, self.number, self.mac)
    }
}

impl FromStr for Watermark {
    type Err = NotAWatermark;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, '.');
        let (start, number, mac) = (parts.next(), parts.next(), parts.next());
        let is_plain = text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic());
        let start = start.filter(|_| is_plain).and_then(|start| start.parse().ok());
        let number = number.and_then(|number| number.parse().ok());
        match (start, number, mac) {
            (Some(start), Some(number), Some(mac)) if !mac.is_empty() => {
                Ok(Self { start, number, mac: mac.into() })
            }
            _ => Err(NotAWatermark),
        }
    }
}

impl TryFrom<String> for Watermark {
    type Error = NotAWatermark;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Watermark> for String {
    fn from(watermark: Watermark) -> Self {
        watermark.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watermark_is_read_as_it_was_written_and_nothing_else_is_one() {
        let start = Uuid::from_u128(7);
        let watermark = Watermark { start, number: u64::MAX, mac: "Hg+/".into() };
        let text = watermark.to_string();
        assert_eq!(text.parse::<Watermark>().unwrap(), watermark);
        assert_eq!(Watermark::of_header(&watermark.header().unwrap()), Some(watermark));
        let long = format!("{start}.1.{}", "A".repeat(LONGEST));
        for wrong in ["", "a.1.b", &format!("{start}.1"), &format!("{start}.-1.b"), &long] {
            assert!(wrong.parse::<Watermark>().is_err(), "{wrong}");
        }
        for wrong in [format!("{start}.1."), format!("{start}.1.a b"), format!("{start}.1.\u{e9}")]
        {
            assert!(wrong.parse::<Watermark>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn within_a_start_the_greater_number_is_later() {
        let of =
            |start, number| Watermark { start: Uuid::from_u128(start), number, mac: "m".into() };
        assert!(of(1, 3).follows(&of(1, 2)));
        assert!(!of(1, 2).follows(&of(1, 2)) && !of(1, 1).follows(&of(1, 2)));
        assert!(of(2, 1).follows(&of(1, 9)));
    }
}
