//! Reads a guest's statistics strictly: the kubelet evicts pods by these numbers.
//!
//! Kata's Go runtime and our reference answer the JSON of CSI's own messages, without zero fields.
//! Anything else is refused, such as the text for people of runtime-rs.

use proto::csi;
use serde::Deserialize;

use csi::volume_usage::Unit;

/// The amounts of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// In all.
    pub total: u64,
    /// Taken.
    pub used: u64,
    /// Free.
    pub available: u64,
}

/// A file system, as its guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes.
    pub bytes: Usage,
    /// Inodes; some file systems do not count them.
    pub inodes: Option<Usage>,
    /// The fault of the volume, if the guest reports one.
    pub abnormal: Option<String>,
}

/// The reason why an answer is no statistics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatsError {
    /// It is not the JSON of the contract.
    #[error("it is not JSON of the contract ({0})")]
    Json(String),
    /// A unit is neither bytes nor inodes.
    #[error("it counts in unit {0}, which is neither bytes (1) nor inodes (2)")]
    Unit(i64),
    /// A unit is there twice.
    #[error("it counts the same thing twice")]
    Twice,
    /// There is no number of bytes.
    #[error("it says no size in bytes")]
    NoBytes,
    /// The numbers contradict each other.
    #[error("it says {used} used and {available} available of {total}")]
    Impossible {
        /// In all.
        total: i64,
        /// Taken.
        used: i64,
        /// Free.
        available: i64,
    },
    /// The numbers are not about this volume.
    #[error(
        "it says {bytes} bytes, and the device has {device}; that is not this volume's file system"
    )]
    TooLarge {
        /// The file system's size.
        bytes: u64,
        /// The device's.
        device: u64,
    },
}

#[derive(Deserialize)]
struct GuestReport {
    #[serde(default)]
    usage: Vec<Row>,
    #[serde(default)]
    volume_condition: Option<Condition>,
}

/// Go omits fields that are zero or false.
#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    available: i64,
    #[serde(default)]
    total: i64,
    #[serde(default)]
    used: i64,
    #[serde(default)]
    unit: i64,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(default)]
    abnormal: bool,
    #[serde(default)]
    message: String,
}

/// Reads an answer about a volume whose device has `device` bytes.
///
/// # Errors
/// It is not certainly this volume's statistics.
pub fn read(body: &[u8], device: u64) -> Result<Stats, StatsError> {
    let report: GuestReport =
        serde_json::from_slice(body).map_err(|error| StatsError::Json(error.to_string()))?;
    let mut bytes = None;
    let mut inodes = None;
    for row in report.usage {
        let place = match row.unit {
            1 => &mut bytes,
            2 => &mut inodes,
            unit => return Err(StatsError::Unit(unit)),
        };
        if place.replace(usage(&row)?).is_some() {
            return Err(StatsError::Twice);
        }
    }
    let bytes = bytes.filter(|bytes| bytes.total > 0).ok_or(StatsError::NoBytes)?;
    if bytes.total > device {
        return Err(StatsError::TooLarge { bytes: bytes.total, device });
    }
    // A file system that allocates inodes on demand reports none.
    let inodes = inodes.filter(|inodes| inodes.total > 0);
    let abnormal = report.volume_condition.filter(|condition| condition.abnormal);
    Ok(Stats { bytes, inodes, abnormal: abnormal.map(|condition| condition.message) })
}

fn usage(row: &Row) -> Result<Usage, StatsError> {
    let Row { total, used, available, .. } = *row;
    let impossible = StatsError::Impossible { total, used, available };
    let [total, used, available] = [total, used, available].map(u64::try_from);
    match (total, used, available) {
        (Ok(total), Ok(used), Ok(available)) if used <= total && available <= total => {
            Ok(Usage { total, used, available })
        }
        _ => Err(impossible),
    }
}

impl Stats {
    /// As CSI has it.
    pub fn response(&self) -> csi::NodeGetVolumeStatsResponse {
        let row = |usage: Usage, unit: Unit| {
            // They came as numbers of this type.
            let [total, used, available] = [usage.total, usage.used, usage.available]
                .map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            csi::VolumeUsage { total, used, available, unit: unit.into() }
        };
        let bytes = std::iter::once(row(self.bytes, Unit::Bytes));
        csi::NodeGetVolumeStatsResponse {
            usage: bytes.chain(self.inodes.map(|inodes| row(inodes, Unit::Inodes))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEVICE: u64 = 1 << 30;

    #[test]
    fn what_go_leaves_out_is_zero() {
        let body =
            br#"{"usage":[{"available":10,"total":10,"unit":1},{"total":4,"used":4,"unit":2}],
            "volume_condition":{}}"#;
        let stats = read(body, DEVICE).unwrap();
        assert_eq!(stats.bytes, Usage { total: 10, used: 0, available: 10 });
        assert_eq!(stats.inodes, Some(Usage { total: 4, used: 4, available: 0 }));
        assert_eq!(stats.abnormal, None);
        let usage = stats.response().usage;
        assert_eq!(
            usage.iter().map(|row| (row.unit, row.total, row.used)).collect::<Vec<_>>(),
            [(1, 10, 0), (2, 4, 4)]
        );
    }

    #[test]
    fn a_guest_may_say_that_something_is_wrong() {
        let body = br#"{"usage":[{"total":9,"unit":1}],
            "volume_condition":{"abnormal":true,"message":"io"}}"#;
        let stats = read(body, DEVICE).unwrap();
        assert_eq!((stats.abnormal.as_deref(), stats.inodes), (Some("io"), None));
    }

    #[test]
    fn nothing_is_guessed_at() {
        let cases: [(&[u8], &str); 11] = [
            (b"Usage: [VolumeUsage { total: 1 }] Volume Condition: None", "not JSON"),
            (b"", "not JSON"),
            (b"[]", "no size"),
            (b"{}", "no size"),
            (b"{\"usage\":[{\"total\":1,\"unit\":2}]}", "no size"),
            (b"{\"usage\":[{\"unit\":1}]}", "no size"),
            (b"{\"usage\":[{\"total\":1,\"unit\":1},{\"total\":1,\"unit\":1}]}", "twice"),
            (b"{\"usage\":[{\"total\":1}]}", "unit 0"),
            (b"{\"usage\":[{\"total\":-1,\"unit\":1}]}", "-1"),
            (b"{\"usage\":[{\"total\":1,\"used\":2,\"unit\":1}]}", "2 used"),
            (b"{\"usage\":[{\"total\":1073741825,\"unit\":1}]}", "not this volume"),
        ];
        for (body, expected) in cases {
            let text = read(body, DEVICE).unwrap_err().to_string();
            assert!(text.contains(expected), "{expected:?} is not in {text:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_from_a_shim_do_no_harm(body: Vec<u8>) {
            let _ = read(&body, DEVICE);
        }

        #[test]
        fn what_is_taken_is_what_was_said(total in 1..=DEVICE, part in 0.0..=1.0f64) {
            let used = (total as f64 * part) as u64;
            let available = total - used;
            let row = serde_json::json!(
                { "total": total, "used": used, "available": available, "unit": 1 }
            );
            let body = serde_json::json!({ "usage": [row] }).to_string();
            let stats = read(body.as_bytes(), DEVICE).unwrap();
            prop_assert_eq!(stats.bytes, Usage { total, used, available });
        }
    }
}
