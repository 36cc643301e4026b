//! Takes away what a driver may leave on the machine below a directory: mounts and loop devices.
//!
//! A directory with mounts in it must not be removed recursively.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rustix::mount::{UnmountFlags, unmount};
use tokio::process::Command;
use tracing::warn;

/// Unmounts everything below `dir`, the newest first, and detaches the loop devices of files there.
///
/// # Errors
/// Something cannot be taken away.
pub(super) async fn below(dir: &Path) -> anyhow::Result<()> {
    let table = tokio::fs::read_to_string("/proc/self/mountinfo").await?;
    for target in mounts(&table, dir).into_iter().rev() {
        warn!("the driver left a mount at {}", target.display());
        unmount(&target, UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {}", target.display()))?;
    }
    for device in loops(Path::new("/sys/block"), dir) {
        warn!("the driver left {}", device.display());
        let status = Command::new("losetup").arg("--detach").arg(&device).status().await?;
        ensure!(status.success(), "cannot detach {}", device.display());
    }
    Ok(())
}

/// The mount points below a directory, oldest first. The kernel writes a blank in a path as `\040`.
fn mounts(table: &str, dir: &Path) -> Vec<PathBuf> {
    let targets = table.lines().filter_map(|line| line.split(' ').nth(4));
    let targets = targets.map(|target| PathBuf::from(target.replace("\\040", " ")));
    targets.filter(|target| target.starts_with(dir) && target != dir).collect()
}

/// The loop devices whose file is below a directory.
fn loops(block: &Path, dir: &Path) -> Vec<PathBuf> {
    let Ok(devices) = std::fs::read_dir(block) else { return Vec::new() };
    let ours = |name: &std::ffi::OsString| {
        let file = std::fs::read_to_string(block.join(name).join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(dir))
    };
    let names = devices.filter_map(|device| Some(device.ok()?.file_name()));
    names.filter(ours).map(|name| Path::new("/dev").join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_counts() {
        let table = "36 25 0:32 / /run/ec-1/a rw - tmpfs tmpfs rw\n\
                     37 25 0:33 / /run/ec-12/a rw - tmpfs tmpfs rw\n\
                     38 36 0:34 / /run/ec-1/a/b\\040c rw - tmpfs tmpfs rw\n";
        let found = mounts(table, Path::new("/run/ec-1"));
        assert_eq!(found, [PathBuf::from("/run/ec-1/a"), PathBuf::from("/run/ec-1/a/b c")]);
    }

    #[test]
    fn loop_devices_are_known_by_their_file() {
        let block = tempfile::tempdir().unwrap();
        for (name, file) in [("loop0", "/run/ec-1/disk\n"), ("loop1", "/run/other\n")] {
            let dir = block.path().join(name).join("loop");
            std::fs::create_dir_all(&dir).unwrap();
            std::io::Write::write_all(
                &mut std::fs::File::create(dir.join("backing_file")).unwrap(),
                file.as_bytes(),
            )
            .unwrap();
        }
        std::fs::create_dir(block.path().join("sda")).unwrap();
        assert_eq!(loops(block.path(), Path::new("/run/ec-1")), [PathBuf::from("/dev/loop0")]);
    }
}
