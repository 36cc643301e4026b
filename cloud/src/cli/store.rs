//! `csi-cloud store`: prints what a check found, exports to stdout, imports from a file or stdin.

use std::io;
use std::io::Write;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use proto::admin::command_line::Local;
use proto::admin::output::Output;
use proto::config::{Problems, Reader};
use proto::host::plain;

use crate::etcd::settings::EtcdSettings;
use crate::state::check::Wrong;
use crate::state::starts::LastCreate;
use crate::state::store::examine::{Examined, examine};
use crate::state::store::transfer;
use crate::state::store::transfer::ExportedSecrets;
use crate::state::store::url::StoreAt;

/// The widest column of a table, in characters.
const WIDEST: usize = 60;

/// The store that a command is about.
#[derive(Debug, Args)]
struct StorePlace {
    /// Where it is: file:PATH, or etcd://HOST:PORT,HOST:PORT/PREFIX
    #[arg(long, value_name = "URL")]
    store: StoreAt,
    /// The configuration of csi-cloud, whose section `etcd` says how etcd is reached
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StorePlace {
    /// The store, and how it is reached. Other keys of the configuration do not matter here.
    ///
    /// # Errors
    /// The section contradicts itself.
    fn at(self) -> Result<StoreAt, Problems> {
        let mut file = Reader::open(self.config.as_deref());
        let etcd = file.section("etcd", EtcdSettings::read).unwrap_or_default();
        file.finish_part()?;
        Ok(self.store.with_etcd(etcd))
    }
}

/// Check that the store is whole and its records agree; exit code 1 if not.
#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    place: StorePlace,
    /// How to say what is wrong
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Local for Check {
    const NAME: &'static str = "store check";

    fn run(self) -> anyhow::Result<()> {
        check(&self.place.at()?, self.output, &mut io::stdout().lock())
    }
}

/// Write all records to stdout, one line of JSON each.
#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    place: StorePlace,
    /// The secret keys of csi-cloud as well, in clear. Without them csi-cloud makes new keys
    /// after an import: links are dialed anew, and leases are confirmed anew
    #[arg(long)]
    with_secrets: bool,
}

impl Local for Export {
    const NAME: &'static str = "store export";

    fn run(self) -> anyhow::Result<()> {
        let secrets = match self.with_secrets {
            true => ExportedSecrets::Included,
            false => ExportedSecrets::LeftOut,
        };
        transfer::export(&self.place.at()?, secrets, &mut io::stdout().lock())
    }
}

/// Make a store of an export. It must not be there yet, or be empty.
///
/// An export may be older than what nodes made since. So csi-cloud creates nothing with the new
/// store until `csi-cloud store accept`, unless the store was moved (`--move`).
#[derive(Debug, Args)]
pub(super) struct Import {
    #[command(flatten)]
    place: StorePlace,
    /// The last create of the store that was exported and is not used any more, as `csi-cloud store
    /// check` shows it; or none. The export must end with it
    #[arg(long = "move", value_name = "START.NUMBER")]
    moved: Option<LastCreate>,
    /// The exported file; - is stdin
    #[arg(default_value = "-")]
    file: PathBuf,
}

impl Local for Import {
    const NAME: &'static str = "store import";

    fn run(self) -> anyhow::Result<()> {
        transfer::import(&self.place.at()?, &self.file, self.moved)
    }
}

/// Checks the store, and prints what is wrong.
///
/// # Errors
/// Something is wrong; or the store cannot be read, is in use, or the output fails.
pub(crate) fn check(at: &StoreAt, output: Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let Examined { wrong, records, format, last } = examine(at)?;
    match output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &wrong)?;
            writeln!(out)?;
        }
        Output::Table if wrong.is_empty() => {
            writeln!(
                out,
                "{records} records in format {format}, and nothing is wrong; to move the store: \
                 csi-cloud store import --move {last}"
            )?;
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
