//! Multiple mount protection of ext4: the kernel of a second VM refuses to mount a file system that
//! another VM has mounted (EBUSY).
//!
//! Kata's runtime-rs can give one device to two mounts, and to two VMs. The protection is on the
//! device itself, so it also holds while csi-edge is away. It costs one written block every 5 s in
//! the guest. Tools that write to the device wait 11 s after an orderly unmount, and 64 s after a
//! crash.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::superblock::{Superblock, little_endian};
use super::tool;
use super::tool::{SHORT, ToolError};

const MAGIC: u64 = 0x004d_4d50;
/// The sequence number that says that e2fsck, or another tool of e2fsprogs, is at work.
const CHECKING: u64 = 0xe24d_4d50;

/// Switches the protection on, unless it is. Nobody may use the device.
///
/// # Errors
/// The device cannot be read, or tune2fs fails, as on a full file system.
pub(crate) async fn protect(device: &Path) -> Result<(), ProtectError> {
    let path = device.to_owned();
    let found = tokio::task::spawn_blocking(move || Superblock::at(&path)).await;
    let found = found.map_err(io::Error::other).flatten().map_err(ProtectError::Read)?;
    // tune2fs would wait, as each tool does.
    if found.is_some_and(|found| found.mmp.is_some()) {
        return Ok(());
    }
    Ok(tool::succeed("tune2fs", ["-O", "mmp"], device, SHORT).await?)
}

/// The reason why a file system is not protected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtectError {
    /// The device cannot be read.
    #[error("the device cannot be read")]
    Read(#[source] io::Error),
    /// tune2fs failed.
    #[error(
        "it cannot be protected against a second mount (ext4's feature mmp), which could destroy \
         it; if it is full, expand the volume"
    )]
    Tool(#[from] ToolError),
}

/// True if a tool that was killed has left its mark. No kernel mounts the file system, and e2fsck
/// refuses it, until the mark is removed.
pub(super) fn is_marked(device: &File, found: &Superblock) -> io::Result<bool> {
    let Some(at) = found.mmp else { return Ok(false) };
    let mut block = [0; 8];
    device.read_exact_at(&mut block, at)?;
    let is_mmp = little_endian(&block, 0, 4) == Some(MAGIC);
    Ok(is_mmp && little_endian(&block, 4, 4) == Some(CHECKING))
}

/// Removes the mark of a tool that was killed. Nobody may use the device.
pub(super) async fn remove_mark(device: &Path) -> Result<(), ToolError> {
    tool::succeed("tune2fs", ["-f", "-E", "clear_mmp"], device, SHORT).await
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn ext4() -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        // Without checksums a test can write into the block.
        let args = ["-q", "-F", "-O", "^metadata_csum"];
        assert!(Command::new("mkfs.ext4").args(args).arg(image.path()).status().unwrap().success());
        image
    }

    fn superblock(image: &tempfile::NamedTempFile) -> Superblock {
        Superblock::at(image.path()).unwrap().unwrap()
    }

    #[tokio::test]
    async fn the_protection_is_switched_on_once() {
        let image = ext4();
        assert!(superblock(&image).clean && superblock(&image).mmp.is_none());
        protect(image.path()).await.unwrap();
        assert!(superblock(&image).clean && superblock(&image).mmp.is_some());
        // tune2fs would wait for 11 s.
        let begun = tokio::time::Instant::now();
        protect(image.path()).await.unwrap();
        assert!(begun.elapsed().as_secs() < 5);
    }

    #[tokio::test]
    async fn the_mark_of_a_killed_check_is_found_and_removed() {
        let image = ext4();
        let is_marked = || is_marked(image.as_file(), &superblock(&image)).unwrap();
        assert!(!is_marked());
        protect(image.path()).await.unwrap();
        assert!(!is_marked());
        let mark = u32::try_from(CHECKING).unwrap().to_le_bytes();
        image.as_file().write_all_at(&mark, superblock(&image).mmp.unwrap() + 4).unwrap();
        assert!(is_marked());
        let refused = Command::new("e2fsck").arg("-p").arg(image.path()).status().unwrap();
        assert!(!refused.success(), "e2fsck ran on a marked file system");
        remove_mark(image.path()).await.unwrap();
        assert!(!is_marked());
    }

    #[test]
    fn what_was_not_unmounted_in_order_is_not_clean() {
        let image = ext4();
        let set = |field: &str, value: &str| {
            let words = format!("set_super_value {field} {value}");
            let args = ["-w", "-R", words.as_str()];
            Command::new("debugfs").args(args).arg(image.path()).output().unwrap();
            superblock(&image).clean
        };
        assert!(set("state", "1"));
        for (field, value, before) in [
            ("state", "0", "1"),
            ("state", "3", "1"),
            ("last_orphan", "12", "0"),
            ("error_count", "1", "0"),
        ] {
            assert!(!set(field, value), "{field}");
            assert!(set(field, before), "{field}");
        }
        assert!(!set("feature_incompat", "0x2c6"), "its journal is to be replayed");
    }
}
