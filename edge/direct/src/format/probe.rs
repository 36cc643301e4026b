//! Probes what is on a device: a signature, zeroes, or other bytes. Read-only.
//!
//! blkid also answers "nothing found" for what it cannot read. So the start and the end are read
//! here first, and an unreadable device is an error, never blank.

use std::fs::File;
use std::io;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::tool;
use super::tool::{SHORT, ToolError};
use crate::records::journal::is_mark;

/// The bytes read at the start and at the end; all known signatures lie there.
const EDGE: u64 = 1024 * 1024;

/// The reason why the content is not known.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The device cannot be read.
    #[error("its start and end cannot be read, so it is not taken for blank")]
    Unreadable(#[source] io::Error),
    /// It has no content at all.
    #[error("the device has a size of 0")]
    Empty,
    /// blkid does not answer.
    #[error("it is not known what is on it")]
    Blkid(#[from] ToolError),
    /// A file system that blkid does not recognise.
    #[error(
        "it begins as {0} does, and is not whole enough to be known again; it is not taken for \
         blank"
    )]
    Torn(&'static str),
    /// Several signatures that contradict each other.
    #[error("it has several signatures that contradict each other; look at it with wipefs")]
    Ambivalent,
}

/// A signature on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// For example `ext4`, `LVM2_member`, or the type of a partition table.
    pub kind: String,
    /// Its UUID; empty if it has none.
    pub uuid: String,
    /// Its label; empty if it has none.
    pub label: String,
}

/// The content of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its size in bytes.
    pub size: u64,
    /// True if its start and end are zeroes.
    pub zero: bool,
    /// Its signature, if it has one.
    pub signature: Option<Signature>,
}

/// Probes a device, or an image of one.
///
/// # Errors
/// The content is not known, so it must not be taken for blank.
pub async fn probe(device: &Path) -> Result<Seen, ProbeError> {
    let path = device.to_owned();
    // A device may be slow, and other calls must not wait for it.
    let edges = tokio::task::spawn_blocking(move || edges(&path)).await.map_err(io::Error::other);
    let Edges { size, zero, begins } =
        edges.and_then(|edges| edges).map_err(ProbeError::Unreadable)?;
    if size == 0 {
        return Err(ProbeError::Empty);
    }
    let output = tool::run("blkid", ["-p", "-o", "export", "--"], device, SHORT).await?;
    let signature = match output.status.code() {
        Some(0) => Some(signature(&String::from_utf8_lossy(&output.stdout))),
        Some(2) => match begins {
            Some((kind, label)) if !is_mark(&label) => return Err(ProbeError::Torn(kind)),
            // The remains of an mkfs of ours, or nothing.
            _ => None,
        },
        Some(8) => return Err(ProbeError::Ambivalent),
        _ => return Err(tool::failed("blkid", &output).into()),
    };
    Ok(Seen { size, zero, signature })
}

/// The result of the first reads.
struct Edges {
    /// The device's size.
    size: u64,
    /// True if its start and end are zeroes.
    zero: bool,
    /// The file system that it begins with, and its label.
    begins: Option<(&'static str, String)>,
}

fn edges(device: &Path) -> io::Result<Edges> {
    let mut file = File::open(device)?;
    let size = file.seek(SeekFrom::End(0))?;
    let mut buffer = vec![0; usize::try_from(EDGE.min(size)).unwrap_or(0)];
    file.read_exact_at(&mut buffer, 0)?;
    let begins = begins(&buffer);
    let mut zero = buffer.iter().all(|byte| *byte == 0);
    file.read_exact_at(&mut buffer, size.saturating_sub(EDGE))?;
    zero &= buffer.iter().all(|byte| *byte == 0);
    Ok(Edges { size, zero, begins })
}

/// The file system whose magic number is in place, intact or not, and its label.
fn begins(start: &[u8]) -> Option<(&'static str, String)> {
    const EXT: (usize, &[u8]) = (1080, &[0x53, 0xef]);
    const XFS: (usize, &[u8]) = (0, b"XFSB");
    let is =
        |(at, magic): (usize, &[u8])| start.get(at..).is_some_and(|there| there.starts_with(magic));
    let (kind, label) = match () {
        () if is(EXT) => ("ext4", start.get(1144..1160)?),
        () if is(XFS) => ("xfs", start.get(108..120)?),
        () => return None,
    };
    let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
    Some((kind, String::from_utf8_lossy(label).into_owned()))
}

/// Reads blkid's lines of `NAME=value`.
fn signature(text: &str) -> Signature {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().to_owned()
    };
    let kind = [value("TYPE"), value("PTTYPE")].into_iter().find(|kind| !kind.is_empty());
    // blkid found something, even without a type.
    let kind = kind.unwrap_or_else(|| "unknown".to_owned());
    Signature { kind, uuid: value("UUID"), label: value("LABEL") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(size: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        file
    }

    #[tokio::test]
    async fn zeroes_bytes_and_signatures_are_told_apart() {
        let file = image(8 * EDGE);
        let blank = probe(file.path()).await.unwrap();
        assert_eq!(blank, Seen { size: 8 * EDGE, zero: true, signature: None });
        // A file system would have changed something beyond the edges; at the edges every byte
        // counts.
        for at in [0, EDGE - 1, 7 * EDGE, 8 * EDGE - 1] {
            file.as_file().write_all_at(b"x", at).unwrap();
            assert_eq!(
                probe(file.path()).await.unwrap(),
                Seen { zero: false, ..blank.clone() },
                "{at}"
            );
            file.as_file().write_all_at(b"\0", at).unwrap();
        }
        let swap = image(8 * EDGE);
        std::process::Command::new("mkswap").arg(swap.path()).output().unwrap();
        assert_eq!(probe(swap.path()).await.unwrap().signature.unwrap().kind, "swap");
    }

    #[test]
    fn a_beginning_of_a_file_system_is_known_without_blkid() {
        let mut start = vec![0; 4096];
        assert_eq!(begins(&start), None);
        assert_eq!(begins(&start[..1000]), None);
        start[1080..1082].copy_from_slice(&[0x53, 0xef]);
        start[1144..1147].copy_from_slice(b"abc");
        assert_eq!(begins(&start), Some(("ext4", "abc".to_owned())));
        let mut start = vec![0; 4096];
        start[..4].copy_from_slice(b"XFSB");
        start[108..120].copy_from_slice(b"ec0123456789");
        assert_eq!(begins(&start), Some(("xfs", "ec0123456789".to_owned())));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_never_blank() {
        let file = image(0);
        assert!(matches!(probe(file.path()).await, Err(ProbeError::Empty)));
        let path = file.path().to_owned();
        drop(file);
        assert!(matches!(probe(&path).await, Err(ProbeError::Unreadable(_))));
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(probe(dir.path()).await, Err(ProbeError::Unreadable(_))));
    }

    #[test]
    fn a_partition_table_is_a_signature_and_so_is_what_has_no_name() {
        assert_eq!(signature("DEVNAME=x\nPTUUID=1\nPTTYPE=gpt\n").kind, "gpt");
        assert_eq!(signature("DEVNAME=x\nVERSION=1\n").kind, "unknown");
        let ext4 = signature("UUID=a-b\nLABEL=x=y\nTYPE=ext4\nPART_ENTRY_TYPE=z\n");
        assert_eq!((&*ext4.kind, &*ext4.uuid, &*ext4.label), ("ext4", "a-b", "x=y"));
    }
}
