//! Cells of tables: ids, ages and sizes as people read them.

pub(super) use proto::admin::cells::{age, optional, short};
use tokio::time::Duration;

use crate::state::clock::now;

/// Names with commas between them.
pub(super) fn joined(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A claim's namespace and name.
pub(super) fn claim(namespace: Option<&str>, name: Option<&str>) -> String {
    let namespace = namespace.unwrap_or_default();
    name.map(|name| format!("{namespace}/{name}")).unwrap_or_default()
}

/// The age of a moment, given in ms since 1970.
pub(super) fn since(ms: u64) -> String {
    age(Duration::from_millis(now().saturating_sub(ms)))
}

/// The time until a moment, given in ms since 1970.
pub(super) fn until(ms: u64) -> String {
    match ms.checked_sub(now()) {
        Some(left) => age(Duration::from_millis(left)),
        None => "ended".into(),
    }
}

/// A size with a binary unit, in tenths if it is not whole.
pub(super) fn size(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let bytes = u64::try_from(bytes).unwrap_or(0);
    let Some(at) = (0..UNITS.len()).rev().find(|at| bytes >> (10 * (at + 1)) > 0) else {
        return format!("{bytes}B");
    };
    let unit = UNITS.get(at).copied().unwrap_or_default();
    let tenths = (u128::from(bytes) * 10) >> (10 * (at + 1));
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        tenth => format!("{}.{tenth}{unit}", tenths / 10),
    }
}

/// A duration, which may be short.
pub(super) fn lasted(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        _ => age(Duration::from_millis(ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, text) in [
            (0, "0B"),
            (-1, "0B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536 << 20, "1.5GiB"),
            (10 << 30, "10GiB"),
            (i64::MAX, "7.9EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
