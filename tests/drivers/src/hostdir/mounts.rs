//! Bind mounts, and what is mounted where according to the kernel.

use std::ffi::OsString;
use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use tonic::Status;

use super::fail::Doing as _;

/// Whether a path is a mount point; false if the kernel does not answer.
pub(super) fn is_mount(path: impl AsRef<Path>) -> bool {
    count(path.as_ref()).is_ok_and(|count| count > 0)
}

fn count(path: &Path) -> io::Result<usize> {
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        path => path?,
    };
    let table = fs::read("/proc/self/mountinfo")?;
    let points = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.filter(|point| unescape(point) == path).count())
}

/// The kernel writes blanks in paths as `\040` and so on.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if first == b'\\' => {
                plain.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain).into()
}

/// Whether two paths lead to one file, directory or device.
pub(super) fn same(a: impl AsRef<Path>, b: impl AsRef<Path>) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.dev() == b.dev() && a.ino() == b.ino(),
        _ => false,
    }
}

/// Makes what a mount is put over: a directory, or a file for a device.
pub(super) fn prepare(path: &str, device: bool) -> Result<(), Status> {
    let made = if device {
        File::options().create(true).append(true).open(path).map(drop)
    } else {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    };
    match made {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Status::failed_precondition(
            format!("cannot make {path}: the directory it is in does not exist"),
        )),
        made => made.doing(|| format!("make {path}")),
    }
}

/// Mounts `source` at `target` too, with the mount flags of a capability.
pub(super) fn bind(
    source: &Path,
    target: &str,
    flags: &[String],
    readonly: bool,
) -> Result<(), Status> {
    let what = || format!("mount {} at {target}", source.display());
    mount_bind(source, target).doing(what)?;
    let wanted = wanted(flags, readonly);
    if wanted.is_empty() {
        return Ok(());
    }
    // The restrictions of the source must stay, or the kernel refuses in a user namespace.
    let done = statvfs(target)
        .and_then(|stat| mount_remount(target, MountFlags::BIND | kept(stat.f_flag) | wanted, ""));
    if done.is_err() {
        // The caller gets the first error; a retry finds this mount and removes it.
        let _ = unmount(target, UnmountFlags::empty());
    }
    done.doing(|| {
        format!("{} with {}", what(), if readonly { "ro".to_owned() } else { flags.join(",") })
    })
}

fn wanted(flags: &[String], readonly: bool) -> MountFlags {
    let flag = |flag: &String| match flag.as_str() {
        "ro" => MountFlags::RDONLY,
        "noexec" => MountFlags::NOEXEC,
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        _ => MountFlags::empty(),
    };
    let readonly = if readonly { MountFlags::RDONLY } else { MountFlags::empty() };
    flags.iter().map(flag).collect::<MountFlags>() | readonly
}

fn kept(there: StatVfsMountFlags) -> MountFlags {
    [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ]
    .into_iter()
    .filter(|(flag, _)| there.contains(*flag))
    .map(|(_, flag)| flag)
    .collect()
}

/// Unmounts all that is mounted at a path.
pub(super) fn release(path: &str) -> Result<(), Status> {
    for _ in 0..count(Path::new(path)).doing(|| format!("find what is mounted at {path}"))? {
        unmount(path, UnmountFlags::empty()).doing(|| format!("unmount {path}"))?;
    }
    Ok(())
}

/// Removes what a mount was put over. Something with content in it is not ours and stays.
pub(super) fn clear(path: &str) -> Result<(), Status> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path),
        Ok(meta) if meta.len() == 0 => fs::remove_file(path),
        Ok(_) => Err(io::Error::other("it is a file with content")),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.doing(|| format!("remove {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read_as_the_kernel_writes_it() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/a\\04"), Path::new("/a\\04"));
        assert!(is_mount("/proc"));
        assert!(!is_mount("/proc/self"));
        assert!(!is_mount("/does/not/exist"));
    }
}
