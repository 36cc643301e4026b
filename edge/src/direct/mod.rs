//! Volumes that are handed to a VM runtime instead of being mounted on this host: `docs/direct-volumes.md`.
//!
//! The driver is asked for a block device, at a path of ours; it is formatted if it is blank, and never mounted here;
//! the runtime finds it by the contract's file. What the runtime can be asked for is in `runtime`.

pub mod format;
pub mod journal;
pub mod probe;
pub mod published;
mod tool;

/// A file's name for what these bytes name together: 32 hexadecimal digits that no other has.
pub(crate) fn name(parts: &[&[u8]]) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        // With their lengths, so that no two lists of parts are one text.
        hash.update(&part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finish().as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
