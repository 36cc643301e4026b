//! Cells of tables: ids and ages as people read them.

use tokio::time::Duration;

/// The longest id in a table, in characters.
const LONGEST: usize = 64;

/// A value, or an empty cell.
pub fn optional(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// An id, cut if it is long.
pub fn short(id: &str) -> String {
    match id.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", id.get(..end).unwrap_or_default()),
        None => id.to_owned(),
    }
}

/// A duration, as kubectl prints ages.
pub fn age(time: Duration) -> String {
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

/// A duration in ms, as short as it is exact enough.
pub fn took(millis: u64) -> String {
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..100_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        _ => age(Duration::from_millis(millis)),
    }
}

/// The end of a certificate, before or after now; both in ms since 1970.
pub fn ending(end: u64, now: u64) -> String {
    let time = age(Duration::from_millis(end.abs_diff(now)));
    if end > now { format!("ends in {time}") } else { format!("ended {time} ago") }
}

fn two(whole: u64, unit: &str, rest: u64, part: &str) -> String {
    match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_and_an_end_are_short() {
        assert_eq!([7, 1_250, 99_999, 180_000].map(took), ["7 ms", "1.2 s", "99.9 s", "3m"]);
        assert_eq!(ending(100_000, 40_000), "ends in 60s");
        assert_eq!(ending(40_000, 100_000), "ended 60s ago");
    }

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
}
