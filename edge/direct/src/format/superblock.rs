//! Reads the superblock of an ext4 or XFS file system.
//!
//! Pure but for reading the device. A guest may write to the device at the same time, so the result
//! may be old.

use std::fs::File;
use std::io;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The bytes read of a device. The superblock of ext4 begins at 1024, that of XFS at 0.
const HEAD: usize = 2048;
const EXT: usize = 1024;
const EXT_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// The contents of a file system's superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// `ext4` or `xfs`.
    pub fstype: &'static str,
    /// Its UUID, in lower case with hyphens.
    pub uuid: String,
    /// Its size in bytes.
    pub bytes: u64,
    block: u64,
    /// The time of its last mount, in s; 0 if there was none, or it is not known.
    pub(super) mounted: u64,
    /// True if it was unmounted in order and has no known faults. Only that of ext4 tells.
    pub(super) clean: bool,
    /// Where ext4's block of multiple mount protection is, in bytes, if it has one.
    pub(super) mmp: Option<u64>,
}

impl Superblock {
    /// Reads the head of a device; `None` if it has neither file system.
    pub fn parse(head: &[u8]) -> Option<Self> {
        if big_endian(head, 0, 4)? == XFS_MAGIC {
            Self::xfs(head)
        } else if little_endian(head, EXT + 0x38, 2)? == EXT_MAGIC {
            Self::ext4(head)
        } else {
            None
        }
    }

    fn xfs(head: &[u8]) -> Option<Self> {
        let block = big_endian(head, 4, 4)?;
        let blocks = big_endian(head, 8, 8)?;
        let uuid = uuid(head.get(32..48)?)?;
        let bytes = blocks.checked_mul(block)?;
        Some(Self { fstype: "xfs", uuid, bytes, block, mounted: 0, clean: false, mmp: None })
    }

    fn ext4(head: &[u8]) -> Option<Self> {
        let field = |at: usize| little_endian(head, EXT + at, 4);
        // The upper half of the number of blocks counts with the feature "64bit" only.
        let features = field(0x60)?;
        let high = if features & 0x80 == 0 { 0 } else { field(0x150)? };
        let blocks = high << 32 | field(0x04)?;
        let shift = field(0x18).filter(|shift| *shift <= 6)?;
        let block = 1024 << shift;
        let mounted = field(0x2c)?;
        let uuid = uuid(head.get(EXT + 0x68..EXT + 0x78)?)?;
        let bytes = blocks.checked_mul(block)?;
        // Unmounted in order, without a known error.
        let state = little_endian(head, EXT + 0x3a, 2)? & 0b11 == 0b01;
        let has_journal_to_replay = features & 0x4 != 0;
        // Files that were deleted while they were open, in a list or in a file.
        let has_orphans = field(0xe8)? != 0 || field(0x64)? & 0x1_0000 != 0;
        let clean = state && !has_journal_to_replay && !has_orphans && field(0x194)? == 0;
        let mmp = match features & 0x100 {
            0 => None,
            _ => Some(little_endian(head, EXT + 0x168, 8)?.checked_mul(block)?),
        };
        Some(Self { fstype: "ext4", uuid, bytes, block, mounted, clean, mmp })
    }

    /// Reads a device, as far as the host sees it.
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

    /// True if it is the file system with this UUID.
    pub fn is(&self, fstype: &str, uuid: &str) -> bool {
        self.fstype == fstype && self.uuid.eq_ignore_ascii_case(uuid)
    }

    /// True if a device of this size has no room for one more block.
    pub fn fills(&self, size: u64) -> bool {
        size < self.bytes.saturating_add(self.block)
    }
}

fn big_endian(head: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = head.get(at..at + length)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

pub(super) fn little_endian(head: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = head.get(at..at + length)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn uuid(bytes: &[u8]) -> Option<String> {
    Some(uuid::Uuid::from_slice(bytes).ok()?.hyphenated().to_string())
}

/// The size in bytes of a block device, or of a file in its place.
///
/// # Errors
/// The device cannot be opened, or does not tell its size.
pub(crate) fn device_size(device: &Path) -> io::Result<u64> {
    File::open(device)?.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_head_of_a_device_may_be_anything(
            mut head in proptest::collection::vec(any::<u8>(), 0..2100),
            magic in 0..3,
        ) {
            let (at, magic): (usize, &[u8]) = match magic {
                0 => (0, b"XFSB"),
                1 => (EXT + 0x38, b"\x53\xef"),
                _ => (0, b""),
            };
            if let Some(place) = head.get_mut(at..at + magic.len()) {
                place.copy_from_slice(magic);
            }
            let _ = Superblock::parse(&head);
        }
    }
}
