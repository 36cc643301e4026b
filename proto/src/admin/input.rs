//! What an operator gives a command: a file, or standard input.

use std::io;
use std::io::{Read, Stdin};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};

/// The name of standard input.
const STDIN: &str = "-";
/// Whether standard input was read: a second file would be empty.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// True if the name of a file is that of standard input.
pub fn is_stdin(file: &Path) -> bool {
    file == Path::new(STDIN)
}

/// Standard input, which can be one of a command's files.
///
/// # Errors
/// Another one took it.
pub fn stdin() -> anyhow::Result<Stdin> {
    take(&IS_TAKEN)
}

fn take(is_taken: &AtomicBool) -> anyhow::Result<Stdin> {
    ensure!(
        !is_taken.swap(true, Ordering::Relaxed),
        "only one file can be -, standard input; give the others by their paths"
    );
    Ok(io::stdin())
}

/// Reads a text file; `-` is standard input.
///
/// # Errors
/// It cannot be read, is not UTF-8, or is standard input for the second time.
pub fn read(file: &Path) -> anyhow::Result<String> {
    if is_stdin(file) {
        return read_all(&mut stdin()?);
    }
    std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

fn read_all(stdin: &mut impl Read) -> anyhow::Result<String> {
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
        assert_eq!(read(&file).unwrap(), "of a file");
        assert_eq!(read_all(&mut &b"of stdin"[..]).unwrap(), "of stdin");
        assert!(is_stdin(Path::new("-")) && !is_stdin(&file));
        let missing = read(&dir.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("none cannot be read"), "{missing}");
    }

    #[test]
    fn standard_input_is_one_file_only() {
        let is_taken = AtomicBool::new(false);
        take(&is_taken).unwrap();
        let again = take(&is_taken).unwrap_err().to_string();
        assert!(again.contains("only one file can be -"), "{again}");
    }
}
