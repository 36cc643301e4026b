//! Compares the entry of a volume with its record and its device, and repairs it.
//!
//! Kata's Go runtime shares the host's directory if it cannot read an entry. So an entry that
//! exists proves nothing.

use std::io;
use std::os::unix::fs::MetadataExt;

use super::mount_info::{Content, FILE, MountInfo, MountInfoError, Root};
use crate::records::published::Published;

/// The state of a published volume's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The same as in the record.
    Same,
    /// It is not there.
    Missing,
    /// The volume's own, and not what the record says.
    Damaged(String),
    /// Somebody else's.
    Foreign(String),
}

/// Compares the entry of a published volume with its record. It waits for nobody.
///
/// # Errors
/// The file system's.
pub fn compare(root: &Root, record: &Published) -> Result<EntryState, MountInfoError> {
    let wanted = MountInfo::of(record);
    Ok(match root.content(&record.target)? {
        Content::Nothing => EntryState::Missing,
        Content::Bare(_) => EntryState::Damaged(format!("it has no {FILE}")),
        Content::Unreadable(why) => {
            EntryState::Damaged(format!("its {FILE} cannot be read: {why}"))
        }
        Content::Alien(why) => EntryState::Foreign(format!("it {why}")),
        Content::Whole(there) if there == wanted => EntryState::Same,
        Content::Whole(there) if there.is_of(&record.driver, &record.volume_id) => {
            EntryState::Damaged(difference(&there, &wanted))
        }
        Content::Whole(there) => EntryState::Foreign(format!("it {}", there.owner())),
    })
}

/// Publishes the entry of a volume, or writes it again if it is damaged. The ids of the sandboxes
/// in it stay.
///
/// # Errors
/// Somebody else's entry is there, or the file system's.
pub fn restore(root: &Root, record: &Published) -> Result<(), MountInfoError> {
    let wanted = MountInfo::of(record);
    match compare(root, record)? {
        EntryState::Same => Ok(()),
        EntryState::Missing => root.publish(&record.target, &wanted),
        EntryState::Damaged(_) => root.replace(&record.target, &wanted),
        EntryState::Foreign(by) => Err(root.taken(&record.target, by)),
    }
}

fn difference(there: &MountInfo, wanted: &MountInfo) -> String {
    let is = |what, there: &str, wanted: &str| {
        format!("it says {what} {there:?}, and the record {wanted:?}")
    };
    if there.device != wanted.device {
        is("device", &there.device, &wanted.device)
    } else if there.volume_type != wanted.volume_type {
        is("volume-type", &there.volume_type, &wanted.volume_type)
    } else if there.fstype != wanted.fstype {
        is("fstype", &there.fstype, &wanted.fstype)
    } else if there.options != wanted.options {
        is("options", &there.options.join(","), &wanted.options.join(","))
    } else {
        "its metadata is not the record's".into()
    }
}

/// The state of a volume's device path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePath {
    /// The device that was handed over, as far as its number tells.
    Same,
    /// Nothing.
    Gone,
    /// Another device.
    Another,
}

/// Looks at the path of a volume's device, without an open.
///
/// # Errors
/// The file system's.
pub fn device(record: &Published) -> io::Result<DevicePath> {
    match std::fs::metadata(&record.device) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DevicePath::Gone),
        // 0 is the number of no device.
        meta => {
            let is_same = record.number == 0 || meta?.rdev() == record.number;
            Ok(if is_same { DevicePath::Same } else { DevicePath::Another })
        }
    }
}

#[cfg(test)]
mod tests;
