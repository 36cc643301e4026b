//! Names and directories of records.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// A file name for these bytes together: 32 hexadecimal digits, different for each list of parts.
pub(crate) fn name(parts: &[&[u8]]) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        // The lengths keep two lists of parts from being one text.
        hash.update(&part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finish().as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Creates a directory and its parents, for root alone.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}
