//! Notes which direct volumes are staged: an empty file each, from before the driver's
//! NodeStageVolume until after its NodeUnstageVolume.
//!
//! A volume has no record between staging and publishing. If it grew while nobody used it, a
//! kubelet asks for its growth in between. This note alone says that the driver must not grow a
//! file system then.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use proto::host::files::name;

fn path(state: &Path, driver: &str, volume_id: &str) -> PathBuf {
    state.join("direct").join("staged").join(name(&[driver.as_bytes(), volume_id.as_bytes()]))
}

/// Notes durably that the volume is staged, or is about to be.
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

/// Whether the volume is staged, or may be.
///
/// # Errors
/// The file system's: it is not known.
pub fn is(state: &Path, driver: &str, volume_id: &str) -> io::Result<bool> {
    path(state, driver, volume_id).try_exists()
}

/// Forgets the volume. A note that survives a power cut does no harm.
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
