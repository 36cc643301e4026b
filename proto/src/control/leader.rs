//! The epoch of the leading csi-cloud, as edges are told it.

use http::HeaderValue;
use serde::{Deserialize, Serialize};

/// The epoch of a leading csi-cloud. A later leader has a greater one.
///
/// An edge refuses calls of a lower epoch than the greatest it was told. A csi-cloud has no epoch
/// if its store was never shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaderEpoch(pub u64);

impl std::fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl LeaderEpoch {
    /// The epoch as the value of a header.
    pub fn header(self) -> HeaderValue {
        self.0.into()
    }

    /// Reads the value of a header; none if that is no number.
    pub fn of_header(value: &HeaderValue) -> Option<Self> {
        value.to_str().ok()?.parse().map(Self).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_in_a_header_is_a_number_and_nothing_else_is_one() {
        for number in [0, 7, u64::MAX] {
            let value = LeaderEpoch(number).header();
            assert_eq!(value, number.to_string().as_str());
            assert_eq!(LeaderEpoch::of_header(&value), Some(LeaderEpoch(number)));
        }
        for text in ["", "-1", "x", " 7", "18446744073709551616"] {
            assert_eq!(LeaderEpoch::of_header(&HeaderValue::from_static(text)), None, "{text}");
        }
    }
}
