//! Cells of tables: ids, ages and sizes as people read them.

use tokio::time::Duration;

use crate::admin::driver_health::HealthView;
use crate::state::clock::now;

/// The longest id in a table, in characters.
const LONGEST: usize = 64;

/// A value, or an empty cell.
pub(super) fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Names with commas between them.
pub(super) fn joined(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A claim's namespace and name.
pub(super) fn claim(namespace: Option<&str>, name: Option<&str>) -> String {
    let namespace = namespace.unwrap_or_default();
    name.map(|name| format!("{namespace}/{name}")).unwrap_or_default()
}

/// An id, cut if it is long.
pub(super) fn short(id: &str) -> String {
    match id.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", id.get(..end).unwrap_or_default()),
        None => id.to_owned(),
    }
}

/// How a driver is at a node.
pub(super) fn health(health: &HealthView) -> String {
    let HealthView { state, for_s, why } = health;
    let lasts = age(Duration::from_secs(*for_s));
    format!("{state} for {lasts}{}{why}", if why.is_empty() { "" } else { ": " })
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

/// A duration, as kubectl prints ages.
pub(super) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let minutes = seconds / 60;
    let hours = minutes / 60;
    let days = hours / 24;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        _ => two(days / 365, "y", days % 365, "d"),
    }
}

fn two(whole: u64, unit: &str, rest: u64, part: &str) -> String {
    match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{part}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_id_is_cut_between_characters() {
        assert_eq!(short("short"), "short");
        assert_eq!(short(&"é".repeat(100)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn ages_are_kubectls() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (600, "10m"),
            (7_200, "120m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (86_400, "24h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text, "{seconds}");
        }
    }

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
