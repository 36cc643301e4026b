//! Exports and imports a store that no csi-cloud has open; one in etcd may have followers.
//!
//! An import is complete or leaves nothing. The last line of an export proves that it is complete.

use std::fs;
use std::io;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail};
use proto::admin::input;

use crate::state::leader_epoch;
use crate::state::line::{FORMAT, Line};
use crate::state::listed;
use crate::state::record::Change;
use crate::state::starts::{IMPORTED, LastCreate, StartRecord, Starts};
use crate::state::store::existing::Existing;
use crate::state::store::url::StoreAt;
use crate::state::trust::TrustChange;

/// The number of changes in one commit of an import.
const BATCH: usize = 10_000;

/// Whether an export has the secret keys of csi-cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportedSecrets {
    /// They are left out. A csi-cloud that starts with a store made from the export makes new ones.
    LeftOut,
    /// They are in it, in clear: a reader of the export can end links and forge leases.
    Included,
}

/// Writes all records as lines of JSON.
///
/// # Errors
/// The store is missing, in use, or cannot be trusted; or the output fails.
pub fn export(at: &StoreAt, secrets: ExportedSecrets, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut store = Existing::open(at)?;
    let mut out = BufWriter::new(out);
    let mut records = 0;
    let mut written = line(&mut out, &Line::Begin { format: FORMAT });
    store.load(&mut |change| {
        let is_secret =
            matches!(change, Change::Trust(TrustChange::Secrets(_)) | Change::Start(..));
        if is_secret && secrets == ExportedSecrets::LeftOut {
            return;
        }
        let Ok(record) = Line::try_from(change) else { return };
        records += 1;
        // After a failed line no other is written.
        if written.is_ok() {
            written = line(&mut out, &record);
        }
    })?;
    written
        .and_then(|()| line(&mut out, &Line::End { records }))
        .and_then(|()| out.flush())
        .context("the export cannot be written")
}

fn line(out: &mut impl Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// Creates a store from an export. Nothing is left if it fails.
///
/// `moved` is the last create of the store that was exported, which no csi-cloud uses any more.
/// Without it the export may be old: nothing is created by the new store until an operator has
/// accepted it.
///
/// # Errors
/// The store has records already; the export is incomplete, of before the last create, or from a
/// newer csi-cloud; or files cannot be read or written.
pub fn import(at: &StoreAt, file: &Path, moved: Option<LastCreate>) -> anyhow::Result<()> {
    if input::is_stdin(file) {
        return import_from(at, &mut input::stdin()?.lock(), moved);
    }
    let reading = || format!("{} cannot be read", file.display());
    let exported = fs::File::open(file).with_context(reading)?;
    let importing = || format!("{} was not imported", file.display());
    import_from(at, &mut BufReader::new(exported), moved).with_context(importing)
}

pub(super) fn import_from(
    at: &StoreAt,
    lines: &mut dyn BufRead,
    moved: Option<LastCreate>,
) -> anyhow::Result<()> {
    Existing::import(at, |store| {
        let mut lines = lines.lines().zip(1_u64..).map(|(text, number)| {
            let line = text.map_err(anyhow::Error::from);
            line.and_then(|text| Ok(serde_json::from_str(&text)?))
                .with_context(|| format!("line {number} is no line of an export"))
        });
        match lines.next().transpose()? {
            Some(Line::Begin { format: FORMAT }) => {}
            Some(Line::Begin { format }) => {
                bail!(
                    "it was exported by a newer csi-cloud, in format {format}; \
                     this one knows {FORMAT}"
                )
            }
            _ => bail!("it is no export of a store: the first line does not say so"),
        }
        let mut batch = Vec::with_capacity(BATCH);
        let mut records = 0;
        let mut starts = Starts::default();
        let end = loop {
            match lines.next().transpose()? {
                Some(Line::End { records }) => break records,
                Some(line) => {
                    let change = Change::try_from(line);
                    let change = change.map_err(|_| anyhow::anyhow!("it begins twice"))?;
                    if let Change::Start(start, record) = &change {
                        starts.apply(*start, record.clone());
                    }
                    batch.push(imported(change));
                }
                None => {
                    bail!(
                        "the export was cut off: its last line, which counts the records, \
                         is not there"
                    )
                }
            }
            records += 1;
            if batch.len() == BATCH {
                store.commit(&batch)?;
                batch.clear();
            }
        };
        if end != records || lines.next().is_some() {
            bail!(
                "the export has {records} records and should have {end}, or goes on after its end"
            );
        }
        let last = starts.last_create();
        match moved {
            None => batch.push(may_be_old()),
            Some(moved) if moved == last => {}
            Some(moved) => bail!(
                "the last create in the export is {last}, and that of the store which is moved is \
                 {moved}: the export is older, or was made without --with-secrets"
            ),
        }
        Ok(store.commit(&batch)?)
    })
}

/// Creates may be missing in the store, until an operator accepts it.
fn may_be_old() -> Change {
    Change::Start(IMPORTED, Some(StartRecord { beyond: 1, ..StartRecord::default() }))
}

/// A record as an import takes it: the export may be old. A csi-cloud that led since may still be
/// paused, so the epoch is a later one.
fn imported(change: Change) -> Change {
    match change {
        Change::LeaderEpoch(epoch) => Change::LeaderEpoch(leader_epoch::next(Some(epoch))),
        change => listed::unmarked(change),
    }
}
