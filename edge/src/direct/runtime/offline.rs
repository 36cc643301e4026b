//! Growing a file system that nobody uses: ext4 on the raw device, without mounting it.
//!
//! This writes to a device that a guest may believe its own, so it is done only where no runtime can have it (nothing is
//! handed over), to the very file system that was made there (by its UUID), and while no process has it open.
//! The tools themselves refuse a device that is mounted, in whatever mount namespace.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::direct::device::{DeviceError, Host};
use crate::direct::tool::{self, LONG, ToolError};

/// As much of a device says what is on it: ext4 begins to describe itself at 1024, XFS at 0.
const HEAD: usize = 2048;
const EXT: usize = 1024;
const EXT_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// Why a file system was not grown.
#[derive(Debug, thiserror::Error)]
pub enum Offline {
    /// Only a guest can.
    #[error("{fstype} grows only while it is mounted, and this host mounts no direct volume")]
    NeedsMount {
        /// The file system.
        fstype: String,
    },
    /// It is another file system than the one that was published.
    #[error(
        "what is on the device is not the {fstype} with UUID {uuid} that was made there; nothing was done to it"
    )]
    AnotherFileSystem {
        /// The file system that was made.
        fstype: String,
        /// Its UUID.
        uuid: String,
    },
    /// Somebody uses it.
    #[error("nothing was done to it")]
    InUse(#[from] DeviceError),
    /// A tool did not do it.
    #[error("it is not grown, or not wholly; the next attempt mends it and goes on")]
    Tool(#[from] ToolError),
    /// The device cannot be read.
    #[error("the device cannot be read")]
    Read(#[source] io::Error),
}

/// What a file system says of itself on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// `ext4` or `xfs`.
    pub fstype: &'static str,
    /// Its UUID, in lower case with hyphens.
    pub uuid: String,
    /// How many bytes of the device it takes.
    pub bytes: u64,
    block: u64,
}

impl OnDisk {
    /// Reads the head of a device; nothing if it is of neither.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let little = |at: usize, length: usize| {
            let bytes = head.get(EXT + at..EXT + at + length)?;
            Some(bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte)))
        };
        let big = |at: usize, length: usize| {
            Some(
                head.get(at..at + length)?.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte)),
            )
        };
        let (fstype, uuid, blocks, block) = if big(0, 4)? == XFS_MAGIC {
            ("xfs", head.get(32..48)?, big(8, 8)?, big(4, 4)?)
        } else if little(0x38, 2)? == EXT_MAGIC {
            // The upper half of the number of blocks counts with the feature "64bit" alone.
            let high = if little(0x60, 4)? & 0x80 == 0 { 0 } else { little(0x150, 4)? };
            let shift = little(0x18, 4).filter(|shift| *shift <= 6)?;
            ("ext4", head.get(EXT + 0x68..EXT + 0x78)?, high << 32 | little(0x04, 4)?, 1024 << shift)
        } else {
            return None;
        };
        let uuid = uuid::Uuid::from_slice(uuid).ok()?.hyphenated().to_string();
        Some(Self { fstype, uuid, bytes: blocks.checked_mul(block)?, block })
    }

    /// What a device has, as far as the host sees it. Of a device that a guest writes to that may be old.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn at(device: &Path) -> io::Result<Option<Self>> {
        let mut head = vec![0; HEAD];
        match std::fs::File::open(device)?.read_exact(&mut head) {
            Ok(()) => Ok(Self::parse(&head)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is the one with this UUID.
    pub fn is(&self, fstype: &str, uuid: &str) -> bool {
        self.fstype == fstype && self.uuid.eq_ignore_ascii_case(uuid)
    }

    /// Whether not one more block has room on a device of this size.
    pub fn fills(&self, size: u64) -> bool {
        size < self.bytes.saturating_add(self.block)
    }
}

/// Makes the file system with this UUID as large as its device; the bytes that it then has. A file system that fills
/// its device already is left as it is.
///
/// # Errors
/// It is not as large as its device; what is on it is as good as before, or `e2fsck` makes it so the next time.
pub async fn grow(host: &Host, device: &Path, fstype: &str, uuid: &str) -> Result<u64, Offline> {
    let another = || Offline::AnotherFileSystem { fstype: fstype.to_owned(), uuid: uuid.to_owned() };
    let (size, found) = looked(host, device).await?;
    let found = found.filter(|found| found.is(fstype, uuid)).ok_or_else(another)?;
    if found.fills(size) {
        return Ok(found.bytes);
    }
    if fstype != "ext4" {
        return Err(Offline::NeedsMount { fstype: fstype.to_owned() });
    }
    let output = tool::run("e2fsck", ["-f", "-p"], device, LONG).await?;
    // 1: it mended what a guest that died left behind.
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(tool::failed("e2fsck", &output).into());
    }
    tool::succeed("resize2fs", [""; 0], device, LONG).await?;
    Ok(looked(host, device).await?.1.ok_or_else(another)?.bytes)
}

