//! The journal of a volume's content on this node, one file per volume: whether formatting was
//! begun, and ended.
//!
//! It belongs to a volume, by driver and id, never to a device, whose name and number are reused.
//! It is durable before mkfs runs, so the remains of mkfs are recognised.

use std::io;
use std::path::{Path, PathBuf};

use proto::host::files;
use proto::host::files::{Unread, make_private, name};
use proto::host::publish::{Existing, publish};
use serde::{Deserialize, Serialize};

/// The known state of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Content {
    /// It was blank, and mkfs was about to run or ran. Nobody ever got it.
    Formatting {
        /// The UUID that mkfs was told.
        uuid: String,
        /// The device's size then, in bytes.
        size: u64,
    },
    /// It has a file system, which may have been handed over.
    Ready {
        /// The file system's UUID.
        uuid: String,
        /// Two guests may have had it since it was checked, so the next check trusts nothing.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        suspect: bool,
    },
}

#[derive(Serialize, Deserialize)]
struct JournalEntry {
    driver: String,
    volume_id: String,
    #[serde(flatten)]
    content: Content,
}

/// The journal of one volume.
#[derive(Clone, Debug)]
pub struct Journal {
    path: PathBuf,
    driver: String,
    volume_id: String,
}

impl Journal {
    /// The journal of a volume below a state directory.
    pub fn of(state: &Path, driver: &str, volume_id: &str) -> Self {
        let file = format!("{}.json", name(&[driver.as_bytes(), volume_id.as_bytes()]));
        let path = state.join("direct").join("volumes").join(file);
        Self { path, driver: driver.to_owned(), volume_id: volume_id.to_owned() }
    }

    /// The volume's content; `None` if nothing was ever done to it here.
    ///
    /// # Errors
    /// It cannot be read, so nothing may be done to the volume.
    pub fn read(&self) -> io::Result<Option<Content>> {
        let text = match files::read(&self.path) {
            Err(Unread::Missing) => return Ok(None),
            text => text?,
        };
        let entry: JournalEntry = serde_json::from_slice(&text).map_err(io::Error::other)?;
        if (entry.driver, entry.volume_id) != (self.driver.clone(), self.volume_id.clone()) {
            return Err(io::Error::other("it is another volume's"));
        }
        Ok(Some(entry.content))
    }

    /// Makes the content's state durable.
    ///
    /// # Errors
    /// The file system's; the older entry stays.
    pub fn write(&self, content: Content) -> io::Result<()> {
        if let Some(parent) = self.path.parent() {
            make_private(parent)?;
        }
        let entry = JournalEntry {
            driver: self.driver.clone(),
            volume_id: self.volume_id.clone(),
            content,
        };
        publish(&self.path, &serde_json::to_vec_pretty(&entry)?, 0o600, Existing::Replace)
    }

    /// Removes the journal, if there is one. The volume must be deleted.
    ///
    /// # Errors
    /// The file system's.
    pub fn forget(&self) -> io::Result<()> {
        files::remove(&self.path)
    }

    /// Notes durably that two guests may have had the volume at once.
    ///
    /// # Errors
    /// The entry cannot be read or written; the older one stays.
    pub fn suspect(&self) -> io::Result<()> {
        match self.read()? {
            Some(Content::Ready { uuid, suspect: false }) => {
                self.write(Content::Ready { uuid, suspect: true })
            }
            Some(Content::Ready { suspect: true, .. } | Content::Formatting { .. }) | None => {
                Ok(())
            }
        }
    }

    /// The label of a file system of this volume that is not finished. Every node that sees it
    /// knows that nobody got the volume, because the label goes before the volume is handed over.
    /// It has 12 characters, the limit of XFS.
    pub fn mark(&self) -> String {
        let name = name(&[b"formatting", self.driver.as_bytes(), self.volume_id.as_bytes()]);
        format!("ec{}", name.get(..10).unwrap_or_default())
    }
}

/// True if a label is some volume's [`Journal::mark`].
pub fn is_mark(label: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    label.strip_prefix("ec").is_some_and(|rest| rest.len() == 10 && rest.bytes().all(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_one_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::of(dir.path(), "d", "v");
        assert_eq!(journal.read().unwrap(), None);
        let formatting = Content::Formatting { uuid: "u".into(), size: 7 };
        journal.write(formatting.clone()).unwrap();
        assert_eq!(Journal::of(dir.path(), "d", "v").read().unwrap(), Some(formatting));
        journal.suspect().unwrap();
        let ready = |suspect| Content::Ready { uuid: "u".into(), suspect };
        journal.write(ready(false)).unwrap();
        assert_eq!(journal.read().unwrap(), Some(ready(false)));
        journal.suspect().unwrap();
        assert_eq!(journal.read().unwrap(), Some(ready(true)));
        assert_eq!(Journal::of(dir.path(), "dv", "").read().unwrap(), None);
        assert_eq!(journal.mark().len(), 12);
        assert!(is_mark(&journal.mark()));
        for other in ["", "ec012345678", "ec012345678g", "ex0123456789", "ec01234567890"] {
            assert!(!is_mark(other), "{other}");
        }
        assert_ne!(journal.mark(), Journal::of(dir.path(), "d", "w").mark());
    }

    #[test]
    fn a_journal_that_cannot_be_read_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let one = Journal::of(dir.path(), "d", "v");
        let other = Journal::of(dir.path(), "d", "w");
        one.write(Content::Ready { uuid: "u".into(), suspect: false }).unwrap();
        std::fs::rename(&one.path, &other.path).unwrap();
        assert!(other.read().unwrap_err().to_string().contains("another volume's"));
        publish(&one.path, b"{", 0o600, Existing::Replace).unwrap();
        let cut = one.read().unwrap_err().to_string();
        assert!(cut.contains("EOF"), "{cut}");
    }
}
