//! The forms of a command's output, and lists in them.

use std::io;
use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::table::Table;

/// The form of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Table,
    /// For scripts
    Json,
}

/// Writes a list as it comes: a table, or a JSON array with one item on each line.
pub struct ListWriter {
    output: Output,
    table: Table,
    items: u64,
}

impl ListWriter {
    /// A list with these headers, if it is a table.
    pub fn new(output: Output, headers: &'static [&'static str]) -> Self {
        Self { output, table: Table::new(headers), items: 0 }
    }

    /// Writes some of its items.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn add<T: Serialize>(
        &mut self,
        out: &mut impl Write,
        items: &[T],
        row: fn(&T) -> Vec<String>,
    ) -> anyhow::Result<()> {
        match self.output {
            // A page may be empty though more comes, and the headers are as wide as the first rows.
            Output::Table if items.is_empty() => {}
            Output::Table => {
                self.table.rows(out, &items.iter().map(row).collect::<Vec<_>>())?;
                self.items += items.len() as u64;
            }
            Output::Json => {
                for item in items {
                    let before = if self.items == 0 { "[\n" } else { ",\n" };
                    write!(out, "{before}{}", serde_json::to_string(item)?)?;
                    self.items += 1;
                }
            }
        }
        Ok(())
    }

    /// Ends the list.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(mut self, out: &mut impl Write) -> io::Result<()> {
        match (self.output, self.items) {
            (Output::Table, 0) => self.table.rows(out, &[]),
            (Output::Table, _) => Ok(()),
            (Output::Json, 0) => writeln!(out, "[]"),
            (Output::Json, _) => writeln!(out, "\n]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_one_json_array_however_it_comes() {
        let mut out = Vec::new();
        let mut writer = ListWriter::new(Output::Json, &["A"]);
        for page in [vec![], vec![1, 2], vec![], vec![3]] {
            writer.add(&mut out, &page, |_| Vec::new()).unwrap();
        }
        writer.end(&mut out).unwrap();
        assert_eq!(serde_json::from_slice::<Vec<u8>>(&out).unwrap(), [1, 2, 3]);
        let mut out = Vec::new();
        ListWriter::new(Output::Json, &["A"]).end(&mut out).unwrap();
        assert_eq!(out, b"[]\n");
    }
}
