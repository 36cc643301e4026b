//! The last calls that ended, in a file of this csi-cloud: a ring of slots, by redb.
//!
//! It is beside a store that is a file, or where the configuration says. Several csi-clouds with
//! one store have a file each. It is a file of its own because a failed commit closes a store. When
//! it cannot be had or written, the history is lost and nothing else. No change of the store waits
//! for it.

use std::ffi::OsString;
use std::fs;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prost::Message;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tonic::Code;
use tracing::{info, warn};

use crate::telemetry::calls::{Calls, UNKNOWN};
use crate::telemetry::ended::EndedCall;

/// The slots: so many calls are kept over a restart.
const SLOTS: u64 = 4_096;
/// The interval at which ended calls are written.
const EVERY: Duration = Duration::from_secs(10);
/// The size of redb's cache in bytes. All of it is in memory anyway.
const CACHE: usize = 1 << 20;
/// Calls by slot.
const CALLS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("calls");

/// A call that ended, in its slot. Fields may be added; a number is never used again.
#[derive(Clone, PartialEq, Message)]
struct EndedValue {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(uint64, tag = "2")]
    at: u64,
    #[prost(bytes = "vec", tag = "3")]
    id: Vec<u8>,
    #[prost(string, tag = "4")]
    rpc: String,
    #[prost(string, tag = "5")]
    driver: String,
    #[prost(string, optional, tag = "6")]
    node: Option<String>,
    #[prost(string, tag = "7")]
    subject: String,
    #[prost(int32, tag = "8")]
    code: i32,
    #[prost(string, tag = "9")]
    message: String,
    #[prost(uint64, tag = "10")]
    micros: u64,
    #[prost(uint32, tag = "11")]
    attempts: u32,
    #[prost(string, optional, tag = "12")]
    claim: Option<String>,
}

/// The file of the calls that ended.
pub struct Ring {
    path: PathBuf,
    /// None while the file cannot be used.
    database: Option<Database>,
}

impl Ring {
    /// The path of the file beside a store.
    pub fn beside(store: &Path) -> PathBuf {
        named(store, ".calls")
    }

    /// Opens the file, or makes it, and reads its calls. A file that cannot be used is put aside.
    pub fn open(path: PathBuf) -> (Self, Vec<EndedCall>) {
        let opened = open(&path).or_else(|error| {
            let file = path.display();
            if is_in_use(&error) {
                return Err(error);
            }
            let why = format!("{error:#}");
            warn!(%file, error = why, "a history of calls that cannot be used is put aside");
            fs::rename(&path, named(&path, ".damaged"))?;
            open(&path)
        });
        match opened {
            Ok((database, calls)) => (Self { path, database: Some(database) }, calls),
            Err(error) => {
                not_kept(&path, &error);
                (Self { path, database: None }, Vec::new())
            }
        }
    }

    /// Writes calls into their slots. It tries to open the file again if that failed before.
    fn write(&mut self, calls: &[Arc<EndedCall>]) {
        let was_open = self.database.is_some();
        let written = match self.database.take() {
            Some(database) => write(database, calls),
            None => open(&self.path).and_then(|(database, _)| write(database, calls)),
        };
        match written {
            Ok(database) => {
                self.database = Some(database);
                if !was_open {
                    info!(file = %self.path.display(), "the history of calls is kept again");
                }
            }
            Err(error) if was_open => not_kept(&self.path, &error),
            // It was said before.
            Err(_) => {}
        }
    }
}

/// Writes the calls that have ended, every 10 s and at the stop.
pub async fn keep(calls: Arc<Calls>, mut ring: Ring, tasks: Tasks) {
    loop {
        let is_last = tokio::select! {
            biased;
            () = tasks.stopped() => true,
            () = tokio::time::sleep(EVERY) => false,
        };
        let unwritten = calls.ended.unwritten();
        if !unwritten.is_empty() {
            let writing = tokio::task::spawn_blocking(move || {
                ring.write(&unwritten);
                ring
            });
            let Ok(written) = writing.await else { return };
            ring = written;
        }
        if is_last {
            return;
        }
    }
}

fn not_kept(path: &Path, error: &anyhow::Error) {
    let file = path.display();
    let error = format!("{error:#}");
    warn!(%file, error, "calls that end are not kept over a restart; nothing else is lost");
}

fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(redb::DatabaseError::DatabaseAlreadyOpen))
}

/// A path with more at its end.
fn named(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

fn open(path: &Path) -> anyhow::Result<(Database, Vec<EndedCall>)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).context("it cannot be opened")?;
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    let database = builder.create_with_backend(FileBackend::new(file)?)?;
    let calls = read(&database)?;
    Ok((database, calls))
}

/// The calls in the slots. One of a driver or node that this csi-cloud cannot name is left out.
fn read(database: &Database) -> anyhow::Result<Vec<EndedCall>> {
    let reading = database.begin_read()?;
    let slots = match reading.open_table(CALLS) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        slots => slots?,
    };
    let mut calls = Vec::new();
    for slot in slots.iter()? {
        let (_, value) = slot?;
        calls.extend(decode(value.value()));
    }
    Ok(calls)
}

fn write(database: Database, calls: &[Arc<EndedCall>]) -> anyhow::Result<Database> {
    let writing = database.begin_write()?;
    {
        let mut slots = writing.open_table(CALLS)?;
        for call in calls {
            slots.insert(call.number % SLOTS, encode(call).as_slice())?;
        }
    }
    writing.commit()?;
    Ok(database)
}

fn encode(call: &EndedCall) -> Vec<u8> {
    let value = EndedValue {
        number: call.number,
        at: call.at,
        id: u128::from(call.id).to_be_bytes().into(),
        rpc: call.rpc.into(),
        driver: call.driver.to_string(),
        node: call.node.as_ref().map(ToString::to_string),
        subject: call.subject.to_string(),
        code: call.code.into(),
        message: call.message.to_string(),
        micros: u64::try_from(call.duration.as_micros()).unwrap_or(u64::MAX),
        attempts: call.attempts,
        claim: call.claim.as_deref().map(Into::into),
    };
    value.encode_to_vec()
}

fn decode(value: &[u8]) -> Option<EndedCall> {
    let value = EndedValue::decode(value).ok()?;
    let id: [u8; 16] = value.id.try_into().ok()?;
    Some(EndedCall {
        number: value.number,
        at: value.at,
        id: u128::from_be_bytes(id).into(),
        rpc: Method::of_name(&value.rpc).map_or(UNKNOWN, Method::name),
        driver: value.driver.parse().ok()?,
        node: value.node.map(|node| node.parse()).transpose().ok()?,
        subject: value.subject.into(),
        claim: value.claim.map(Into::into),
        code: Code::from_i32(value.code),
        message: value.message.into(),
        duration: Duration::from_micros(value.micros),
        attempts: value.attempts,
        news: false,
    })
}

#[cfg(test)]
mod tests;
