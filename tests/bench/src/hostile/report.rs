//! The rows of the table.

use serde::Serialize;

use crate::report::Targets;

/// One row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// The case and its variant.
    pub(super) case: String,
    /// `wss` or `quic`.
    pub(super) transport: &'static str,
    /// The bounds.
    pub(super) asked: &'static str,
    /// What was measured.
    pub(super) measured: String,
    /// It is within the bounds.
    pub(super) ok: bool,
}

/// All rows, one a line.
pub(super) fn table(rows: &[Row]) -> String {
    let head = ["case", "transport", "asked", "measured", "ok"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let Row { case, transport, asked, measured, ok } = row;
        let ok = if *ok { "yes" } else { "NO" };
        [case.clone(), (*transport).into(), (*asked).into(), measured.clone(), ok.into()]
    });
    let lines: Vec<_> = [head].into_iter().chain(cells).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths = [0, 1, 2, 3, 4].map(|column| width(column).unwrap_or(0));
    let text = |line: &[String; 5]| {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(text).collect()
}

/// Whether all rows are within their bounds.
pub(super) fn targets(rows: &[Row]) -> Targets {
    let missed = rows.iter().filter(|row| !row.ok).count();
    let mut targets = Targets::default();
    targets.add("rows out of bounds: 0", missed, missed == 0 && !rows.is_empty());
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_out_of_bounds_misses_the_target() {
        let row = |ok| Row {
            case: "x".into(),
            transport: "wss",
            asked: "< 2 s",
            measured: "1 s".into(),
            ok,
        };
        assert!(targets(&[row(true), row(true)]).met);
        assert!(!targets(&[row(true), row(false)]).met);
        assert!(!targets(&[]).met, "nothing was measured");
        let table = table(&[row(true), row(false)]);
        assert!(table.lines().nth(2).is_some_and(|line| line.ends_with("NO")), "{table}");
    }
}
