//! Covers a published target with a read-only mount that holds a notice.
//!
//! A runtime that does not take a volume as a device shares the target's directory instead. Without
//! the cover, its pod would write to the node's disk. Runtimes find a volume by the name of its
//! entry, never by what is mounted at the target. The file system is ramfs, because Kata takes a
//! tmpfs at some paths for an emptyDir in the guest's memory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, major, minor, openat, statfs, statvfs};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    fspick, move_mount, unmount,
};

/// The notice in the directory, for whoever gets it instead of the volume.
pub(crate) const NOTICE: &str = "EDGE-CSI-THIS-IS-NOT-YOUR-VOLUME";
const TEXT: &str = "\
This directory is not your volume, and it cannot be written to.

The volume is a direct volume of Edge CSI. It was handed to the container runtime as a device, and
the runtime did not take it: it shared this directory of the node instead. Nothing is lost, and the
volume is not mounted anywhere.

On the node, run `csi-edge direct check`. It says what to set in the runtime's configuration, for
example disable_block_device_use = false. Then delete this pod; the next one gets the volume.
A pod without a RuntimeClass of a VM runtime, or with a subPath, cannot have a direct volume.
";
/// ramfs, as statfs names it.
const RAMFS: u64 = 0x8584_58f6;
/// The label with which SELinux lets containers read the notice. It also keeps a kubelet from
/// asking for a relabelling, which a read-only file system refuses.
const LABEL: &str = "system_u:object_r:container_file_t:s0";
/// The most covers at one target; more than one is there only after a crash.
const STACKED: usize = 64;

/// Covers the target, once. The mount appears whole, by one step.
///
/// # Errors
/// The system does not let us mount, or the host does not see the mount.
pub(crate) fn cover(proc: &Path, target: &Path) -> io::Result<()> {
    if !is_cover(target) {
        let made = made(Path::new("/sys/fs/selinux/enforce").exists())?;
        move_mount(&made, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    let seen = is_hosts(proc, target);
    if seen.is_err() {
        let _ = uncover(target);
    }
    seen
}

/// True if a cover is at the target.
pub(crate) fn is_cover(target: &Path) -> bool {
    let is_ramfs = statfs(target).is_ok_and(|it| u64::try_from(it.f_type) == Ok(RAMFS));
    let read_only =
        || statvfs(target).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY));
    is_ramfs && read_only() && target.join(NOTICE).symlink_metadata().is_ok()
}

/// Takes all covers of the target away, and nothing else. A process that has one open or bound
/// keeps it.
///
/// # Errors
/// The system's.
pub(crate) fn uncover(target: &Path) -> io::Result<()> {
    for _ in 0..STACKED {
        if !is_cover(target) {
            return Ok(());
        }
        unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
    }
    Err(io::Error::other("too many covers are mounted there; unmount them"))
}

/// Finds another mount of the target's cover: there a runtime shared it instead of taking the
/// device. None if there is no cover.
///
/// # Errors
/// The processes cannot be read.
pub(crate) fn shared_at(proc: &Path, target: &Path) -> io::Result<Option<PathBuf>> {
    if !is_cover(target) {
        return Ok(None);
    }
    let device = std::fs::metadata(target)?.dev();
    let number = format!("{}:{}", major(device), minor(device));
    let mut seen = BTreeSet::new();
    for process in std::fs::read_dir(proc)? {
        let process = process?.path();
        // A process that has ended, and a namespace that was read, say nothing new.
        let Ok(namespace) = std::fs::read_link(process.join("ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let Ok(table) = std::fs::read_to_string(process.join("mountinfo")) else { continue };
        if let Some(at) = elsewhere(&table, &number, target) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The first mount of this device in a mount table that is no propagated copy of the target's. A
/// copy, as in the container of a driver, keeps the end of the target's path.
fn elsewhere(table: &str, number: &str, target: &Path) -> Option<PathBuf> {
    let end =
        |path: &Path| -> Vec<_> { path.iter().rev().take(2).map(ToOwned::to_owned).collect() };
    let mut mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let is_it = fields.nth(2) == Some(number);
        is_it.then(|| PathBuf::from(fields.nth(1).unwrap_or_default()))
    });
    mounts.find(|at| end(at) != end(target))
}

/// A cover that is mounted nowhere yet.
fn made(selinux: bool) -> io::Result<OwnedFd> {
    let context = fsopen("ramfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "edge-csi-direct")?;
    fsconfig_set_string(&context, "mode", "0555")?;
    if selinux {
        fsconfig_set_string(&context, "context", LABEL)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let notice = openat(&mount, NOTICE, flags, Mode::from_raw_mode(0o444))?;
    let mut notice = File::from(notice);
    notice.write_all(TEXT.as_bytes())?;
    // A file that is open for writing keeps the file system writable.
    drop(notice);
    // The file system itself, not this mount of it: no bind mount of it is ever writable.
    let flags = FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC;
    let context = fspick(&mount, "", flags)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_reconfigure(&context)?;
    Ok(mount)
}

/// Checks that the host sees the cover: a container without bidirectional mount propagation mounts
/// for itself alone.
fn is_hosts(proc: &Path, target: &Path) -> io::Result<()> {
    let namespace = |process: &str| std::fs::read_link(proc.join(process).join("ns/mnt"));
    // Process 2 is the kernel's own, and never in a container.
    if let (Ok(ours), Ok(hosts)) = (namespace("self"), namespace("2"))
        && ours == hosts
    {
        return Ok(());
    }
    let below = target.strip_prefix("/").unwrap_or(target);
    let seen = std::fs::metadata(proc.join("1/root").join(below))?.dev();
    if seen == std::fs::metadata(target)?.dev() {
        return Ok(());
    }
    Err(io::Error::other(
        "the host does not see what csi-edge mounts; mount the kubelet's directory in csi-edge's \
         container with mountPropagation: Bidirectional",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_targets_own_mount_is_no_sharing() {
        let target = Path::new("/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount");
        let of = |at: &str| {
            let line = format!("7 1 0:9 / {at} ro,nosuid - ramfs edge-csi-direct ro\n");
            let other = "8 1 0:99 / /data rw - ramfs edge-csi-direct ro\n";
            elsewhere(&format!("{other}{line}"), "0:9", target)
        };
        for same in [
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount",
            "/rootfs/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount",
        ] {
            assert_eq!(of(same), None, "{same}");
        }
        for shared in ["/data", "/run/kata-containers/shared/sandboxes/s/mounts/c-1-data", "/mount"]
        {
            assert_eq!(of(shared), Some(shared.into()));
        }
    }

    #[test]
    fn an_ordinary_directory_is_no_cover_and_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join(NOTICE)).unwrap();
        assert!(!is_cover(dir.path()) && !is_cover(Path::new("/gone")));
        uncover(dir.path()).unwrap();
        assert!(dir.path().join(NOTICE).exists());
        assert_eq!(shared_at(Path::new("/proc"), dir.path()).unwrap(), None);
    }

    #[test]
    fn kata_takes_no_covered_target_for_an_empty_dir() {
        // Both runtimes ask for this directory in the path and for tmpfs. A target has neither.
        let target = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount";
        assert!(!target.contains("kubernetes.io~empty-dir"));
        assert_ne!(RAMFS, 0x0102_1994, "tmpfs");
    }
}
