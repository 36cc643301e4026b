//! The store in a file, by redb: a tree of pages with checksums, and a commit that replaces the
//! root.
//!
//! redb verifies the checksums only on request, and trusts the file otherwise. So every open
//! verifies the whole file. A file that anybody else changed is refused, and nothing is guessed.

use std::fs;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::host::files::{above, sync_above};
use proto::host::publish::Existing;
use redb::backends::FileBackend;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use tracing::warn;
use uuid::Uuid;

use crate::state::record::Change;
use crate::state::store::backend::{Backend, StoreError};
use crate::state::store::codec;
use crate::state::store::codec::Decoder;
use crate::state::store::failed_commit;
use crate::state::store::format;
use crate::state::store::format::{NEWEST, Needs, Newer, OLDEST};
use crate::state::store::table::Table;
use crate::state::trust::TrustChange;

/// The size of redb's cache in bytes. All records are in memory anyway.
const CACHE: usize = 8 << 20;
/// Metadata of the store.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
/// The first bytes of a redb file.
const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";

/// A store in a file, opened by this process alone.
pub struct File {
    database: Database,
    path: PathBuf,
    /// The format that the file states.
    format: u64,
    needs: Needs,
}

/// The reason why a file is no store.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error(
        "another process has it open; a store in a file is for one csi-cloud, stop the other first"
    )]
    InUse,
    #[error(
        "it was made by a newer csi-cloud, in format {0}; this one knows up to {NEWEST}, \
         start the newer one, or first do what its release notes say of going back"
    )]
    Newer(u64),
    #[error("it is no store of csi-cloud; is the path right?")]
    Unknown,
    #[error(
        "it is empty, and a store never is, so it was cut off; \
         restore it from a copy or an export, \
         or remove it to begin anew and learn of the volumes from the nodes"
    )]
    Empty,
    #[error(
        "it is damaged, so nothing in it is believed; \
         restore it from a copy or an export, \
         or move it away to begin anew and learn of the volumes from the nodes"
    )]
    Damaged(#[source] redb::Error),
    #[error("it cannot be read or written; who may do so, and is its disk there?")]
    Io(#[from] io::Error),
    #[error("it cannot be used")]
    Other(#[source] redb::Error),
}

impl From<redb::Error> for FileError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            redb::Error::Io(error) => Self::Io(error),
            error @ (redb::Error::Corrupted(_) | redb::Error::TableDoesNotExist(_)) => {
                Self::Damaged(error)
            }
            error => Self::Other(error),
        }
    }
}

impl File {
    /// Opens the store in this file; creates it if there is none.
    ///
    /// # Errors
    /// Another process has it open; it is damaged, newer, or no store; or the file system refuses.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::at(path, open)
    }

    /// Opens the store in this file, which must exist.
    ///
    /// # Errors
    /// There is none, or as for [`File::open`].
    pub(super) fn existing(path: &Path) -> Result<Self, StoreError> {
        Self::at(path, existing)
    }

    /// Creates the store in this file, completely or not at all. An existing store must be empty.
    ///
    /// # Errors
    /// There are records already, `fill` fails, or as for [`File::open`].
    pub(super) fn import(
        path: &Path,
        fill: impl FnOnce(&mut dyn Backend) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // Held until it is replaced, so that no csi-cloud starts to use it.
        let mut empty = if path.try_exists()? { Some(Self::existing(path)?) } else { None };
        let mut count = 0_u64;
        if let Some(empty) = &mut empty {
            // The secret keys are those of a csi-cloud that was started and then learned nothing.
            empty.load(&mut |change| {
                count += u64::from(!matches!(change, Change::Trust(TrustChange::Secrets(_))))
            })?;
        }
        if count > 0 {
            anyhow::bail!(
                "the store {} holds {count} records, and an import goes into an empty one only; \
                 move it away first, or import into another file",
                path.display()
            );
        }
        let how = if empty.is_some() { Existing::Replace } else { Existing::Keep };
        make(path, how, |database| {
            let path = path.into();
            fill(&mut Self { database, path, format: OLDEST, needs: Needs::of_empty() })
        })
    }

    fn at(path: &Path, open: fn(&Path) -> Result<Opened, FileError>) -> Result<Self, StoreError> {
        match open(path) {
            Ok((database, format)) => {
                Ok(Self { database, path: path.into(), format, needs: Needs::unknown() })
            }
            Err(why) => Err(failed(path, why)),
        }
    }

    /// The format that the file states: the oldest in which nothing of it is misread.
    pub(super) fn format(&self) -> u64 {
        self.format
    }

    fn read(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), Unread> {
        let mut newer = Newer::new();
        let reading = self.database.begin_read()?;
        let mut decoder = Decoder::default();
        for table in Table::ALL {
            let rows = match reading.open_table(rows(table)) {
                Err(TableError::TableDoesNotExist(_)) if table.may_be_missing() => continue,
                rows => rows?,
            };
            for row in rows.iter()? {
                let (key, value) = row?;
                let change = decoder.decode(table, key.value(), value.value());
                let change = change.map_err(Unread::Record)?;
                let needed = format::needed(&change);
                if needed > OLDEST {
                    newer.insert((table, key.value().to_vec()), needed);
                }
                each(change);
            }
        }
        self.needs.learn(newer);
        Ok(())
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), redb::Error> {
        let mut writing = self.database.begin_write()?;
        writing.set_durability(Durability::Immediate)?;
        for table in Table::ALL {
            let mut changes = changes.iter().filter(|change| Table::of(change) == table).peekable();
            if changes.peek().is_none() {
                continue;
            }
            let mut rows = writing.open_table(rows(table))?;
            for change in changes {
                let row = codec::encode(change);
                self.needs.note(change, &row);
                match row.value {
                    Some(value) => rows.insert(&*row.key, &*value)?,
                    None => rows.remove(&*row.key)?,
                };
            }
        }
        let format = self.needs.format(self.format);
        if format != self.format {
            writing.open_table(META)?.insert(META_FORMAT, format)?;
        }
        writing.commit()?;
        self.format = format;
        Ok(())
    }
}

