//! The sandbox that the NRI plugin admitted last to each target, one file per target.
//!
//! The plugin is a process of its own, so this is no part of the volume's record. The file is
//! durable before the container is made, and goes with the record.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use proto::host::files;
use proto::host::files::{Unread, make_private, name};
use proto::host::publish::{Existing, publish};

fn directory(state: &Path) -> PathBuf {
    state.join("direct").join("admitted")
}

fn path(state: &Path, target: &Path) -> PathBuf {
    directory(state).join(name(&[target.as_os_str().as_encoded_bytes()]))
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

/// Forgets who was admitted to any other target than these. A crash leaves such files, and a plugin
/// that admits a sandbox while its volume is unpublished. The next publication to the same target
/// has nothing to do with that sandbox.
///
/// # Errors
/// The file system's; the next start tries again.
pub(crate) fn tidy(state: &Path, targets: &[&Path]) -> io::Result<()> {
    let files = match std::fs::read_dir(directory(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files?,
    };
    let kept: BTreeSet<PathBuf> = targets.iter().map(|target| path(state, target)).collect();
    for file in files {
        let file = file?.path();
        if !kept.contains(&file) {
            files::remove(&file)?;
        }
    }
    Ok(())
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

    #[test]
    fn a_sandbox_is_forgotten_when_its_volume_was_unpublished() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        tidy(state, &[]).unwrap();
        let there = record("v");
        let gone = Path::new("/pods/gone/mount");
        for target in [there.target.as_path(), gone] {
            keep(state, target, "s-1").unwrap();
        }
        let left = directory(state).join(".x.new");
        publish(&left, b"s", 0o600, Existing::Keep).unwrap();
        tidy(state, &[&there.target]).unwrap();
        assert_eq!(last(state, &there.target).unwrap().as_deref(), Some("s-1"));
        assert_eq!(last(state, gone).unwrap(), None);
        assert!(!left.exists());
    }
}
