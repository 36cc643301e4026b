//! The sandbox that the NRI plugin admitted last to each target, one file per target.
//!
//! The plugin is a process of its own, so this is no part of the volume's record. The file is
//! durable before the container is made, and goes with the record.

use std::io;
use std::path::{Path, PathBuf};

use proto::host::files;
use proto::host::files::{Unread, make_private, name};
use proto::host::publish::{Existing, publish};

fn path(state: &Path, target: &Path) -> PathBuf {
    state.join("direct").join("admitted").join(name(&[target.as_os_str().as_encoded_bytes()]))
}

/// Makes durable that this sandbox may have the volume at a target.
///
/// # Errors
/// The file system's; the earlier one stays.
pub fn keep(state: &Path, target: &Path, sandbox: &str) -> io::Result<()> {
    let path = path(state, target);
    make_private(path.parent().unwrap_or(state))?;
    publish(&path, sandbox.as_bytes(), 0o600, Existing::Replace)
}

/// The sandbox that was admitted last to a target; `None` if the plugin admitted none.
///
/// # Errors
/// It cannot be read, so this is not known.
pub fn last(state: &Path, target: &Path) -> io::Result<Option<String>> {
    match files::read(&path(state, target)) {
        Ok(text) => String::from_utf8(text.to_vec()).map(Some).map_err(io::Error::other),
        Err(Unread::Missing) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Forgets who was admitted to a target.
///
/// # Errors
/// The file system's.
pub fn forget(state: &Path, target: &Path) -> io::Result<()> {
    files::remove(&path(state, target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::published::tests::record;

    #[test]
    fn who_was_admitted_last_is_known_until_the_record_goes() {
        let dir = tempfile::tempdir().unwrap();
        let volume = record("v");
        volume.keep(dir.path()).unwrap();
        let last = || last(dir.path(), &volume.target).unwrap();
        assert_eq!(last(), None);
        for sandbox in ["s-1", "s-2"] {
            keep(dir.path(), &volume.target, sandbox).unwrap();
            assert_eq!(last().as_deref(), Some(sandbox));
        }
        volume.forget(dir.path()).unwrap();
        assert_eq!(last(), None);
    }
}
