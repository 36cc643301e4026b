//! What an operator gives a command: a file, or standard input.

use std::io;
use std::io::Read;
use std::path::Path;

use anyhow::Context;

/// The name of standard input.
const STDIN: &str = "-";

/// Reads a text file; `-` is standard input.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn read(file: &Path) -> anyhow::Result<String> {
    read_from(file, &mut io::stdin())
}

fn read_from(file: &Path, stdin: &mut impl Read) -> anyhow::Result<String> {
    if file != Path::new(STDIN) {
        return std::fs::read_to_string(file)
            .with_context(|| format!("{} cannot be read", file.display()));
    }
    let mut text = String::new();
    stdin.read_to_string(&mut text).context("standard input cannot be read")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::publish::{Existing, publish};

    #[test]
    fn a_file_is_read_or_standard_input() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        publish(&file, b"of a file", 0o600, Existing::Keep).unwrap();
        let mut stdin = &b"of stdin"[..];
        assert_eq!(read_from(&file, &mut stdin).unwrap(), "of a file");
        assert_eq!(read_from(Path::new("-"), &mut stdin).unwrap(), "of stdin");
        let missing = read_from(&dir.path().join("none"), &mut stdin).unwrap_err();
        assert!(missing.to_string().contains("none cannot be read"), "{missing}");
    }
}
