//! Tables and figures as people read them.

use std::io;
use std::io::Write;

use tokio::time::Duration;

/// Between columns.
const GAP: usize = 3;

/// A table that is written as its rows come. Its columns are as wide as what has come so far.
pub(super) struct Table {
    headers: &'static [&'static str],
    widths: Vec<usize>,
    begun: bool,
}

impl Table {
    pub(super) fn new(headers: &'static [&'static str]) -> Self {
        let widths = headers.iter().map(|header| header.len()).collect();
        Self { headers, widths, begun: false }
    }

    /// Writes rows, and the headers before the first ones.
    pub(super) fn rows(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| shown(cell)).collect()).collect();
        for (width, column) in self.widths.iter_mut().zip(0..) {
            let widest = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            *width = widest.max().unwrap_or(0).max(*width);
        }
        if !std::mem::replace(&mut self.begun, true) {
            let headers: Vec<_> = self.headers.iter().map(|header| (*header).to_owned()).collect();
            self.row(out, &headers)?;
        }
        rows.iter().try_for_each(|row| self.row(out, row))
    }

    fn row(&self, out: &mut impl Write, cells: &[String]) -> io::Result<()> {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&self.widths) {
            line += cell;
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count()) + GAP));
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// A cell without what would move the terminal's cursor: ids come from drivers.
fn shown(cell: &str) -> String {
    if cell.is_empty() {
        return "-".into();
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    cell.chars().map(escaped).collect()
}

/// A time as kubectl shows ages.
pub(super) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |whole: u64, unit: &str, rest: u64, part: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{part}"),
    };
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

/// A size with a binary unit, in tenths where it is not whole.
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
    use proptest::prelude::*;

    #[test]
    fn columns_are_aligned_and_empty_cells_are_seen() {
        let mut table = Table::new(&["NAME", "STATE", "AGE"]);
        let mut out = Vec::new();
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        table.rows(&mut out, &[row(["a-long-name", "", "3m"]), row(["b", "ok", "1h"])]).unwrap();
        table.rows(&mut out, &[row(["c", "absent", "1h"])]).unwrap();
        let text = "\
NAME          STATE   AGE
a-long-name   -       3m
b             ok      1h
c             absent   1h
";
        assert_eq!(String::from_utf8(out).unwrap(), text);
    }

    #[test]
    fn a_table_without_rows_has_its_headers() {
        let mut out = Vec::new();
        Table::new(&["A", "B"]).rows(&mut out, &[]).unwrap();
        assert_eq!(out, b"A   B\n");
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

    proptest! {
        #[test]
        fn a_row_is_one_line_whatever_is_in_it(cell in "\\PC*|.*") {
            let mut out = Vec::new();
            Table::new(&["A"]).rows(&mut out, &[vec![cell]]).unwrap();
            let text = String::from_utf8(out).unwrap();
            prop_assert_eq!(text.lines().count(), 2);
            let escapes = text.contains('\x1b');
            prop_assert!(!escapes, "it moves the cursor");
        }
    }
}
