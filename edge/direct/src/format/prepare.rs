//! Prepares a device's file system before a guest gets it: formats what is blank, continues what
//! was begun, and touches nothing else.
//!
//! Two marks survive a crash. The journal is durable before mkfs runs. A label on the device comes
//! with the superblock and goes only after the check and the sync. So a volume with its label was
//! never handed over, whichever node sees it. `docs/design/direct-volumes.md` has each step.

use std::io;
use std::path::Path;

use proto::csi::direct::{Blank, FileSystem, Fsck};
use tracing::{info, warn};
use uuid::Uuid;

use super::probe::{ProbeError, Seen, Signature, probe};
use super::superblock::Superblock;
use super::tool;
use super::tool::{LONG, SHORT, ToolError};
use crate::records::journal::{Content, Journal, is_mark};

/// The most lines of e2fsck that are logged.
const REPAIRS: usize = 30;

/// The settings of the class.
#[derive(Clone, Copy, Debug)]
pub struct FormatSettings<'a> {
    /// The file system; none means the one found, and ext4 if there is none.
    pub file_system: Option<FileSystem>,
    /// Further options for mkfs.
    pub mkfs: &'a [String],
    /// The definition of a blank device.
    pub blank: Blank,
    /// The check of a file system that was used before.
    pub fsck: Fsck,
}

/// A file system that can be handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The kind of file system.
    pub file_system: FileSystem,
    /// Its UUID.
    pub uuid: String,
}

