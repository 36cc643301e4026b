//! What follows a failed commit of a store in a file.
//!
//! After a failed fsync Linux marks the pages as clean, so the file reads well and the disk may
//! lack a part of it. So nothing trusts the file again: a mark in its directory makes the next
//! start copy all records into a new file. That start comes when the disk takes as much as that.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use proto::host::files;
use rustix::fs::{FallocateFlags, fallocate};

/// The bytes that a disk must take and sync before a store on it is opened again.
const TRIAL: usize = 1 << 20;

/// The mark of a store in this file: an empty file. While a trial runs it has a content.
pub(super) fn mark(store: &Path) -> PathBuf {
    let mut mark = store.as_os_str().to_owned();
    mark.push(".rewrite");
    mark.into()
}

/// Marks the store, and tries whether its disk takes a second copy of it.
///
/// # Errors
/// The file system's. The store may be marked nevertheless.
pub(super) fn try_disk(store: &Path) -> io::Result<()> {
    let mark = mark(store);
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(mark)?;
    let tried = fill(&file, fs::metadata(store)?.len());
    file.set_len(0)?;
    tried?;
    file.sync_all()?;
    files::sync_above(store)
}

/// Takes as much of the disk as a copy of the store, and writes a part of that.
fn fill(mut file: &File, store: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, store.max(TRIAL as u64)) {
        // A file system that promises no space shows with the copy whether there is enough.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    file.write_all(&vec![1; TRIAL])?;
    file.sync_all()
}

/// Removes the mark of a store that is a new file by now.
///
/// # Errors
/// The file system's.
pub(super) fn clear(store: &Path) -> io::Result<()> {
    files::remove(&mark(store))
}