/// Sees to it, before a volume is handed over, that its file system fills a device that has grown since. A file system
/// that only a guest can grow is left to the guest.
///
/// # Errors
/// As for [`grow`].
pub async fn fill(host: &Host, device: &Path, fstype: &str, uuid: &str) -> Result<(), Offline> {
    match grow(host, device, fstype, uuid).await {
        Ok(_) | Err(Offline::NeedsMount { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The device's size and what is on it, if nobody uses it.
async fn looked(host: &Host, device: &Path) -> Result<(u64, Option<OnDisk>), Offline> {
    let (host, device) = (host.clone(), device.to_owned());
    // Opening a device may wait for it.
    let looking = tokio::task::spawn_blocking(move || {
        let number = std::fs::metadata(&device).map_err(Offline::Read)?.rdev();
        host.is_free(&device, number)?;
        let size = super::device_size(&device).map_err(Offline::Read)?;
        Ok((size, OnDisk::at(&device).map_err(Offline::Read)?))
    });
    looking.await.map_err(|error| Offline::Read(error.into())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    const UUID: &str = "5f0c4b1e-6f5d-4f0a-9d3e-0123456789ab";
    const MIB: u64 = 1 << 20;

    fn ext4(bytes: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let made =
            Command::new("mkfs.ext4").args(["-q", "-F", "-U", UUID]).arg(file.path()).status().unwrap();
        assert!(made.success());
        file
    }

    #[tokio::test]
    async fn ext4_is_grown_to_its_device_and_says_how_large_it_is() {
        let file = ext4(16 * MIB);
        assert_eq!(
            grow(&Host::default(), file.path(), "ext4", UUID).await.unwrap(),
            16 * MIB,
            "nothing to do"
        );
        file.as_file().set_len(64 * MIB).unwrap();
        assert_eq!(
            grow(&Host::default(), file.path(), "ext4", &UUID.to_uppercase()).await.unwrap(),
            64 * MIB
        );
        let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(file.path()).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }

    #[tokio::test]
    async fn what_is_not_certainly_ours_and_free_is_left_alone() {
        let file = ext4(16 * MIB);
        file.as_file().set_len(32 * MIB).unwrap();
        let before = std::fs::read(file.path()).unwrap();
        let other = grow(&Host::default(), file.path(), "ext4", "00000000-0000-0000-0000-000000000001")
            .await
            .unwrap_err();
        assert!(matches!(other, Offline::AnotherFileSystem { .. }), "{other}");
        let xfs = grow(&Host::default(), file.path(), "xfs", UUID).await.unwrap_err();
        assert!(matches!(xfs, Offline::AnotherFileSystem { .. }), "{xfs}");
        assert!(before == std::fs::read(file.path()).unwrap(), "it was written to");
    }

    #[tokio::test]
    async fn xfs_is_left_to_a_guest_until_it_fills_its_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut head = vec![0; 4096];
        // As mkfs.xfs begins: magic, size of a block, their number, and the UUID.
        head[..16].copy_from_slice(b"XFSB\0\0\x10\0\0\0\0\0\0\0\x10\0");
        head[32..48].copy_from_slice(uuid::Uuid::parse_str(UUID).unwrap().as_bytes());
        io::Write::write_all(&mut file.as_file(), &head).unwrap();
        let host = Host::default();
        file.as_file().set_len(16 * MIB).unwrap();
        assert_eq!(grow(&host, file.path(), "xfs", UUID).await.unwrap(), 16 * MIB);
        file.as_file().set_len(17 * MIB).unwrap();
        let xfs = grow(&host, file.path(), "xfs", UUID).await.unwrap_err();
        assert!(matches!(xfs, Offline::NeedsMount { .. }), "{xfs}");
        fill(&host, file.path(), "xfs", UUID).await.unwrap();
    }

    #[tokio::test]
    async fn a_blank_or_short_device_is_no_file_system() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [0, 1500, 4096] {
            file.as_file().set_len(bytes).unwrap();
            let error = grow(&Host::default(), file.path(), "ext4", UUID).await.unwrap_err();
            assert!(matches!(error, Offline::AnotherFileSystem { .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn the_head_of_a_device_may_be_anything(mut head in proptest::collection::vec(any::<u8>(), 0..2100), magic in 0..3) {
            let magic: (usize, &[u8]) = match magic {
                0 => (0, b"XFSB"),
                1 => (EXT + 0x38, b"\x53\xef"),
                _ => (0, b""),
            };
            if let Some(place) = head.get_mut(magic.0..magic.0 + magic.1.len()) {
                place.copy_from_slice(magic.1);
            }
            let _ = OnDisk::parse(&head);
        }
    }
}
