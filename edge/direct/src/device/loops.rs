//! Finds loop devices that are set up upon a block device.
//!
//! The kernel keeps the backing file open itself, without a claim. So neither an exclusive open nor
//! `/proc` shows it once losetup has ended.

use std::io;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use proto::host::mountinfo::may_ask;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
use rustix::io::Errno;

/// The file systems as a process sees them.
pub(super) struct View {
    root: PathBuf,
    /// The text of the process's `mountinfo`.
    mounts: String,
}

/// The views in which the path of a backing file may be: ours, and the host's if this is a
/// container.
///
/// # Errors
/// Our own mount table cannot be read.
pub(super) fn views(proc: &Path) -> io::Result<Vec<View>> {
    let table = |process: &str| {
        let text = std::fs::read(proc.join(process).join("mountinfo"));
        text.map(|text| String::from_utf8_lossy(&text).into_owned())
    };
    let ours = View { root: "/".into(), mounts: table("self")? };
    // Some hosts hide the files of their init.
    let hosts = table("1").map(|mounts| View { root: proc.join("1/root"), mounts });
    Ok([Some(ours), hosts.ok()].into_iter().flatten().collect())
}

impl View {
    /// True if this path leads to the block device with this number. A path on a file server leads
    /// to none: a server may never answer, and it has no devices.
    fn has(&self, path: &Path, number: u64) -> bool {
        let below = path.strip_prefix("/").unwrap_or(path);
        may_ask(&self.mounts, path) && is_device(&self.root.join(below), number)
    }
}

/// The name of a loop device whose backing file is the block device with this number.
///
/// # Errors
/// The kernel's files cannot be read.
pub(super) fn upon(sys: &Path, views: &[View], number: u64) -> io::Result<Option<String>> {
    for entry in std::fs::read_dir(sys.join("block"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") {
            continue;
        }
        let Some(backing) = backing(&entry.path().join("loop/backing_file"))? else { continue };
        if views.iter().any(|view| view.has(Path::new(&backing), number)) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The path in a loop device's file; none for a loop device that has no backing file.
fn backing(file: &Path) -> io::Result<Option<String>> {
    match std::fs::read(file) {
        Ok(path) => Ok(Some(String::from_utf8_lossy(&path).trim_end_matches('\n').to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // It is taken down just now.
        Err(error)
            if [Some(Errno::NODEV), Some(Errno::NXIO)].contains(&Errno::from_io_error(&error)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// True if the path leads to this block device.
fn is_device(path: &Path, number: u64) -> bool {
    let meta = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    meta.is_ok_and(|meta| {
        let is_block = FileType::from_raw_mode(meta.stx_mode.into()) == FileType::BlockDevice;
        is_block && makedev(meta.stx_rdev_major, meta.stx_rdev_minor) == number
    })
}