impl Backend for File {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        self.read(each).map_err(|unread| match unread {
            Unread::Record(error) => error,
            Unread::File(error) => failed(&self.path, error.into()),
        })
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.write(changes).map_err(|error| StoreError::Commit(Arc::new(error)))
    }

    fn try_again(&mut self) -> Option<io::Result<()>> {
        Some(failed_commit::try_disk(&self.path))
    }
}

/// The URL of the store in this file.
pub(super) fn url(path: &Path) -> String {
    format!("file:{}", path.display())
}

fn failed(path: &Path, why: FileError) -> StoreError {
    StoreError::Open { store: url(path), why: Arc::new(why) }
}

enum Unread {
    Record(StoreError),
    File(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Unread {
    fn from(error: E) -> Self {
        Self::File(error.into())
    }
}

fn rows(table: Table) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(table.name())
}

/// A database, and the format that it states.
type Opened = (Database, u64);

fn open(path: &Path) -> Result<Opened, FileError> {
    if !path.try_exists()? {
        match make(path, Existing::Keep, |_| Ok(())) {
            // Another csi-cloud was faster.
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    let opened = existing(path)?;
    if failed_commit::mark(path).try_exists()? { rewritten(path, opened) } else { Ok(opened) }
}

/// Copies a store of which a commit failed into a new file, which takes its place. What the disk
/// has of the old one is not known.
fn rewritten(path: &Path, (old, format): Opened) -> Result<Opened, FileError> {
    warn!(store = %path.display(), "a commit failed here; all records go into a new file");
    // The old one stays open until it has another name's place, so that nobody else opens it.
    make(path, Existing::Replace, |new| copy(&old, &new, format).map_err(FileError::from))?;
    drop(old);
    failed_commit::clear(path)?;
    existing(path)
}

fn copy(old: &Database, new: &Database, format: u64) -> Result<(), redb::Error> {
    let reading = old.begin_read()?;
    let writing = new.begin_write()?;
    writing.open_table(META)?.insert(META_FORMAT, format)?;
    for table in Table::ALL {
        let from = match reading.open_table(rows(table)) {
            Err(TableError::TableDoesNotExist(_)) if table.may_be_missing() => continue,
            from => from?,
        };
        let mut to = writing.open_table(rows(table))?;
        for row in from.iter()? {
            let (key, value) = row?;
            to.insert(key.value(), value.value())?;
        }
    }
    Ok(writing.commit()?)
}

fn existing(path: &Path) -> Result<Opened, FileError> {
    let mut magic = Vec::new();
    fs::File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    if magic.is_empty() {
        return Err(FileError::Empty);
    }
    if magic != MAGIC {
        return Err(FileError::Unknown);
    }
    let database = builder().open(path).map_err(redb::Error::from)?;
    match stated(&database) {
        Ok(Some(format @ OLDEST..=NEWEST)) => Ok((database, format)),
        Ok(Some(newer)) if newer > NEWEST => Err(FileError::Newer(newer)),
        Ok(_) | Err(redb::Error::TableDoesNotExist(_)) => Err(FileError::Unknown),
        Err(error) => Err(error.into()),
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    builder
}

fn stated(database: &Database) -> Result<Option<u64>, redb::Error> {
    let format = database.begin_read()?.open_table(META)?.get(META_FORMAT)?;
    Ok(format.map(|format| format.value()))
}

/// Creates and fills a store beside the path and then renames it, so that it is complete at any
/// time.
fn make<E: From<FileError>>(
    path: &Path,
    existing: Existing,
    fill: impl FnOnce(Database) -> Result<(), E>,
) -> Result<(), E> {
    let parent = above(path);
    make_directory(parent).map_err(FileError::from)?;
    let beside = parent.join(format!(".{}.new", Uuid::new_v4()));
    let made = new(&beside).map_err(E::from).and_then(fill).and_then(|()| {
        let named = match existing {
            Existing::Replace => fs::rename(&beside, path),
            // Unlike a rename, a hard link fails if another process has created the file since.
            Existing::Keep => fs::hard_link(&beside, path),
        };
        Ok(named.map_err(FileError::from)?)
    });
    // After a rename there is nothing to remove.
    let _ = fs::remove_file(&beside);
    made?;
    Ok(sync_above(path).map_err(FileError::from)?)
}

/// Creates a private directory with all missing parents.
fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.try_exists()? {
        return Ok(());
    }
    make_directory(above(directory))?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_above(directory),
    }
}

fn new(path: &Path) -> Result<Database, FileError> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let backend = FileBackend::new(file).map_err(redb::Error::from)?;
    let database = builder().create_with_backend(backend).map_err(redb::Error::from)?;
    begin(&database)?;
    Ok(database)
}

fn begin(database: &Database) -> Result<(), redb::Error> {
    let writing = database.begin_write()?;
    writing.open_table(META)?.insert(META_FORMAT, OLDEST)?;
    for table in Table::ALL {
        writing.open_table(rows(table))?;
    }
    Ok(writing.commit()?)
}
