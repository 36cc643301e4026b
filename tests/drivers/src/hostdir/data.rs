//! The bytes of volumes and snapshots: a directory `data`, or a sparse image `disk.img`.

use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tonic::Status;

use super::fail::Doing as _;

/// Where the data of an object is whose directory is `dir`.
pub(super) fn path(dir: &Path, block: bool) -> PathBuf {
    dir.join(if block { "disk.img" } else { "data" })
}

/// Makes empty data of `size` bytes.
pub(super) fn make(path: &Path, block: bool, size: i64) -> Result<(), Status> {
    if block {
        return resize(path, size);
    }
    // For everyone, as the pods' users are not known here; a mount group narrows nothing either.
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o777)))
        .doing(|| format!("make the directory {}", path.display()))
}

/// Makes an image file, or grows it.
pub(super) fn resize(path: &Path, size: i64) -> Result<(), Status> {
    let size = u64::try_from(size).unwrap_or_default();
    let grow = || {
        let file = File::options().create(true).append(true).open(path)?;
        if file.metadata()?.len() < size {
            file.set_len(size)?;
        }
        file.sync_all()
    };
    grow().doing(|| format!("make the image {} {size} bytes long", path.display()))
}

/// Copies data with all its attributes and holes; on disk when it returns.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), Status> {
    let what = || format!("copy {} to {}", from.display(), to.display());
    let done = Command::new("cp")
        .args(["-a", "--reflink=auto", "--sparse=always", "-T", "--"])
        .args([from, to])
        .output()
        .doing(|| format!("{} with cp", what()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let message = format!("cannot {}: {}", what(), said.trim());
        return Err(if message.contains("No space left") {
            Status::resource_exhausted(message)
        } else {
            Status::internal(message)
        });
    }
    let file = File::open(to).doing(what)?;
    if file.metadata().doing(what)?.is_dir() {
        rustix::fs::syncfs(&file).doing(what)
    } else {
        file.sync_all().doing(what)
    }
}

/// Bytes and files that a directory holds.
pub(super) fn used(top: &Path) -> io::Result<(u64, u64)> {
    let mut bytes = 0;
    let mut files = 0;
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        // A missing file was deleted meanwhile by the user of the volume.
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && dir != top => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let meta = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            bytes += meta.blocks() * 512;
            files += 1;
            if meta.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok((bytes, files))
}

/// Gives everything in a directory to a group, as VOLUME_MOUNT_GROUP asks.
pub(super) fn set_group(dir: &Path, group: u32) -> io::Result<()> {
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path)?;
        std::os::unix::fs::lchown(&path, None, Some(group))?;
        if meta.is_symlink() {
            continue;
        }
        // New files in a set-group-id directory belong to the group too.
        let bits = if meta.is_dir() { 0o2770 } else { 0o660 };
        fs::set_permissions(&path, fs::Permissions::from_mode(meta.mode() & 0o7777 | bits))?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
    }
    Ok(())
}

/// The room of a file system.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) total: i64,
    pub(super) available: i64,
    pub(super) files: i64,
    pub(super) files_available: i64,
    pub(super) readonly: bool,
}

/// The room of the file system that `path` is on.
pub(super) fn room(path: &Path) -> Result<Room, Status> {
    let stat =
        rustix::fs::statvfs(path).doing(|| format!("ask for the room on {}", path.display()))?;
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Ok(Room {
        total: signed(stat.f_blocks.saturating_mul(stat.f_frsize)),
        available: signed(stat.f_bavail.saturating_mul(stat.f_frsize)),
        files: signed(stat.f_files),
        files_available: signed(stat.f_favail),
        readonly: stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}
