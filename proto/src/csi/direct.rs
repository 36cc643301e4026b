//! Direct volumes: their settings in a class or a PersistentVolume, and their requests for the
//! driver.
//!
//! The cloud reads the settings from CreateVolume's parameters. After that they travel in the
//! volume's context, so a node needs no other source. Both ends refuse unknown settings. A driver
//! sees a block volume and none of our keys; all else passes as it came.

use std::collections::BTreeMap;

pub use super::column::Places;
use super::types::VolumeCapability;
use super::types::volume_capability::AccessType;
use super::types::volume_capability::access_mode::Mode;
use super::wire;
use super::wire::Malformed;

mod keys;
pub mod options;
pub use keys::{
    Access, Blank, Contradiction, DeviceKind, Direct, FileSystem, Fsck, GroupChange, KEY, NONE,
    OF_A_CLASS, decided, decision, is_auto, is_on, is_ordinary_since_before,
};

/// The file system of a volume, for its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The requested file system; none takes the existing one, or makes ext4.
    pub file_system: Option<FileSystem>,
    /// Its mount flags as they came.
    pub flags: Vec<String>,
    /// The group that shall own the files, as it came; empty for none.
    pub group: String,
}

impl Direct {
    /// The mount that a capability asks for.
    ///
    /// # Errors
    /// A direct volume cannot have it.
    pub fn mount(&self, capability: &VolumeCapability) -> Result<Mount, Contradiction> {
        let mode = capability.access_mode.as_ref().map_or(0, |mode| mode.mode);
        let mode = Mode::try_from(mode).unwrap_or(Mode::Unknown);
        match (mode, self.access) {
            (Mode::SingleNodeSingleWriter, _) => {}
            // Kubernetes' sidecars send this for ReadWriteOnce.
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
        options::for_guest(&mount.mount_flags, file_system.unwrap_or_default(), false)?;
        Ok(Mount {
            file_system,
            flags: mount.mount_flags.clone(),
            group: mount.volume_mount_group.clone(),
        })
    }
}

// Numbers of fields in CSI's messages; the tests check them against the generated code.
const BLOCK: u32 = 1;
const MOUNT: u32 = 2;

/// The settings of direct volumes in a request's context or parameters.
///
/// # Errors
/// The request is malformed.
pub fn settings(request: &[u8], places: Places) -> Result<BTreeMap<String, String>, Malformed> {
    let mut settings = BTreeMap::new();
    for field in wire::fields(request) {
        let field = field?;
        let Some(entry) = field.content.filter(|_| places.context.contains(&field.number)) else {
            continue;
        };
        let (key, value) = wire::read_entry(entry)?;
        if keys::is_ours(key) {
            settings.insert(key.to_owned(), value.to_owned());
        }
    }
    Ok(settings)
}

/// The request for the driver: for a block volume, and without our keys.
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
                if places.context.contains(&field.number)
                    && keys::is_ours(wire::read_entry(entry)?.0) => {}
            _ => edited.extend_from_slice(field.raw),
        }
    }
    Ok(edited)
}

/// The request without our keys in its context; none if it has none.
///
/// # Errors
/// The request is malformed.
pub fn without_settings(request: &[u8], places: Places) -> Result<Option<Vec<u8>>, Malformed> {
    if settings(request, places)?.is_empty() {
        return Ok(None);
    }
    let mut edited = Vec::with_capacity(request.len());
    for field in wire::fields(request) {
        let field = field?;
        let entry = field.content.filter(|_| places.context.contains(&field.number));
        match entry {
            Some(entry) if keys::is_ours(wire::read_entry(entry)?.0) => {}
            _ => edited.extend_from_slice(field.raw),
        }
    }
    Ok(Some(edited))
}

/// A capability with block access in place of a mount; access mode and unknown fields stay.
fn as_block(capability: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut edited = Vec::with_capacity(capability.len() + 2);
    for field in wire::fields(capability) {
        let field = field?;
        // Both are of one oneof, of which the last counts.
        if field.number != MOUNT && field.number != BLOCK {
            edited.extend_from_slice(field.raw);
        }
    }
    wire::append(&mut edited, &[BLOCK], &[]);
    Ok(edited)
}

/// ValidateVolumeCapabilities' answer for its caller.
///
/// It confirms the capabilities and context of the request in place of the edited ones, and all
/// else that the driver confirmed.
///
/// # Errors
/// The answer or the request is malformed.
pub fn into_validated(answer: &[u8], request: &[u8]) -> Result<Vec<u8>, Malformed> {
    // ValidateVolumeCapabilitiesResponse.confirmed, and its edited fields after those of the
    // request.
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

/// CreateVolume's answer with the settings in the volume's context, which Kubernetes keeps.
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
