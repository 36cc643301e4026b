//! Which direct volumes are staged here: an empty file for each, from before the driver is asked to stage it until it
//! has unstaged it.
//!
//! Between staging and publishing there is no record, and a kubelet asks in between for the growth of a volume that grew
//! while nobody used it. Only this tells that the driver must not be asked to grow a file system then.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::files::name;

fn path(state: &Path, driver: &str, volume_id: &str) -> PathBuf {
    state.join("direct").join("staged").join(name(&[driver.as_bytes(), volume_id.as_bytes()]))
}

/// Notes durably that it is, or is about to be.
///
/// # Errors
/// The file system's.
pub fn note(state: &Path, driver: &str, volume_id: &str) -> io::Result<()> {
    let path = path(state, driver, volume_id);
    let parent = path.parent().unwrap_or(state);
    std::fs::create_dir_all(parent)?;
    File::create(&path)?.sync_all()?;
    File::open(parent)?.sync_all()
}

/// Whether it is, or may be.
///
/// # Errors
/// The file system's: it is not known.
pub fn is(state: &Path, driver: &str, volume_id: &str) -> io::Result<bool> {
    path(state, driver, volume_id).try_exists()
}

/// Forgets it. A note that outlives a power cut says of a volume that is not staged that it may be, which does no harm.
///
/// # Errors
/// The file system's.
pub fn forget(state: &Path, driver: &str, volume_id: &str) -> io::Result<()> {
    match std::fs::remove_file(path(state, driver, volume_id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_of_one_volume_of_one_driver() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        note(state, "d", "v").unwrap();
        note(state, "d", "v").unwrap();
        assert!(is(state, "d", "v").unwrap());
        assert!(!is(state, "d", "w").unwrap() && !is(state, "dv", "").unwrap());
        forget(state, "d", "v").unwrap();
        forget(state, "d", "v").unwrap();
        assert!(!is(state, "d", "v").unwrap());
    }
}
