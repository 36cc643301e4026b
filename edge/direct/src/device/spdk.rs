//! Volumes that SPDK serves: their driver publishes a vhost-user socket instead of a device.
//!
//! The host cannot read such a volume, so it is neither formatted nor checked. Tested with a plain
//! socket, not with SPDK.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The runtimes' name of this kind.
pub(crate) const TYPE: &str = "spdkvol";
/// The longest path of a socket, in bytes.
const LONGEST: usize = 107;

/// The reason why there is no socket to hand over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpdkError {
    /// Nothing is there.
    #[error("{0} is not there; did the driver publish it where csi-edge can see it?")]
    Absent(String, #[source] io::Error),
    /// It is something else.
    #[error(
        "{0} is no socket; edge-csi.io/direct-kind: spdk is for drivers that publish vhost-user \
         sockets"
    )]
    NoSocket(String),
    /// Nobody can connect to it.
    #[error("the socket's path has {0} bytes, and {LONGEST} is the most")]
    TooLong(usize),
}

/// The socket that a driver has published at a path.
///
/// # Errors
/// Nothing is there, it is no socket, or its path is too long.
pub(crate) fn socket(private: &Path) -> Result<PathBuf, SpdkError> {
    let shown = || private.display().to_string();
    let path =
        std::fs::canonicalize(private).map_err(|source| SpdkError::Absent(shown(), source))?;
    let meta = std::fs::metadata(&path).map_err(|source| SpdkError::Absent(shown(), source))?;
    if !meta.file_type().is_socket() {
        return Err(SpdkError::NoSocket(shown()));
    }
    let length = path.as_os_str().len();
    if length > LONGEST { Err(SpdkError::TooLong(length)) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_handed_over_and_nothing_else() {
        let dir = tempfile::Builder::new().prefix("ec-").tempdir().unwrap();
        let real = dir.path().join("s");
        let link = dir.path().join("link");
        assert!(matches!(socket(&link), Err(SpdkError::Absent(..))));
        let _listener = std::os::unix::net::UnixListener::bind(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(socket(&link).unwrap(), real.canonicalize().unwrap());
        assert!(matches!(socket(dir.path()), Err(SpdkError::NoSocket(_))));
        let deep = dir.path().join("x".repeat(90)).join("y".repeat(90));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::rename(&real, deep.join("s")).unwrap();
        assert!(matches!(socket(&deep.join("s")), Err(SpdkError::TooLong(_))));
    }
}
