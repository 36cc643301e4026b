//! Direct volumes: what a class, or a PersistentVolume's attributes, say of one, and what of it a driver sees.
//!
//! The cloud reads it out of CreateVolume's parameters, and from then on it travels in the volume's context, so a
//! node needs nobody to know. Both ends refuse what they do not understand; neither guesses. A driver sees a block
//! volume and none of our keys; all else passes as it came.

use std::collections::BTreeMap;

pub use super::column::Places;
use super::types::VolumeCapability;
use super::types::volume_capability::AccessType;
use super::types::volume_capability::access_mode::Mode;
use super::wire;
use super::wire::Malformed;

mod keys;
pub use keys::{Access, Blank, Contradiction, Direct, FileSystem, Fsck, GroupChange, KEY, Kind};

/// What a filesystem volume is to be for its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The file system asked for; none leaves it to what is there, and to ext4 if nothing is.
    pub file_system: Option<FileSystem>,
    /// Its mount flags as they came.
    pub flags: Vec<String>,
    /// The group that is to own the files, as it came; empty for none.
    pub group: String,
}

impl Direct {
    /// What is asked for with a capability.
    ///
    /// # Errors
    /// It cannot be had directly.
    pub fn mount(&self, capability: &VolumeCapability) -> Result<Mount, Contradiction> {
        let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
        let mode = Mode::try_from(mode).unwrap_or(Mode::Unknown);
        match (mode, self.access) {
            (Mode::SingleNodeSingleWriter, _) => {}
            // What Kubernetes' sidecars send for ReadWriteOnce.
            (Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter, Access::ReadWriteOnce) => {}
            (Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter, Access::ReadWriteOncePod) => {
                return Err(Contradiction::SharedOnNode(mode.as_str_name()));
            }
            _ => return Err(Contradiction::Shared(mode.as_str_name())),
        }
        let Some(AccessType::Mount(mount)) = &capability.access_type else {
            return Err(Contradiction::Block);
        };
        let file_system = match mount.fs_type.as_str() {
            "" => None,
            name => Some(name.parse()?),
        };
        self.check_mkfs(file_system.unwrap_or_default())?;
        Ok(Mount { file_system, flags: mount.mount_flags.clone(), group: mount.volume_mount_group.clone() })
    }
}

// Numbers of fields in CSI's messages; the tests read with the generated code what is written with these.
const BLOCK: u32 = 1;
const MOUNT: u32 = 2;

/// What of a request's context, or parameters, is about direct volumes.
///
/// # Errors
/// The request is malformed.
pub fn asked(request: &[u8], places: Places) -> Result<BTreeMap<String, String>, Malformed> {
    let mut asked = BTreeMap::new();
    for field in wire::fields(request) {
        let field = field?;
        let Some(entry) = field.content.filter(|_| places.context.contains(&field.number)) else {
            continue;
        };
        let (key, value) = wire::read_entry(entry)?;
        if keys::is_ours(key) {
            asked.insert(key.to_owned(), value.to_owned());
        }
    }
    Ok(asked)
}

/// The request as a driver gets it: for a block volume, and without what is ours.
///
/// # Errors
/// The request is malformed.
pub fn for_driver(request: &[u8], places: Places) -> Result<Vec<u8>, Malformed> {
    let mut edited = Vec::with_capacity(request.len());
    for field in wire::fields(request) {
        let field = field?;
        match field.content {
            Some(capability) if field.number == places.capability => {
                wire::append(&mut edited, &[places.capability], &as_block(capability)?);
            }
            Some(entry)
                if places.context.contains(&field.number) && keys::is_ours(wire::read_entry(entry)?.0) => {}
            _ => edited.extend_from_slice(field.raw),
        }
    }
    Ok(edited)
}

/// A capability with block access in place of a mount; its access mode and what is newer than we are stay.
fn as_block(capability: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut edited = Vec::with_capacity(capability.len() + 2);
    for field in wire::fields(capability) {
        let field = field?;
        // One of a oneof is there; of several the last would count.
        if field.number != MOUNT && field.number != BLOCK {
            edited.extend_from_slice(field.raw);
        }
    }
    wire::append(&mut edited, &[BLOCK], &[]);
    Ok(edited)
}

/// ValidateVolumeCapabilities' answer as its caller sees it: what is confirmed is what was asked, and what the driver
/// has confirmed besides.
///
/// # Errors
/// The answer or the request is malformed.
pub fn into_validated(answer: &[u8], request: &[u8]) -> Result<Vec<u8>, Malformed> {
    // ValidateVolumeCapabilitiesResponse.confirmed, and the fields in it that were edited, with those of the request.
    const CONFIRMED: u32 = 1;
    const PAIRS: [(u32, u32); 3] = [(2, 1), (3, 2), (4, 3)];
    let confirm = |theirs: &[u8]| {
        let mut confirmed = Vec::new();
        for field in wire::fields(request) {
            let field = field?;
            let pair = PAIRS.iter().find(|(asked, _)| *asked == field.number);
            if let Some(((_, number), content)) = pair.zip(field.content) {
                wire::append(&mut confirmed, &[*number], content);
            }
        }
        for field in wire::fields(theirs) {
            let field = field?;
            if PAIRS.iter().all(|(_, number)| *number != field.number) {
                confirmed.extend_from_slice(field.raw);
            }
        }
        Ok(wire::Edit::Replace(confirmed))
    };
    Ok(wire::edit(answer, &[CONFIRMED], confirm)?.unwrap_or_else(|| answer.to_vec()))
}

/// CreateVolume's answer with what the class said put into the volume's context, which Kubernetes keeps.
pub fn into_created_volume(answer: &[u8], asked: &BTreeMap<String, String>) -> Vec<u8> {
    // CreateVolumeResponse.volume.volume_context
    const CONTEXT: [u32; 2] = [1, 3];
    let mut answer = answer.to_vec();
    for (key, value) in asked.iter().filter(|(key, _)| keys::is_ours(key)) {
        wire::append(&mut answer, &CONTEXT, &wire::entry(key, value));
    }
    answer
}

#[cfg(test)]
mod tests;
