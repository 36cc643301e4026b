//! The contract with Kata Containers: one directory per volume, named by its mount source, with a
//! `mountInfo.json` in it.
//!
//! Runtimes scan these directories. They take any other file for a sandbox's id, and a directory
//! without `mountInfo.json` for an error. So a directory is built beside them, and comes and goes
//! by one rename. Entries of others are never touched.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use proto::csi::direct::DeviceKind;
use proto::host::files;
use proto::host::files::Unread;
use proto::host::publish::{Existing, publish};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::device::{block, spdk, vfio};
use crate::records::published::Published;

/// The directory that runtimes scan; compiled into them.
pub const ROOT: &str = "/run/kata-containers/shared/direct-volumes";
/// The file in each directory.
pub const FILE: &str = "mountInfo.json";
/// The longest mount source, in bytes. Its name takes 4 bytes for each 3, and must fit a file name.
pub const LONGEST: usize = 189;
/// The metadata that marks an entry as ours, by its volume.
pub const VOLUME: &str = "edge-csi.io/volume-id";
/// The driver of that volume.
pub const DRIVER: &str = "edge-csi.io/driver";
/// The metadata with the reason why the volume's device is not named.
const WITHHELD: &str = "edge-csi.io/withheld";
/// The device of a volume that is withheld. It does not exist, so a runtime makes no container, and
/// says this path.
const NO_DEVICE: &str = "/run/edge-csi/withheld/csi-edge-direct-list-says-why";

/// The reason why an entry was not published or removed.
#[derive(Debug, thiserror::Error)]
pub enum MountInfoError {
    /// Its name would be too long for a file, and a runtime would share the host's directory.
    #[error(
        "its target path has {0} bytes, and a runtime finds none with more than {LONGEST}; use a \
         shorter name for the PersistentVolume"
    )]
    TooLong(usize),
    /// Somebody else has written there.
    #[error("{path} is there already, and {by}; remove it if nothing uses it")]
    Taken {
        /// The entry.
        path: String,
        /// Its owner.
        by: String,
    },
    /// The file system's.
    #[error("{doing} {path}")]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// The path.
        path: String,
        /// The file system's error.
        #[source]
        source: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountInfoError {
    let path = path.display().to_string();
    move |source| MountInfoError::Io { doing, path, source }
}

/// The content of the file, with the keys of both runtimes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MountInfo {
    /// `directvol`, `vfiovol` or `spdkvol`.
    pub volume_type: String,
    /// The device on the host.
    #[serde(default)]
    pub device: String,
    /// The file system's type.
    #[serde(default)]
    pub fstype: String,
    /// Further metadata of the volume.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// The guest's mount options.
    #[serde(default)]
    pub options: Vec<String>,
}

impl MountInfo {
    /// The entry for a published volume.
    pub fn of(record: &Published) -> Self {
        let volume_type = match record.kind {
            DeviceKind::Block => block::TYPE,
            DeviceKind::Vfio => vfio::TYPE,
            DeviceKind::Spdk => spdk::TYPE,
        };
        let mut metadata = record.metadata.clone();
        let device = match &record.custody.withheld {
            Some(why) => {
                metadata.insert(WITHHELD.to_owned(), why.clone());
                NO_DEVICE.to_owned()
            }
            None => record.device.display().to_string(),
        };
        Self {
            volume_type: volume_type.into(),
            device,
            fstype: record.fstype.clone(),
            metadata,
            options: record.options.clone(),
        }
    }

    pub(super) fn is_of(&self, driver: &str, volume: &str) -> bool {
        let has = |key, value| self.metadata.get(key).is_some_and(|there| there == value);
        has(VOLUME, volume) && has(DRIVER, driver)
    }

    pub(super) fn owner(&self) -> String {
        match (self.metadata.get(DRIVER), self.metadata.get(VOLUME)) {
            (Some(driver), Some(volume)) => format!("is for volume {volume} of driver {driver}"),
            _ => format!("was written by somebody else, for device {}", self.device),
        }
    }
}

/// The name of the entry for a mount source.
///
/// # Errors
/// [`MountInfoError::TooLong`]
pub fn entry_name(source: &Path) -> Result<String, MountInfoError> {
    let bytes = source.as_os_str().as_bytes();
    if bytes.len() > LONGEST {
        Err(MountInfoError::TooLong(bytes.len()))
    } else {
        Ok(URL_SAFE.encode(bytes))
    }
}

