//! Growing a file system that nobody uses: ext4 on the raw device, without mounting it.
//!
//! This writes to a device that a guest may believe its own, so it is done only where no runtime can have it (nothing is
//! handed over), to the very file system that was made there (by its UUID), and while no process has it open.
//! The tools themselves refuse a device that is mounted, in whatever mount namespace.

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use proto::host::publish::{Existing, publish};
use tracing::info;

use crate::direct::device::{DeviceError, Host};
use crate::direct::tool;
use crate::direct::tool::{LONG, ToolError};

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
    /// It cannot be noted what is being done.
    #[error("the state directory cannot be used, so nothing is begun; is it whole?")]
    Note(#[source] io::Error),
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
    /// When it was mounted the last time, in s; 0 if that was never, or is not known.
    mounted: u64,
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
        let (fstype, uuid, blocks, block, mounted) = if big(0, 4)? == XFS_MAGIC {
            ("xfs", head.get(32..48)?, big(8, 8)?, big(4, 4)?, 0)
        } else if little(0x38, 2)? == EXT_MAGIC {
            // The upper half of the number of blocks counts with the feature "64bit" alone.
            let high = if little(0x60, 4)? & 0x80 == 0 { 0 } else { little(0x150, 4)? };
            let shift = little(0x18, 4).filter(|shift| *shift <= 6)?;
            (
                "ext4",
                head.get(EXT + 0x68..EXT + 0x78)?,
                high << 32 | little(0x04, 4)?,
                1024 << shift,
                little(0x2c, 4)?,
            )
        } else {
            return None;
        };
        let uuid = uuid::Uuid::from_slice(uuid).ok()?.hyphenated().to_string();
        Some(Self { fstype, uuid, bytes: blocks.checked_mul(block)?, block, mounted })
    }

    /// What a device has, as far as the host sees it. Of a device that a guest writes to that may be old.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn at(device: &Path) -> io::Result<Option<Self>> {
        let mut head = vec![0; HEAD];
        match File::open(device)?.read_exact(&mut head) {
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

/// Where it is kept, below a state directory, which file systems are being grown: a file for each, by UUID, with the time
/// when it was last mounted, because what was mounted since is another matter.
///
/// A power cut in the middle of it leaves what `e2fsck -p` does not dare to mend, and `e2fsck -y` mends wholly. That is
/// run for nothing else: not for what a guest has left behind.
#[derive(Clone, Debug)]
pub struct Growing(PathBuf);

impl Growing {
    /// Below this state directory.
    pub fn of(state: &Path) -> Self {
        Self(state.join("direct").join("growing"))
    }

    fn begin(&self, found: &OnDisk) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        let mounted = found.mounted.to_string();
        publish(&self.0.join(&found.uuid), mounted.as_bytes(), 0o600, Existing::Replace)
    }

    fn was_begun(&self, found: &OnDisk) -> io::Result<bool> {
        match std::fs::read_to_string(self.0.join(&found.uuid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            mounted => Ok(mounted? == found.mounted.to_string()),
        }
    }

    fn end(&self, uuid: &str) -> io::Result<()> {
        match std::fs::remove_file(self.0.join(uuid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => File::open(&self.0)?.sync_all(),
        }
    }
}

/// Mends the file system on a device if its growth was begun here and not ended. Before anything else looks at it: to others
/// it is damaged.
///
/// # Errors
/// It is not mended; the next attempt is made with the same.
pub async fn mend(host: &Host, growing: &Growing, device: &Path) -> Result<(), Offline> {
    let (_, Some(found)) = looked(host, device).await? else { return Ok(()) };
    // A UUID is ours to take for a file's name: it was made of 16 bytes.
    if !growing.was_begun(&found).map_err(Offline::Note)? {
        return Ok(());
    }
    info!(device = %device.display(), uuid = found.uuid, "its growth was interrupted, and is mended");
    check(device, "-y").await
}

/// Makes the file system with this UUID as large as its device; the bytes that it then has. A file system that fills
/// its device already is left as it is.
///
/// # Errors
/// It is not as large as its device; what is in it is as it was, and [`mend`] makes it whole.
pub async fn grow(
    host: &Host,
    growing: &Growing,
    device: &Path,
    (fstype, uuid): (&str, &str),
) -> Result<u64, Offline> {
    let another = || Offline::AnotherFileSystem { fstype: fstype.to_owned(), uuid: uuid.to_owned() };
    let (size, found) = looked(host, device).await?;
    let found = found.filter(|found| found.is(fstype, uuid)).ok_or_else(another)?;
    if found.fills(size) {
        growing.end(&found.uuid).map_err(Offline::Note)?;
        return Ok(found.bytes);
    }
    if fstype != "ext4" {
        return Err(Offline::NeedsMount { fstype: fstype.to_owned() });
    }
    // It is whole before it is noted, so what is found after that is of the growth.
    check(device, "-p").await?;
    growing.begin(&found).map_err(Offline::Note)?;
    tool::succeed("resize2fs", [""; 0], device, LONG).await?;
    let path = device.to_owned();
    let sync = move || File::options().write(true).open(path)?.sync_all();
    tokio::task::spawn_blocking(sync).await.map_err(io::Error::from).flatten().map_err(Offline::Read)?;
    let grown = looked(host, device).await?.1.ok_or_else(another)?.bytes;
    growing.end(&found.uuid).map_err(Offline::Note)?;
    Ok(grown)
}

async fn check(device: &Path, how: &str) -> Result<(), Offline> {
    let output = tool::run("e2fsck", ["-f", how], device, LONG).await?;
    // 1: it mended something.
    if matches!(output.status.code(), Some(0 | 1)) {
        Ok(())
    } else {
        Err(tool::failed("e2fsck", &output).into())
    }
}

/// Sees to it, before a volume is handed over, that its file system fills a device that has grown since. A file system
/// that only a guest can grow is left to the guest.
///
/// # Errors
/// As for [`grow`].
pub async fn fill(
    host: &Host,
    growing: &Growing,
    device: &Path,
    file_system: (&str, &str),
) -> Result<(), Offline> {
    match grow(host, growing, device, file_system).await {
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
mod tests;
