//! The objects of one kind on disk, each a directory with its data and `record.json`.
//!
//! An object is made under a hidden name, its record last, and then renamed. After a SIGKILL it is
//! whole, or it is removed at the next start. A changed record replaces the old one in one step.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use parking_lot::{Mutex, MutexGuard};
use proto::host::publish::{Existing, publish};
use tonic::Status;

use super::fail::Doing as _;
use super::record::Record;

const RECORD: &str = "record.json";

/// All objects of one kind.
pub(super) struct Shelf<R> {
    dir: PathBuf,
    /// In the names of what is half-made, if others use the directory too.
    owner: String,
    records: Mutex<BTreeMap<String, R>>,
}

/// The directory of an object that is being made; removed on drop.
pub(super) struct Draft {
    pub(super) dir: PathBuf,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone if it was renamed; else the next start removes what stays here.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl<R: Record> Shelf<R> {
    /// Reads all records below `state` and removes what is half-made or half-deleted. With an
    /// `owner` others use the directory too, and only what is the owner's is removed.
    pub(super) fn open(state: &Path, owner: Option<&str>) -> anyhow::Result<Self> {
        let dir = state.join(R::KIND);
        // Only this process may read it, because volumes have the data of their users.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.with_context(|| format!("cannot make {}", dir.display()))?;
        let owner = owner.map(|owner| format!("{owner}-")).unwrap_or_default();
        let shelf = Self { dir, owner, records: Mutex::default() };
        for path in shelf.reload_all()? {
            if shelf.is_ours(&path) {
                discard(&path)
                    .with_context(|| format!("cannot remove the half-made {}", path.display()))?;
            }
        }
        Ok(shelf)
    }

    /// Reads all records again.
    pub(super) fn reload(&self) -> anyhow::Result<()> {
        self.reload_all().map(drop)
    }

    /// The same, and the paths of what has no record.
    fn reload_all(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut records = BTreeMap::new();
        let mut others = Vec::new();
        let entries = fs::read_dir(&self.dir);
        for entry in entries.with_context(|| format!("cannot list {}", self.dir.display()))? {
            let path = entry?.path();
            match load::<R>(&path)? {
                Some(record) => drop(records.insert(record.id().to_owned(), record)),
                None => others.push(path),
            }
        }
        *self.records() = records;
        Ok(others)
    }

    fn is_ours(&self, half_made: &Path) -> bool {
        let name = half_made.file_name().unwrap_or_default().to_string_lossy();
        self.owner.is_empty()
            || [".new-", ".old-"].iter().any(|kind| {
                name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(&self.owner))
            })
    }

    /// The hidden name of an object that is half-made or half-deleted.
    fn hidden(&self, kind: &str, id: &str) -> PathBuf {
        self.dir.join(format!(".{kind}-{}{id}", self.owner))
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<String, R>> {
        self.records.lock()
    }

    /// The object's directory.
    pub(super) fn dir(&self, id: &str) -> PathBuf {
        self.dir.join(id)
    }

    /// The object of that id.
    pub(super) fn get(&self, id: &str) -> Option<R> {
        self.records().get(id).cloned()
    }

    /// The object of that name.
    pub(super) fn by_name(&self, name: &str) -> Option<R> {
        self.records().values().find(|record| !name.is_empty() && record.name() == name).cloned()
    }

    /// All objects, oldest first.
    pub(super) fn all(&self) -> Vec<R> {
        let mut all: Vec<R> = self.records().values().cloned().collect();
        all.sort_by(|a, b| (a.created(), a.id()).cmp(&(b.created(), b.id())));
        all
    }

    /// Begins an object: a hidden directory for its data.
    pub(super) fn draft(&self, id: &str) -> Result<Draft, Status> {
        let dir = self.hidden("new", id);
        fs::create_dir(&dir).doing(|| format!("make {}", dir.display()))?;
        Ok(Draft { dir })
    }

    /// Adds a drafted object to the shelf.
    pub(super) fn admit(&self, draft: Draft, record: R) -> Result<(), Status> {
        write(&draft.dir, &record)?;
        let dir = self.dir(record.id());
        fs::rename(&draft.dir, &dir)
            .and_then(|()| File::open(&self.dir)?.sync_all())
            .doing(|| format!("put {} in place", dir.display()))?;
        self.records().insert(record.id().to_owned(), record);
        Ok(())
    }

    /// Replaces a record.
    pub(super) fn update(&self, record: R) -> Result<(), Status> {
        write(&self.dir(record.id()), &record)?;
        self.records().insert(record.id().to_owned(), record);
        Ok(())
    }

    /// Deletes an object. It is hidden first, so that a half-deleted one does not appear again.
    pub(super) fn remove(&self, id: &str) -> Result<(), Status> {
        let dir = self.dir(id);
        let hidden = self.hidden("old", id);
        fs::rename(&dir, &hidden)
            .and_then(|()| File::open(&self.dir)?.sync_all())
            .doing(|| format!("delete {}", dir.display()))?;
        self.records().remove(id);
        fs::remove_dir_all(&hidden).doing(|| format!("remove {}", hidden.display()))
    }
}

/// Removes a directory into which the `cp` of a killed driver may still write; it ends as its
/// directories go.
fn discard(dir: &Path) -> io::Result<()> {
    let tries = 5;
    for _ in 1..tries {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            done => return done,
        }
    }
    fs::remove_dir_all(dir)
}

