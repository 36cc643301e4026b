//! Names, directories and contents of the files that keep records.

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The largest size of a state file, in bytes.
pub const LONGEST: u64 = 1 << 20;

/// The reason why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// There is none.
    #[error("there is none")]
    Missing,
    /// Something else has its name: a symlink, a directory, a FIFO, a socket or a device.
    #[error("it is no regular file")]
    NoFile,
    /// It is larger than any state file.
    #[error("it has more than {LONGEST} bytes")]
    TooLong,
    /// The file system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Unread> for io::Error {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Missing => io::ErrorKind::NotFound.into(),
            Unread::Io(error) => error,
            other => Self::other(other),
        }
    }
}

/// Reads a regular file. It waits for nobody: an ordinary open of a FIFO lasts until a writer
/// comes. The type is that of the open file, so nothing is put in its place meanwhile.
///
/// # Errors
/// There is none, it is something else or too long, or the file system's.
pub fn read(path: &Path) -> Result<Vec<u8>, Unread> {
    // A socket or a device without a driver cannot be opened at all.
    match std::fs::symlink_metadata(path) {
        Err(error) if is_missing(&error) => return Err(Unread::Missing),
        meta => {
            if !meta?.is_file() {
                return Err(Unread::NoFile);
            }
        }
    }
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY).bits();
    let file = File::options().read(true).custom_flags(flags.cast_signed()).open(path);
    let file = match file {
        Err(error) if is_missing(&error) => return Err(Unread::Missing),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(Unread::NoFile);
    }
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST { Err(Unread::TooLong) } else { Ok(text) }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// A file name for these bytes together: 32 hexadecimal digits, different for each list of parts.
pub fn name(parts: &[&[u8]]) -> String {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        // The lengths keep two lists of parts from being one text.
        hash.update(&part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finish().as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Creates a directory and its parents, for root alone.
///
/// # Errors
/// The file system's.
pub fn make_private(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Removes a file, if it is there. It is gone after a power cut, too.
///
/// # Errors
/// The file system's.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if is_missing(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_above(path),
    }
}

/// The directory that a file is in.
pub fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Makes what was done with a file's name durable.
///
/// # Errors
/// The file system's.
pub fn sync_above(path: &Path) -> io::Result<()> {
    File::open(above(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::publish::{Existing, publish};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_regular_files_are_read_and_nobody_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        publish(&at("file"), b"x", 0o600, Existing::Keep).unwrap();
        assert_eq!(read(&at("file")).unwrap(), b"x");
        assert!(matches!(read(&at("none")), Err(Unread::Missing)));
        assert!(matches!(read(&at("file/below")), Err(Unread::Io(_))), "it is not known");
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        for name in ["fifo", "link", "directory", "socket", "/dev/null"] {
            assert!(matches!(read(&at(name)), Err(Unread::NoFile)), "{name}");
        }
        File::create(at("long")).unwrap().set_len(LONGEST + 1).unwrap();
        assert!(matches!(read(&at("long")), Err(Unread::TooLong)));
    }
}
