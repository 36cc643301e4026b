//! Grows a file system that nobody uses: ext4 on the raw device, unmounted.
//!
//! A guest may believe that the device is its own. So this runs only while nothing is handed over
//! and no process has the device open. It touches only the file system with the recorded UUID. The
//! tools refuse a mounted device themselves.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use proto::host::files;
use proto::host::publish::{Existing, publish};
use tracing::info;

use super::mmp;
use super::superblock::{Superblock, device_size};
use super::tool;
use super::tool::{LONG, ToolError};
use crate::device::block;
use crate::device::host::{DeviceError, Host};

/// The reason why a file system was not grown.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// Only a guest can.
    #[error("{fstype} grows only while it is mounted, and this host mounts no direct volume")]
    NeedsMount {
        /// The file system.
        fstype: String,
    },
    /// It is another file system than the published one.
    #[error(
        "what is on the device is not the {fstype} with UUID {uuid} that was made there; nothing \
         was done to it"
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
    /// The growth cannot be recorded.
    #[error("the state directory cannot be used, so nothing is begun; is it whole?")]
    Note(#[source] io::Error),
    /// The device cannot be read.
    #[error("the device cannot be read")]
    Read(#[source] io::Error),
}

/// Records which file systems are being grown, in a file each, by UUID. The file has the time of
/// the last mount, because a mount in between ends the claim.
///
/// A power cut during growth leaves damage that `e2fsck -p` refuses to repair and `e2fsck -y`
/// repairs wholly. `-y` is used for nothing else, least of all for what a guest left.
#[derive(Clone, Debug)]
pub struct Growing(PathBuf);

impl Growing {
    /// The growth records of a state directory.
    pub fn of(state: &Path) -> Self {
        Self(state.join("direct").join("growing"))
    }

    fn begin(&self, found: &Superblock) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        let mounted = found.mounted.to_string();
        publish(&self.0.join(&found.uuid), mounted.as_bytes(), 0o600, Existing::Replace)
    }

    fn was_begun(&self, found: &Superblock) -> io::Result<bool> {
        match std::fs::read_to_string(self.0.join(&found.uuid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            mounted => Ok(mounted? == found.mounted.to_string()),
        }
    }

    fn end(&self, uuid: &str) -> io::Result<()> {
        files::remove(&self.0.join(uuid))
    }
}

/// Repairs the file system on a device if its growth, or a check, was begun here and not ended. It
/// runs first, because the file system looks damaged to everything else.
///
/// # Errors
/// It is not repaired; the next attempt tries again.
pub async fn mend(host: &Host, growing: &Growing, device: &Path) -> Result<(), GrowError> {
    let Looked { found: Some(found), marked, .. } = looked(host, device).await? else {
        return Ok(());
    };
    let shown = device.display();
    // Nobody has the device open, so the tool has ended.
    if marked {
        info!(device = %shown, uuid = found.uuid, "a tool was killed at work; its mark is removed");
        mmp::remove_mark(device).await?;
    }
    // The UUID was made of 16 bytes, so it is safe as a file name.
    if growing.was_begun(&found).map_err(GrowError::Note)? {
        info!(device = %shown, uuid = found.uuid, "its growth was interrupted; it is repaired now");
        check(device, "-y").await
    } else if marked {
        check(device, "-p").await
    } else {
        Ok(())
    }
}

/// Grows the file system with this UUID to the size of its device, and returns its bytes. A file
/// system that fills its device stays as it is.
///
/// # Errors
/// It does not fill its device. Its content is as before, and [`mend`] repairs it.
pub async fn grow(
    host: &Host,
    growing: &Growing,
    device: &Path,
    (fstype, uuid): (&str, &str),
) -> Result<u64, GrowError> {
    let another =
        || GrowError::AnotherFileSystem { fstype: fstype.to_owned(), uuid: uuid.to_owned() };
    let Looked { size, found, .. } = looked(host, device).await?;
    let found = found.filter(|found| found.is(fstype, uuid)).ok_or_else(another)?;
    if found.fills(size) {
        growing.end(&found.uuid).map_err(GrowError::Note)?;
        return Ok(found.bytes);
    }
    if fstype != "ext4" {
        return Err(GrowError::NeedsMount { fstype: fstype.to_owned() });
    }
    // It is checked before the record, so later damage comes from the growth.
    check(device, "-p").await?;
    growing.begin(&found).map_err(GrowError::Note)?;
    tool::succeed("resize2fs", [""; 0], device, LONG).await?;
    tool::sync(device).await.map_err(GrowError::Read)?;
    let grown = looked(host, device).await?.found.ok_or_else(another)?.bytes;
    growing.end(&found.uuid).map_err(GrowError::Note)?;
    Ok(grown)
}

async fn check(device: &Path, how: &str) -> Result<(), GrowError> {
    let output = tool::run("e2fsck", ["-f", how], device, LONG).await?;
    // 1: errors were corrected.
    if matches!(output.status.code(), Some(0 | 1)) {
        Ok(())
    } else {
        Err(tool::failed("e2fsck", &output).into())
    }
}

/// Grows a volume's file system before the volume is handed over, if its device has grown. The
/// guest grows what only a mounted system can grow.
///
/// # Errors
/// As for [`grow`].
pub async fn fill(
    host: &Host,
    growing: &Growing,
    device: &Path,
    file_system: (&str, &str),
) -> Result<(), GrowError> {
    match grow(host, growing, device, file_system).await {
        Ok(_) | Err(GrowError::NeedsMount { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A device that nobody uses.
struct Looked {
    /// Its size in bytes.
    size: u64,
    /// Its file system.
    found: Option<Superblock>,
    /// True if a tool was killed while it worked on it.
    marked: bool,
}

/// The device's size and its file system, if nobody uses it. A process that opens it for a moment,
/// such as udev after a tool has written to it, is waited for.
async fn looked(host: &Host, device: &Path) -> Result<Looked, GrowError> {
    let is_held = |error: &GrowError| matches!(error, GrowError::InUse(DeviceError::Held { .. }));
    block::while_held(|| look(host, device), is_held).await
}

async fn look(host: &Host, device: &Path) -> Result<Looked, GrowError> {
    let host = host.clone();
    let device = device.to_owned();
    // Opening a device may wait for it.
    let looking = tokio::task::spawn_blocking(move || {
        let number = std::fs::metadata(&device).map_err(GrowError::Read)?.rdev();
        host.is_free(&device, number)?;
        let size = device_size(&device).map_err(GrowError::Read)?;
        let found = Superblock::at(&device).map_err(GrowError::Read)?;
        let marked =
            found.as_ref().map_or(Ok(false), |found| mmp::is_marked(&File::open(&device)?, found));
        Ok(Looked { size, found, marked: marked.map_err(GrowError::Read)? })
    });
    looking.await.map_err(|error| GrowError::Read(error.into())).flatten()
}

#[cfg(test)]
mod tests;