/// The reason why a device has no file system to hand over.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The content of the device is not known.
    #[error("the device cannot be looked at")]
    Probe(#[from] ProbeError),
    /// The volume's history is not known, or cannot be kept.
    #[error(
        "the volume's journal cannot be used, so its content is not touched; is the state \
         directory whole?"
    )]
    Journal(#[source] io::Error),
    /// A content that is never handed over.
    #[error("it holds {0}, which is neither ext4 nor xfs; it is neither formatted nor handed over")]
    Foreign(String),
    /// Another file system than the claim wants.
    #[error("it holds {there}, and {wanted} is asked for; it is not formatted: ask for {there}")]
    OtherFileSystem {
        /// The file system found.
        there: &'static str,
        /// The requested file system.
        wanted: &'static str,
    },
    /// Content without a signature.
    #[error(
        "it has no signature and is not empty, so it is not formatted; if the driver hands out \
         space as the last volume left it, set edge-csi.io/direct-blank: unsigned in the class, \
         else wipe it"
    )]
    NotBlank,
    /// The recorded file system is gone.
    #[error(
        "it had the file system {0} and has none now, so it is not formatted: it is another \
         device, or has lost its content. If that is meant, remove the volume's journal, the \
         file in direct/volumes of csi-edge's state that names it"
    )]
    Lost(String),
    /// Another file system than the volume had.
    #[error(
        "it had the file system {then} and has {now} now: it is another device, or an older copy, \
         so it is neither checked nor handed over. If that is meant, remove the volume's journal, \
         the file in direct/volumes of csi-edge's state that names it"
    )]
    Another {
        /// The UUID then.
        then: String,
        /// The UUID now.
        now: String,
    },
    /// A copy of a volume whose formatting had not ended.
    #[error(
        "its label, {0}, says that it is a copy of another volume whose formatting had not ended; \
         there is nothing in it: delete it, and copy that volume once it was used"
    )]
    CopyOfUnfinished(String),
    /// The device's size differs from when formatting began.
    #[error(
        "formatting was begun with a size of {then} bytes and the device has {now}; is it another \
         one?"
    )]
    OtherSize {
        /// The size then.
        then: u64,
        /// The size now.
        now: u64,
    },
    /// A tool did not do its work.
    #[error("it has no file system that can be handed over; the next attempt goes on from here")]
    Tool(#[from] ToolError),
    /// It cannot be synced.
    #[error("it cannot be synced")]
    Sync(#[source] io::Error),
    /// mkfs made another file system than it was told to.
    #[error("mkfs made {0}, which is not what it was told; do its options contradict each other?")]
    NotAsRequested(String),
    /// A test's power cut.
    #[error("the power went at {0}")]
    Cut(&'static str),
}

/// Called before each step from which a crash must be survived. An error is a crash there.
pub type Steps<'a> = &'a (dyn Fn(&'static str) -> Result<(), FormatError> + Send + Sync);

/// The plan for a device.
#[derive(Debug, PartialEq, Eq)]
enum FormatPlan {
    /// It is blank.
    Format(FileSystem),
    /// Formatting was begun, and its remains are ours.
    Again(FileSystem),
    /// Only the end of the journal is missing.
    Finish(Ready),
    /// A file system that was there before.
    Use(Ready),
}

/// Brings the device to a file system that can be handed over.
///
/// # Errors
/// It has none, and why. The content is as before, unless formatting was begun.
pub async fn ready(
    device: &Path,
    journal: &Journal,
    wanted: FormatSettings<'_>,
    steps: Steps<'_>,
) -> Result<Ready, FormatError> {
    let seen = probe(device).await?;
    let known = journal.read().map_err(FormatError::Journal)?;
    let plan = plan(&seen, known.as_ref(), &journal.mark(), &wanted)?;
    let mut suspect = matches!(&known, Some(Content::Ready { suspect: true, .. }));
    let ready = match plan {
        FormatPlan::Format(file_system) => {
            make(device, &seen, journal, file_system, false, &wanted, steps).await?
        }
        FormatPlan::Again(file_system) => {
            make(device, &seen, journal, file_system, true, &wanted, steps).await?
        }
        FormatPlan::Finish(ready) => ready,
        FormatPlan::Use(ready) => {
            check_used(device, ready.file_system, wanted.fsck, suspect).await?;
            suspect &= wanted.fsck == Fsck::Never;
            ready
        }
    };
    steps("before the journal's end")?;
    let content = Content::Ready { uuid: ready.uuid.clone(), suspect };
    if known.as_ref() != Some(&content) {
        journal.write(content).map_err(FormatError::Journal)?;
    }
    steps("after the journal's end")?;
    Ok(ready)
}

/// Decides by the device and the journal. It is pure, and the only place that allows formatting.
fn plan(
    seen: &Seen,
    known: Option<&Content>,
    mark: &str,
    wanted: &FormatSettings<'_>,
) -> Result<FormatPlan, FormatError> {
    match (&seen.signature, known) {
        // The label goes before the journal is ready, so this is an older copy of the volume.
        (Some(found), Some(Content::Ready { uuid, .. })) if found.label == mark => {
            Err(FormatError::Lost(uuid.clone()))
        }
        // Whichever node began it: the label is this volume's and says that nobody got it.
        (Some(found), _) if found.label == mark => {
            Ok(FormatPlan::Again(wanted.file_system.unwrap_or_default()))
        }
        (Some(found), _) if is_mark(&found.label) => {
            Err(FormatError::CopyOfUnfinished(found.label.clone()))
        }
        // Another volume's content would go to the wrong pod.
        (Some(found), Some(Content::Ready { uuid, .. }))
            if !found.uuid.eq_ignore_ascii_case(uuid) =>
        {
            let now = if found.uuid.is_empty() { &found.kind } else { &found.uuid };
            Err(FormatError::Another { then: uuid.clone(), now: now.clone() })
        }
        (Some(found), Some(Content::Formatting { uuid, .. })) if found.uuid == *uuid => {
            there(found, wanted).map(FormatPlan::Finish)
        }
        (Some(found), _) => there(found, wanted).map(FormatPlan::Use),
        (None, Some(Content::Ready { uuid, .. })) => Err(FormatError::Lost(uuid.clone())),
        // It was blank then and has no signature now: mkfs had come so far.
        (None, Some(Content::Formatting { size, .. })) if *size == seen.size => {
            Ok(FormatPlan::Again(wanted.file_system.unwrap_or_default()))
        }
        (None, Some(Content::Formatting { size, .. })) => {
            Err(FormatError::OtherSize { then: *size, now: seen.size })
        }
        (None, None) if seen.zero || wanted.blank == Blank::Unsigned => {
            Ok(FormatPlan::Format(wanted.file_system.unwrap_or_default()))
        }
        (None, None) => Err(FormatError::NotBlank),
    }
}

/// The file system found, if it is one that is wanted.
fn there(found: &Signature, wanted: &FormatSettings<'_>) -> Result<Ready, FormatError> {
    let file_system: FileSystem =
        found.kind.parse().map_err(|_| FormatError::Foreign(found.kind.clone()))?;
    if let Some(other) = wanted.file_system.filter(|wanted| *wanted != file_system) {
        let there = file_system.as_str();
        let wanted = other.as_str();
        return Err(FormatError::OtherFileSystem { there, wanted });
    }
    Ok(Ready { file_system, uuid: found.uuid.clone() })
}

/// Makes a file system and checks it; the label of unfinished formatting goes last.
async fn make(
    device: &Path,
    seen: &Seen,
    journal: &Journal,
    file_system: FileSystem,
    again: bool,
    wanted: &FormatSettings<'_>,
    steps: Steps<'_>,
) -> Result<Ready, FormatError> {
    let uuid = Uuid::new_v4().to_string();
    let mark = journal.mark();
    steps("before the journal's beginning")?;
    let formatting = Content::Formatting { uuid: uuid.clone(), size: seen.size };
    journal.write(formatting).map_err(FormatError::Journal)?;
    steps("before mkfs")?;
    let shown = device.display();
    info!(device = %shown, file_system = file_system.as_str(), uuid, again, "formatting");
    mkfs(device, file_system, &uuid, &mark, wanted.mkfs, again).await?;
    steps("after mkfs")?;
    tool::sync(device).await.map_err(FormatError::Sync)?;
    let made = probe(device).await?.signature;
    let expected = Signature { kind: file_system.as_str().into(), uuid: uuid.clone(), label: mark };
    if made.as_ref() != Some(&expected) {
        let kind = made.map_or_else(|| "nothing".to_owned(), |made| made.kind);
        return Err(FormatError::NotAsRequested(kind));
    }
    match file_system {
        FileSystem::Ext4 => tool::succeed("e2fsck", ["-f", "-n"], device, LONG).await?,
        FileSystem::Xfs => tool::succeed("xfs_repair", ["-n"], device, LONG).await?,
    }
    steps("before the label goes")?;
    match file_system {
        FileSystem::Ext4 => tool::succeed("tune2fs", ["-L", ""], device, SHORT).await?,
        FileSystem::Xfs => tool::succeed("xfs_admin", ["-L", "--"], device, SHORT).await?,
    }
    steps("after the label went")?;
    tool::sync(device).await.map_err(FormatError::Sync)?;
    Ok(Ready { file_system, uuid })
}

async fn mkfs(
    device: &Path,
    file_system: FileSystem,
    uuid: &str,
    mark: &str,
    options: &[String],
    again: bool,
) -> Result<(), ToolError> {
    let mut args: Vec<String> = Vec::new();
    // Without force, mkfs refuses a device in use. mkfs.xfs also refuses content; mkfs.ext4 does
    // not, when nobody can answer it.
    let (tool, force) = match file_system {
        FileSystem::Ext4 => {
            // As the kubelet does: no blocks are reserved for root. A later -m of the class
            // overrides this.
            args.extend(["-q", "-m", "0", "-U", uuid].map(str::to_owned));
            ("mkfs.ext4", "-F")
        }
        FileSystem::Xfs => {
            args.extend(["-q".to_owned(), "-m".to_owned(), format!("uuid={uuid}")]);
            ("mkfs.xfs", "-f")
        }
    };
    args.extend(["-L".to_owned(), mark.to_owned()]);
    args.extend(again.then(|| force.to_owned()));
    args.extend(options.iter().cloned());
    tool::succeed(tool, args, device, LONG).await
}

/// Repairs what is safe to repair in a used file system. XFS replays its log when it is mounted.
///
/// What says of itself that it is clean is read whole only if it is suspect: that can take longer
/// than a kubelet waits. With multiple mount protection e2fsck would wait 11 s to say so.
async fn check_used(
    device: &Path,
    file_system: FileSystem,
    fsck: Fsck,
    suspect: bool,
) -> Result<(), FormatError> {
    if fsck == Fsck::Never || file_system == FileSystem::Xfs {
        return Ok(());
    }
    let path = device.to_owned();
    let found = tokio::task::spawn_blocking(move || Superblock::at(&path)).await;
    let found = found.map_err(io::Error::other).flatten().map_err(ProbeError::Unreadable)?;
    if !suspect && found.is_some_and(|found| found.clean && found.mmp.is_some()) {
        return Ok(());
    }
    let how: &[_] = if suspect { &["-f", "-p"] } else { &["-p"] };
    let output = tool::run("e2fsck", how, device, LONG).await?;
    // 1: errors were corrected; 2: and a mounted file system needs a reboot, which this one is not.
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1..=3) => {
            let shown = device.display();
            let repaired = tool::said(&output.stdout, REPAIRS);
            warn!(device = %shown, repaired, "e2fsck repaired it");
            Ok(())
        }
        _ => Err(tool::failed("e2fsck", &output).into()),
    }
}

#[cfg(test)]
mod tests;
