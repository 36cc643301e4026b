//! Growing a file system that nobody uses: ext4 on the raw device, without mounting it.
//!
//! This writes to a device that a guest may believe its own, so it is done only where no runtime can have it (nothing is
//! handed over), to the very file system that was made there (by its UUID), and while no process has it open.
//! The tools themselves refuse a device that is mounted, in whatever mount namespace.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use super::device;

/// How long one tool may take; it goes on after that, and holds the device against a second one.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Where a file system of the ext family begins to describe itself, and for how long.
const SUPERBLOCK: (u64, usize) = (1024, 1024);
/// What says that it is one.
const MAGIC: u16 = 0xef53;

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
    #[error("process {process} has the device open; nothing was done to it")]
    Open {
        /// Its id.
        process: u32,
    },
    /// A tool did not do it.
    #[error("{tool} ended with {status}: {said}")]
    Failed {
        /// The program.
        tool: &'static str,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The end of what it said.
        said: String,
    },
    /// A tool takes very long.
    #[error("{0} has run for {PATIENCE:?} and runs on; ask again later")]
    Late(&'static str),
    /// A tool cannot be run.
    #[error("{0} cannot be run; install e2fsprogs")]
    NoTool(&'static str, #[source] io::Error),
    /// The device cannot be read.
    #[error("the device cannot be read")]
    Read(#[source] io::Error),
}

/// What an ext file system says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ext {
    /// Its UUID, in lower case with hyphens.
    pub uuid: String,
    /// How many bytes of the device it takes.
    pub bytes: u64,
}

impl Ext {
    /// Reads a superblock; nothing if it is none.
    pub fn parse(superblock: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            superblock
                .get(at..at + 4)?
                .try_into()
                .ok()
                .map(|word: [u8; 4]| u64::from(u32::from_le_bytes(word)))
        };
        let magic = superblock.get(0x38..0x3a)?.try_into().ok().map(u16::from_le_bytes)?;
        let (low, shift, features, high) = (word(0x04)?, word(0x18)?, word(0x60)?, word(0x150)?);
        let uuid = uuid::Uuid::from_slice(superblock.get(0x68..0x78)?).ok()?;
        // Blocks are of 1 KiB to 64 KiB; the upper half of their number counts with the feature "64bit" alone.
        let high = if features & 0x80 == 0 { 0 } else { high };
        let block = (magic == MAGIC && shift <= 6).then(|| 1024_u64 << shift)?;
        let bytes = (high << 32 | low).checked_mul(block)?;
        Some(Self { uuid: uuid.hyphenated().to_string(), bytes })
    }

    fn at(device: &Path) -> io::Result<Option<Self>> {
        let mut file = std::fs::File::open(device)?;
        file.seek(SeekFrom::Start(SUPERBLOCK.0))?;
        let mut superblock = vec![0; SUPERBLOCK.1];
        match file.read_exact(&mut superblock) {
            Ok(()) => Ok(Self::parse(&superblock)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Makes the file system with this UUID as large as its device; the bytes that it then has. A file system that fills
/// its device already is checked and left.
///
/// # Errors
/// It is not as large as its device; what is on it is as good as before, or `e2fsck` makes it so the next time.
pub async fn grow(device: &Path, fstype: &str, uuid: &str) -> Result<u64, Offline> {
    if fstype != "ext4" {
        return Err(Offline::NeedsMount { fstype: fstype.to_owned() });
    }
    let another = || Offline::AnotherFileSystem { fstype: fstype.to_owned(), uuid: uuid.to_owned() };
    let found = Ext::at(device).map_err(Offline::Read)?.ok_or_else(another)?;
    if !found.uuid.eq_ignore_ascii_case(uuid) {
        return Err(another());
    }
    let path = device.to_owned();
    let looking = tokio::task::spawn_blocking(move || device::opened_by(&path, Path::new("/proc"))).await;
    if let Some(process) = looking.map_err(io::Error::from).flatten().map_err(Offline::Read)? {
        return Err(Offline::Open { process });
    }
    // 1: it mended what a guest that died left behind.
    run("e2fsck", &["-f", "-p"], device, &[0, 1]).await?;
    run("resize2fs", &[], device, &[0]).await?;
    Ok(Ext::at(device).map_err(Offline::Read)?.ok_or_else(another)?.bytes)
}

async fn run(tool: &'static str, flags: &[&str], device: &Path, good: &[i32]) -> Result<(), Offline> {
    let mut command = Command::new(tool);
    // Not killed when the call is given up: half-way is no place to stop.
    let running =
        command.args(flags).arg(device).env("LC_ALL", "C").stdin(std::process::Stdio::null()).output();
    let ended = tokio::time::timeout(PATIENCE, running).await.map_err(|_| Offline::Late(tool))?;
    let output = ended.map_err(|source| Offline::NoTool(tool, source))?;
    if output.status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let tail = said.get(said.len().saturating_sub(400)..).unwrap_or_default();
    let said = super::printable(&String::from_utf8_lossy(tail));
    Err(Offline::Failed { tool, status: output.status, said })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;
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
        assert_eq!(grow(file.path(), "ext4", UUID).await.unwrap(), 16 * MIB, "nothing to do");
        file.as_file().set_len(64 * MIB).unwrap();
        assert_eq!(grow(file.path(), "ext4", &UUID.to_uppercase()).await.unwrap(), 64 * MIB);
        let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(file.path()).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }

    #[tokio::test]
    async fn what_is_not_certainly_ours_and_free_is_left_alone() {
        let file = ext4(16 * MIB);
        file.as_file().set_len(32 * MIB).unwrap();
        let before = std::fs::read(file.path()).unwrap();
        let other = grow(file.path(), "ext4", "00000000-0000-0000-0000-000000000001").await.unwrap_err();
        assert!(matches!(other, Offline::AnotherFileSystem { .. }), "{other}");
        let xfs = grow(file.path(), "xfs", UUID).await.unwrap_err();
        assert!(matches!(xfs, Offline::NeedsMount { .. }), "{xfs}");
        let written = File::options().append(true).open(file.path()).unwrap();
        let mut holder =
            Command::new("cat").stdin(std::process::Stdio::piped()).stdout(written).spawn().unwrap();
        let open = grow(file.path(), "ext4", UUID).await.unwrap_err();
        assert!(matches!(open, Offline::Open { process } if process == holder.id()), "{open}");
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert!(before == std::fs::read(file.path()).unwrap(), "it was written to");
    }

    #[tokio::test]
    async fn a_blank_or_short_device_is_no_file_system() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [0, 1500, 4096] {
            file.as_file().set_len(bytes).unwrap();
            let error = grow(file.path(), "ext4", UUID).await.unwrap_err();
            assert!(matches!(error, Offline::AnotherFileSystem { .. }), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_superblock_may_be_anything(mut bytes in proptest::collection::vec(any::<u8>(), 0..1100), magic: bool) {
            if let Some(place) = bytes.get_mut(0x38..0x3a).filter(|_| magic) {
                place.copy_from_slice(&MAGIC.to_le_bytes());
            }
            let _ = Ext::parse(&bytes);
        }
    }
}
