//! Unix sockets that we serve: they appear whole, and another process's is never taken away.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// The longest path of a unix socket, in bytes (`sun_path` less its NUL).
pub const MAX_PATH: usize = 107;
/// Who may connect: the owner and the group.
pub const MODE: u32 = 0o660;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Longer than the kernel allows.
    #[error(
        "the socket path {} has {length} bytes, and {MAX_PATH} is the most; choose a shorter \
         directory",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// Another process serves it.
    #[error(
        "{} is being served by another process; stop that one, or choose another path",
        .0.display()
    )]
    Taken(PathBuf),
    /// The path is not a socket.
    #[error(
        "{} is there and is no socket; it is left alone, move it away or choose another path",
        .0.display()
    )]
    NotASocket(PathBuf),
    /// The file system refuses.
    #[error("the socket {} cannot be made", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
}

/// A socket that is being served; its file is removed on drop if it is still ours.
#[derive(Debug)]
pub struct Socket {
    /// Accepts connections.
    pub listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Serves `path` with mode [`MODE`]. A stale socket is replaced.
    ///
    /// # Errors
    /// See [`SocketError`]; an existing file is untouched.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        Self::bind_for(path, MODE)
    }

    /// Serves `path` with this mode, otherwise as [`Socket::bind`].
    ///
    /// # Errors
    /// See [`SocketError`]; an existing file is untouched.
    pub fn bind_for(path: &Path, mode: u32) -> Result<Self, SocketError> {
        let length = path.as_os_str().len();
        // The socket is made beside, under a slightly longer name, and renamed.
        let beside = path.with_extension("new");
        if length > MAX_PATH || beside.as_os_str().len() > MAX_PATH {
            return Err(SocketError::TooLong { path: path.to_owned(), length });
        }
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        refuse_existing(path)?;
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&beside).map_err(failed)?;
        let ready = std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode))
            .and_then(|()| std::fs::rename(&beside, path))
            .and_then(|()| inode(path));
        match ready {
            Ok(inode) => Ok(Self { listener, path: path.to_owned(), inode }),
            Err(error) => {
                let _ = std::fs::remove_file(&beside);
                Err(failed(error))
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).map(|meta| meta.ino())
}

/// Passes if there is nothing, or a socket on which no process listens.
fn refuse_existing(path: &Path) -> Result<(), SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match connect_at_once(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or busy: another process listens.
        Ok(_) => Err(SocketError::Taken(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(SocketError::Taken(path.to_owned()))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Connects without waiting: a server whose queue is full is alive.
fn connect_at_once(path: &Path) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&socket2::SockAddr::unix(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(matches!(Socket::bind(&path), Err(SocketError::Taken(_))));
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_live_socket_whose_queue_is_full_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let server =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        server.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
        server.listen(0).unwrap();
        let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::Taken(_))));
    }

    #[tokio::test]
    async fn a_directory_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(Socket::bind(&path), Err(SocketError::NotASocket(_))));
        assert!(path.is_dir());
    }

    #[tokio::test]
    async fn a_path_too_long_is_named_with_its_length() {
        let path = Path::new("/tmp").join("x".repeat(120));
        let error = Socket::bind(&path).unwrap_err().to_string();
        assert!(error.contains("125 bytes") && error.contains("107"), "{error}");
    }

    #[tokio::test]
    async fn a_socket_that_another_took_over_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let old = Socket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _new = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(old);
        assert!(path.exists());
    }
}
