//! Asks for lists and changes, and prints the answers.

use std::io;
use std::io::Write;

use anyhow::bail;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::admin::done::Done;
use crate::admin::page::Page;
use crate::cli::client::Client;
use crate::cli::table::Table;
use crate::config::admin_arguments::{Reach, Show};
use crate::config::output::Output;

/// The parameters of a command that has none.
pub(super) fn no_parameters() -> Value {
    Value::Object(Map::new())
}

/// Prints a list in pages, each before the next one is asked for.
pub(super) async fn pages<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    query: &impl Serialize,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<()> {
    let mut client = Client::connect(&show.reach.socket()).await?;
    let mut query = serde_json::to_value(query)?;
    let mut writer = ListWriter::new(show.output, headers);
    let mut out = io::stdout().lock();
    loop {
        let page: Page<T, Value> = client.ask(path, &query).await?;
        writer.add(&mut out, &page.items, row)?;
        let Some(next) = page.next else { break };
        if let Some(query) = query.as_object_mut() {
            query.insert("after".into(), next);
        }
    }
    Ok(writer.end(&mut out)?)
}

/// Prints a list that comes in one answer, and returns its items.
pub(super) async fn whole<T: DeserializeOwned + Serialize>(
    show: &Show,
    path: &'static str,
    headers: &'static [&'static str],
    row: fn(&T) -> Vec<String>,
) -> anyhow::Result<Vec<T>> {
    let mut client = Client::connect(&show.reach.socket()).await?;
    let items: Vec<T> = client.ask(path, &no_parameters()).await?;
    let mut writer = ListWriter::new(show.output, headers);
    let mut out = io::stdout().lock();
    writer.add(&mut out, &items, row)?;
    writer.end(&mut out)?;
    Ok(items)
}

/// Asks for a change, and prints what it did. It fails if nothing was changed.
pub(super) async fn change(
    reach: &Reach,
    path: &'static str,
    request: &impl Serialize,
) -> anyhow::Result<()> {
    let mut client = Client::connect(&reach.socket()).await?;
    let Done { done, text } = client.ask(path, request).await?;
    if !done {
        bail!("nothing was changed: {text}");
    }
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Writes a list as it comes: a table, or a JSON array with one item on each line.
struct ListWriter {
    output: Output,
    table: Table,
    items: u64,
}

impl ListWriter {
    fn new(output: Output, headers: &'static [&'static str]) -> Self {
        Self { output, table: Table::new(headers), items: 0 }
    }

    fn add<T: Serialize>(
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

    fn end(mut self, out: &mut impl Write) -> io::Result<()> {
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
