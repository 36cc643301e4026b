//! Files that other programs read appear whole or not at all: written beside, synced, and renamed.

use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use uuid::Uuid;

use super::files::{above, sync_above};

/// The treatment of a file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced, in one step.
    Replace,
    /// It stays, and the call fails with `AlreadyExists`.
    Keep,
}

/// Publishes `content` at `path` with these permission bits.
///
/// # Errors
/// The file system's. Nothing is left behind, and an existing file is untouched.
pub fn publish(path: &Path, content: &[u8], mode: u32, existing: Existing) -> io::Result<()> {
    let parent = above(path);
    let beside = parent.join(format!(".{}.new", Uuid::new_v4()));
    let published = write(&beside, content, mode).and_then(|()| match existing {
        Existing::Replace => std::fs::rename(&beside, path),
        // A hard link, unlike a rename, refuses an existing name.
        Existing::Keep => {
            std::fs::hard_link(&beside, path).and_then(|()| std::fs::remove_file(&beside))
        }
    });
    if published.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    published?;
    sync_above(path)
}

/// Publishes a record as JSON for root alone, in place of an older one, and makes its directory.
///
/// # Errors
/// The file system's, or the record has no form as JSON. An existing file is untouched.
pub fn publish_record(path: &Path, record: &impl Serialize) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    publish(path, &serde_json::to_vec(record)?, 0o600, Existing::Replace)
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_makes_its_directory_and_replaces_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("record.json");
        for record in [1, 2] {
            publish_record(&path, &record).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), record.to_string().into_bytes());
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_is_replaced_or_kept_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        publish(&path, b"one", 0o600, Existing::Keep).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = publish(&path, b"two", 0o600, Existing::Keep).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        publish(&path, b"three", 0o600, Existing::Replace).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
    }
}
