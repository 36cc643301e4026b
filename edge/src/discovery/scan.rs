//! The sockets in a directory of registrations.

use std::fs::{DirEntry, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The most sockets of one directory that are looked at.
const MOST: usize = 256;
/// How deep a directory is looked into. A kubelet looks below its directory too.
const DEPTH: usize = 4;

/// A socket, as it is now: one that is made anew under the same path is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) path: PathBuf,
    /// Its inode, and when that was last changed.
    pub(super) version: (u64, i64, i64),
}

/// The sockets in this directory, without hidden ones; none if it is not there.
pub(super) fn sockets(directory: &Path) -> Vec<Socket> {
    let mut found = Vec::new();
    look(directory, DEPTH, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.truncate(MOST);
    found
}

fn look(directory: &Path, depth: usize, found: &mut Vec<Socket>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let is_shown = |entry: &DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    for entry in entries.filter_map(Result::ok).filter(is_shown).take(MOST) {
        let path = entry.path();
        // Of a symlink itself, which is no socket and no directory.
        match entry.metadata() {
            Ok(meta) if meta.file_type().is_socket() => {
                found.push(Socket { path, version: version(&meta) });
            }
            Ok(meta) if meta.is_dir() && depth > 1 => look(&path, depth - 1, found),
            Ok(_) | Err(_) => {}
        }
    }
}

fn version(meta: &Metadata) -> (u64, i64, i64) {
    (meta.ino(), meta.ctime(), meta.ctime_nsec())
}