fn write<R: Record>(dir: &Path, record: &R) -> Result<(), Status> {
    let path = dir.join(RECORD);
    let text = serde_json::to_vec_pretty(record).doing(|| format!("encode {}", path.display()))?;
    publish(&path, &text, 0o600, Existing::Replace).doing(|| format!("write {}", path.display()))
}

/// The record in `dir`, if it was made whole. One that cannot be read is an error: its data is not
/// ours to delete.
fn load<R: Record>(dir: &Path) -> anyhow::Result<Option<R>> {
    if dir.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b".")) {
        return Ok(None);
    }
    let path = dir.join(RECORD);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let record: R = serde_json::from_slice(&text)
        .with_context(|| format!("cannot understand {}", path.display()))?;
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::super::record::Group;
    use super::*;

    fn group(id: &str) -> Group {
        let snapshots = vec!["s".to_owned()];
        let volumes = vec!["v".to_owned()];
        Group { id: id.to_owned(), name: format!("name of {id}"), created: 7, snapshots, volumes }
    }

    #[test]
    fn a_record_survives_and_a_half_made_object_does_not() {
        let state = tempfile::tempdir().unwrap();
        let shelf = Shelf::<Group>::open(state.path(), None).unwrap();
        shelf.admit(shelf.draft("a").unwrap(), group("a")).unwrap();
        let mut changed = group("a");
        changed.snapshots.push("t".to_owned());
        shelf.update(changed).unwrap();
        // As a SIGKILL leaves them: a draft, a deletion under way, and a directory without a
        // record.
        std::mem::forget(shelf.draft("b").unwrap());
        fs::create_dir(shelf.dir("c")).unwrap();
        fs::create_dir(state.path().join("groups/.old-d")).unwrap();

        let again = Shelf::<Group>::open(state.path(), None).unwrap();
        assert_eq!(again.get("a").unwrap().snapshots, ["s", "t"]);
        assert_eq!(again.by_name("name of a").unwrap().id, "a");
        assert_eq!(again.all().len(), 1);
        assert_eq!(fs::read_dir(state.path().join("groups")).unwrap().count(), 1);
        again.remove("a").unwrap();
        assert!(Shelf::<Group>::open(state.path(), None).unwrap().all().is_empty());
    }

    #[test]
    fn a_record_that_cannot_be_read_stops_the_start_and_keeps_its_data() {
        let state = tempfile::tempdir().unwrap();
        let shelf = Shelf::<Group>::open(state.path(), None).unwrap();
        shelf.admit(shelf.draft("a").unwrap(), group("a")).unwrap();
        publish(&shelf.dir("a").join(RECORD), b"{", 0o600, Existing::Replace).unwrap();
        let refused = Shelf::<Group>::open(state.path(), None).err().unwrap();
        assert!(format!("{refused:#}").contains("cannot understand"), "{refused:#}");
        assert!(shelf.dir("a").exists());
    }
}
