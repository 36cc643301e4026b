//! Probes what is on a device: a signature, zeroes, or other bytes. Read-only.
//!
//! blkid also answers "nothing found" for what it cannot read or open. So all that it looks at is
//! read here too, and it is asked twice. An unreadable device is an error, never blank.

use std::fs::File;
use std::io;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

use super::tool;
use super::tool::{SHORT, ToolError};
use crate::records::journal::is_mark;

/// The bytes at the start and at the end that must be zeroes in a blank device.
const EDGE: u64 = 1024 * 1024;
/// The bytes at the start in which signatures lie: LUKS has copies of its header up to 4 MiB.
const HEAD: u64 = 5 * EDGE;

/// The reason why the content is not known.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The device cannot be read.
    #[error("it cannot be read where signatures lie, so it is not taken for blank")]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    let Edges { size, zero, begins } = aside(device, edges).await?;
    if size == 0 {
        return Err(ProbeError::Empty);
    }
    let head = aside(device, move |device| head(&File::open(device)?, size));
    let signature = surely(|| ask(device), head).await?;
    match begins {
        // What is no mark is not the remains of an mkfs of ours.
        Some((kind, label)) if signature.is_none() && !is_mark(&label) => {
            Err(ProbeError::Torn(kind))
        }
        _ => Ok(Seen { size, zero, signature }),
    }
}

/// Reads a device on a thread of its own: it may be slow, and other calls must not wait for it.
async fn aside<T: Send + 'static>(
    device: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, ProbeError> {
    let path = device.to_owned();
    let read = tokio::task::spawn_blocking(move || read(&path)).await.map_err(io::Error::other);
    read.and_then(|read| read).map_err(ProbeError::Unreadable)
}

/// The signature, or none if blkid finds none twice and the head can be read in between. A read may
/// have failed for blkid alone, for a moment.
async fn surely<F>(
    ask: impl Fn() -> F,
    head: impl Future<Output = Result<(), ProbeError>>,
) -> Result<Option<Signature>, ProbeError>
where
    F: Future<Output = Result<Option<Signature>, ProbeError>>,
{
    if let Some(found) = ask().await? {
        return Ok(Some(found));
    }
    head.await?;
    ask().await
}

/// Asks blkid for the signature. None is its word alone: a failed read has the same exit code.
async fn ask(device: &Path) -> Result<Option<Signature>, ProbeError> {
    answer(&tool::run("blkid", ["-p", "-o", "export", "--"], device, SHORT).await?)
}

/// Evaluates blkid's answer. "Nothing" has no text; some failures have the same code and a text.
fn answer(output: &Output) -> Result<Option<Signature>, ProbeError> {
    match output.status.code() {
        Some(0) => Ok(Some(signature(&String::from_utf8_lossy(&output.stdout)))),
        Some(2) if output.stdout.is_empty() && output.stderr.is_empty() => Ok(None),
        Some(8) => Err(ProbeError::Ambivalent),
        _ => Err(tool::failed("blkid", output).into()),
    }
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

/// Reads the head of a device, in which blkid looks for signatures.
fn head(device: &impl FileExt, size: u64) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(EDGE).unwrap_or(0)];
    let end = HEAD.min(size);
    let mut at = 0;
    while at < end {
        let part = usize::try_from(EDGE.min(end - at)).unwrap_or(0);
        let Some(part) = buffer.get_mut(..part) else { break };
        device.read_exact_at(part, at)?;
        at += EDGE;
    }
    Ok(())
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
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::future::ready;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

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

    /// A device with a bad sector.
    struct BadAt(u64);

    impl FileExt for BadAt {
        fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
            let end = at + u64::try_from(buffer.len()).unwrap();
            if (at..end).contains(&self.0) {
                return Err(io::Error::other("a bad sector"));
            }
            Ok(buffer.len())
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            panic!("it is written to")
        }
    }

    #[test]
    fn wherever_blkid_looks_a_bad_sector_is_an_error() {
        for mib in [0, 1, 2, 4] {
            assert!(head(&BadAt(mib * EDGE), 64 * EDGE).is_err(), "{mib}");
        }
        head(&BadAt(6 * EDGE), 64 * EDGE).unwrap();
        // Beyond its end nothing can be read.
        head(&BadAt(4096), 4096).unwrap();
        assert!(head(&BadAt(4095), 4096).is_err());
    }

    #[tokio::test]
    async fn nothing_is_asked_twice_and_read_in_between() {
        let luks = Signature { kind: "crypto_LUKS".into(), ..Signature::default() };
        for second in [None, Some(luks)] {
            let answers = RefCell::new(VecDeque::from([None, second.clone()]));
            let ask = || ready(Ok(answers.borrow_mut().pop_front().unwrap()));
            assert_eq!(surely(ask, ready(Ok(()))).await.unwrap(), second);
            assert!(answers.borrow().is_empty());
        }
        let bad = ready(Err(ProbeError::Unreadable(io::Error::other("a bad sector"))));
        let seen = surely(|| ready(Ok(None)), bad).await;
        assert!(matches!(seen, Err(ProbeError::Unreadable(_))));
    }

    #[test]
    fn only_blkids_plain_word_is_nothing() {
        let ended = |code: i32, stdout: &str, stderr: &str| Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        assert_eq!(answer(&ended(2, "", "")).unwrap(), None);
        let failed = |output: Output| {
            let error = answer(&output).unwrap_err();
            assert!(matches!(error, ProbeError::Blkid(ToolError::Failed { .. })), "{error}");
        };
        failed(ended(2, "", "blkid: error: /dev/x: Input/output error\n"));
        failed(ended(2, "DEVNAME=/dev/x\n", ""));
        failed(ended(4, "", ""));
        // A signal ended it.
        failed(Output { status: ExitStatus::from_raw(9), ..ended(0, "", "") });
        assert!(matches!(answer(&ended(8, "", "")), Err(ProbeError::Ambivalent)));
        let found = answer(&ended(0, "DEVNAME=/dev/x\nTYPE=crypto_LUKS\n", "")).unwrap();
        assert_eq!(found.unwrap().kind, "crypto_LUKS");
    }

    #[test]
    fn a_partition_table_is_a_signature_and_so_is_what_has_no_name() {
        assert_eq!(signature("DEVNAME=x\nPTUUID=1\nPTTYPE=gpt\n").kind, "gpt");
        assert_eq!(signature("DEVNAME=x\nVERSION=1\n").kind, "unknown");
        let ext4 = signature("UUID=a-b\nLABEL=x=y\nTYPE=ext4\nPART_ENTRY_TYPE=z\n");
        assert_eq!((&*ext4.kind, &*ext4.uuid, &*ext4.label), ("ext4", "a-b", "x=y"));
    }
}