/// The content of an entry's place.
#[derive(Debug)]
pub(super) enum Content {
    /// Nothing.
    Nothing,
    /// A directory without the file; whether other files are in it.
    Bare(bool),
    /// The whole file.
    Whole(MountInfo),
    /// A file that no runtime can read: cut, or overwritten.
    Unreadable(String),
    /// Something that no CSI driver or runtime puts there.
    Alien(&'static str),
}

/// The directory that runtimes scan.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The directory at this path; it is created with the first entry.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The path of the entry for a mount source.
    ///
    /// # Errors
    /// [`MountInfoError::TooLong`]
    pub fn entry(&self, source: &Path) -> Result<PathBuf, MountInfoError> {
        Ok(self.0.join(entry_name(source)?))
    }

    /// Reads the entry of a mount source, or the thing in its place. It never blocks.
    ///
    /// # Errors
    /// [`MountInfoError::TooLong`], or the file system's.
    pub(super) fn content(&self, source: &Path) -> Result<Content, MountInfoError> {
        let path = self.entry(source)?;
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Nothing),
            meta => {
                if !meta.map_err(failed("cannot read", &path))?.is_dir() {
                    return Ok(Content::Alien("is no directory"));
                }
            }
        }
        let file = path.join(FILE);
        let text = match files::read(&file) {
            Ok(text) => text,
            Err(Unread::Missing) => return Ok(Content::Bare(has_files(&path))),
            Err(Unread::NoFile) => {
                return Ok(Content::Alien("has no regular file as mountInfo.json"));
            }
            Err(Unread::TooLong) => return Ok(Content::Unreadable(Unread::TooLong.to_string())),
            Err(Unread::Io(source)) => return Err(failed("cannot read", &file)(source)),
        };
        Ok(match serde_json::from_slice(&text) {
            Ok(info) => Content::Whole(info),
            Err(error) => Content::Unreadable(error.to_string()),
        })
    }

    /// Refuses a mount source whose entry is not this volume's. With `recorded` the volume was
    /// published there, so an entry that nobody can read is its own.
    ///
    /// # Errors
    /// [`MountInfoError::Taken`], [`MountInfoError::TooLong`], or the file system's.
    pub fn is_open(
        &self,
        source: &Path,
        (driver, volume): (&str, &str),
        recorded: bool,
    ) -> Result<(), MountInfoError> {
        match self.content(source)? {
            Content::Nothing | Content::Bare(false) => Ok(()),
            Content::Whole(there) if there.is_of(driver, volume) => Ok(()),
            Content::Bare(true) | Content::Unreadable(_) if recorded => Ok(()),
            Content::Whole(there) => Err(self.taken(source, there.owner())),
            // A directory with files, but without this one, is somebody's.
            Content::Bare(true) => Err(self.taken(source, format!("has no {FILE}"))),
            Content::Unreadable(why) => {
                Err(self.taken(source, format!("its {FILE} cannot be read: {why}")))
            }
            Content::Alien(why) => Err(self.taken(source, why.into())),
        }
    }

    pub(super) fn taken(&self, source: &Path, by: String) -> MountInfoError {
        let path = self.entry(source).unwrap_or_default().display().to_string();
        MountInfoError::Taken { path, by }
    }

    /// Publishes an entry for a mount source. Repeating it changes nothing, not even the sandbox's
    /// id in it.
    ///
    /// # Errors
    /// Another entry is there, or the file system's; nothing was published then.
    pub fn publish(&self, source: &Path, info: &MountInfo) -> Result<(), MountInfoError> {
        let path = self.entry(source)?;
        match self.content(source)? {
            Content::Nothing | Content::Bare(false) => {}
            Content::Whole(there) if there == *info => return Ok(()),
            Content::Whole(there) => return Err(self.taken(source, there.owner())),
            Content::Bare(true) => return Err(self.taken(source, format!("has no {FILE}"))),
            Content::Unreadable(why) => {
                return Err(self.taken(source, format!("its {FILE} cannot be read: {why}")));
            }
            Content::Alien(why) => return Err(self.taken(source, why.into())),
        }
        let beside = self.made_beside(info)?;
        // This fails for a directory that is not empty.
        std::fs::rename(beside.entry(), &path).map_err(failed("cannot publish", &path))
    }

    /// Writes the entry for a mount source in place of a directory, with the ids of the sandboxes
    /// in it. A runtime sees the one or the other, and nothing between.
    ///
    /// # Errors
    /// [`MountInfoError::TooLong`], or the file system's; the older entry stays.
    pub(super) fn replace(&self, source: &Path, info: &MountInfo) -> Result<(), MountInfoError> {
        let path = self.entry(source)?;
        let beside = self.made_beside(info)?;
        let entry = beside.entry();
        keep_sandboxes(&path, &entry)
            .and_then(|()| {
                let flags = RenameFlags::EXCHANGE;
                renameat_with(CWD, &entry, CWD, &path, flags).map_err(io::Error::from)
            })
            .map_err(failed("cannot repair", &path))
        // What is beside now, the older one or the new one that nobody has seen, goes here.
    }

    /// A new entry that no runtime sees yet.
    fn made_beside(&self, info: &MountInfo) -> Result<Beside, MountInfoError> {
        make_private(&self.0)?;
        let beside = self.beside()?;
        make_private(&beside.entry())?;
        write(&beside.entry(), info)?;
        Ok(beside)
    }

    /// Removes the entry of a volume that was published for a mount source, though its file is
    /// damaged. A missing entry, and another volume's, is left as it is.
    ///
    /// # Errors
    /// The file system's; the entry may still be published.
    pub fn remove(&self, source: &Path, driver: &str, volume: &str) -> Result<(), MountInfoError> {
        let path = self.entry(source)?;
        match self.content(source)? {
            Content::Whole(there) if there.is_of(driver, volume) => {}
            Content::Bare(_) | Content::Unreadable(_) => {}
            Content::Nothing | Content::Whole(_) | Content::Alien(_) => return Ok(()),
        }
        let beside = self.beside()?;
        let entry = beside.entry();
        std::fs::rename(&path, &entry).map_err(failed("cannot take back", &path))?;
        std::fs::remove_dir_all(&entry).map_err(failed("cannot remove", &entry))
    }

    /// Removes what programs that were killed left beside the entries. While two csi-edges run, as
    /// in an upgrade, what the other one has locked is its own.
    pub fn tidy(&self) {
        for entry in std::fs::read_dir(self.neighbour()).into_iter().flatten().flatten() {
            let path = entry.path();
            let locked = File::open(&path).map(|open| (open.try_lock(), open));
            if let Ok((Ok(()), _open)) = locked {
                // The next start tries again.
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }

    /// A directory of csi-edge's on the same file system, which no runtime scans.
    fn neighbour(&self) -> PathBuf {
        self.0.parent().unwrap_or_else(|| Path::new("/")).join(".edge-csi")
    }

    /// A new directory there, locked.
    ///
    /// # Errors
    /// It cannot be made or locked.
    pub(super) fn beside(&self) -> Result<Beside, MountInfoError> {
        let neighbour = self.neighbour();
        make_private(&neighbour)?;
        loop {
            let path = neighbour.join(Uuid::new_v4().to_string());
            if let Some(beside) =
                Beside::make(path.clone()).map_err(failed("cannot make", &path))?
            {
                return Ok(beside);
            }
        }
    }
}

/// A directory beside the entries in which one is built or removed. It is locked while this lives,
/// and goes then.
#[derive(Debug)]
pub(super) struct Beside {
    path: PathBuf,
    _locked: File,
}

impl Beside {
    /// Makes and locks a directory. `None` if another program tidied it away in between.
    fn make(path: PathBuf) -> io::Result<Option<Self>> {
        DirBuilder::new().mode(0o700).create(&path)?;
        let open = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            open => open?,
        };
        match open.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            locked => locked?,
        }
        let is_there = match std::fs::metadata(&path) {
            Ok(meta) => meta.ino() == open.metadata()?.ino(),
            Err(_) => false,
        };
        Ok(is_there.then_some(Self { path, _locked: open }))
    }

    /// The place of the entry in it.
    pub(super) fn entry(&self) -> PathBuf {
        self.path.join("entry")
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // What is left, the next start removes.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Copies the ids of sandboxes: the empty files beside the one that is replaced.
fn keep_sandboxes(from: &Path, to: &Path) -> io::Result<()> {
    for old in std::fs::read_dir(from)? {
        let old = old?;
        let meta = old.metadata()?;
        if meta.is_file() && old.file_name() != FILE {
            let mut new = File::options();
            let new = new.write(true).create_new(true).mode(0o600);
            let new = new.open(to.join(old.file_name()))?;
            // The order of the sandboxes is that of their times.
            new.set_modified(meta.modified()?)?;
        }
    }
    Ok(())
}

fn has_files(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

/// Creates a directory for root alone; an existing one keeps its mode.
fn make_private(path: &Path) -> Result<(), MountInfoError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("cannot make", path))
}

fn write(directory: &Path, info: &MountInfo) -> Result<(), MountInfoError> {
    let path = directory.join(FILE);
    let text = serde_json::to_vec(info)
        .map_err(io::Error::other)
        .map_err(failed("cannot write", &path))?;
    publish(&path, &text, 0o600, Existing::Keep).map_err(failed("cannot write", &path))?;
    File::open(directory).and_then(|open| open.sync_all()).map_err(failed("cannot sync", directory))
}

#[cfg(test)]
mod tests;
