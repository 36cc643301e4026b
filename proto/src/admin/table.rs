//! Tables as people read them.

use std::io;
use std::io::Write;
use std::iter::repeat_n;

use crate::host::plain;

/// The spaces between columns.
const GAP: usize = 3;

/// A table that is written as its rows come. Columns are as wide as the widest cell so far.
pub struct Table {
    headers: &'static [&'static str],
    widths: Vec<usize>,
    begun: bool,
}

impl Table {
    /// A table with these headers.
    pub fn new(headers: &'static [&'static str]) -> Self {
        let widths = headers.iter().map(|header| header.len()).collect();
        Self { headers, widths, begun: false }
    }

    /// Writes rows, and the headers before the first ones.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn rows(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
        for (width, column) in self.widths.iter_mut().zip(0..) {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            *width = widest.max(*width);
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
            let padding = width.saturating_sub(cell.chars().count()) + GAP;
            line.extend(repeat_n(' ', padding));
        }
        writeln!(out, "{}", line.trim_end())
    }
}

/// A cell without control characters: drivers choose ids, which could move the cursor.
fn printable(cell: &str) -> String {
    if cell.is_empty() {
        return "-".into();
    }
    plain(cell)
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
