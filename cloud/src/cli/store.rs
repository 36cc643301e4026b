//! `csi-cloud store`: prints what a check found, exports to stdout, imports from a file or stdin.

use std::io;
use std::io::Write;

use anyhow::bail;
use proto::admin::output::Output;
use proto::host::plain;

use crate::config::arguments::StoreCommand;
use crate::state::check::Wrong;
use crate::state::store::examine::{Examined, examine};
use crate::state::store::transfer;
use crate::state::store::transfer::ExportedSecrets;
use crate::state::store::url::StoreAt;

/// The widest column of a table, in characters.
const WIDEST: usize = 60;

/// Runs a command of the store.
///
/// # Errors
/// The configuration of the store cannot be used. Otherwise as for [`check`], [`transfer::export`]
/// and [`transfer::import`].
pub(super) fn run(command: StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Check { place, output } => {
            check(&place.at()?, output, &mut io::stdout().lock())
        }
        StoreCommand::Export { place, with_secrets } => {
            let secrets = match with_secrets {
                true => ExportedSecrets::Included,
                false => ExportedSecrets::LeftOut,
            };
            transfer::export(&place.at()?, secrets, &mut io::stdout().lock())
        }
        StoreCommand::Import { place, file } => transfer::import(&place.at()?, &file),
    }
}

/// Checks the store, and prints what is wrong.
///
/// # Errors
/// Something is wrong; or the store cannot be read, is in use, or the output fails.
pub(crate) fn check(at: &StoreAt, output: Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let Examined { wrong, records, format } = examine(at)?;
    match output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &wrong)?;
            writeln!(out)?;
        }
        Output::Table if wrong.is_empty() => {
            writeln!(out, "{records} records in format {format}, and nothing is wrong")?;
        }
        Output::Table => table(&wrong, out)?,
    }
    match wrong.len() {
        0 => Ok(()),
        1 => bail!("one thing is wrong in the store {at}"),
        several => bail!("{several} things are wrong in the store {at}"),
    }
}

fn table(wrong: &[Wrong], out: &mut dyn Write) -> io::Result<()> {
    const DRIVER: &str = "DRIVER";
    const RECORD: &str = "RECORD";
    let driver_width = width(DRIVER, wrong.iter().map(|wrong| wrong.driver.as_str()));
    let record_width = width(RECORD, wrong.iter().map(|wrong| wrong.what.as_str()));
    writeln!(out, "{DRIVER:driver_width$}  {RECORD:record_width$}  PROBLEM")?;
    for Wrong { driver, what, why } in wrong {
        // Nodes gave the ids.
        let [driver, what, why] = [driver, what, why].map(|cell| plain(cell));
        writeln!(out, "{driver:driver_width$}  {what:record_width$}  {why}")?;
    }
    Ok(())
}

fn width<'a>(header: &str, cells: impl Iterator<Item = &'a str>) -> usize {
    let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
    widest.clamp(header.len(), WIDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_nodes_are_escaped() {
        let [driver, what, why] = ["d", "volume a\n\u{1b}[2J", "b\u{202e}"].map(str::to_owned);
        let mut out = Vec::new();
        table(&[Wrong { driver, what, why }], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.ends_with("volume a\\n\\u{1b}[2J  b\\u{202e}\n"), "{text:?}");
    }
}
