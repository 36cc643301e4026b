//! Unix sockets that we serve: they appear whole, and another process's is never taken away.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// The backlog of connections to accept; the system lowers it to `net.core.somaxconn`.
const WAITING: i32 = 1024;

/// The longest path of a unix socket, in bytes (`sun_path` less its NUL).
pub const MAX_PATH: usize = 107;
/// The mode of the socket: the owner and the group may connect.
pub const MODE: u32 = 0o660;

/// The path of a socket as gRPC's clients take it: with `unix://` or `unix:` before it, or bare.
pub fn path_of(address: &str) -> &str {
    let path = address.strip_prefix("unix:").unwrap_or(address);
    path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path)
}

/// The name of the abstract socket at this address, which has no file; `None` if it is a path. So
/// gRPC's clients write it.
pub fn abstract_name(address: &str) -> Option<&str> {
    address.strip_prefix("unix-abstract:").filter(|name| !name.is_empty())
}

/// The reason why a socket cannot be served.
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

impl SocketError {
    /// True if a later attempt may succeed without an operator, for example once the file system
    /// is writable again.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. })
    }
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
    /// The path never has another mode, and nobody can connect before the mode is set.
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
        let socket = bound(&beside, mode).map_err(failed)?;
        let ready = std::fs::set_permissions(&beside, Permissions::from_mode(mode))
            .and_then(|()| listening(socket))
            .and_then(|listener| std::fs::rename(&beside, path).map(|()| listener))
            .and_then(|listener| inode(path).map(|inode| (listener, inode)));
        match ready {
            Ok((listener, inode)) => Ok(Self { listener, path: path.to_owned(), inode }),
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

/// The kernel's table of unix sockets (proc(5)).
const TABLE: &str = "/proc/net/unix";

/// The number of connections to a socket that [`Socket`] serves; none if the kernel does not say.
pub fn connections(path: &Path) -> Option<usize> {
    Some(connected(&std::fs::read_to_string(TABLE).ok()?, path))
}

/// The connected ones of a socket in the kernel's table. That has the name by which it was made.
fn connected(table: &str, path: &Path) -> usize {
    const CONNECTED: &str = "03";
    let made = path.with_extension("new");
    let is_ours = |line: &&str| {
        let mut fields = line.split_whitespace();
        fields.nth(5) == Some(CONNECTED) && fields.nth(1).map(Path::new) == Some(&made)
    };
    table.lines().filter(is_ours).count()
}

/// Makes the socket's file. No one can connect before [`listening`].
///
/// Linux gives the file the mode of the socket's own inode, less the umask. So the file never has
/// a bit that `mode` lacks, whatever the umask is. The umask itself belongs to all threads: files
/// that others make meanwhile would get a changed one.
fn bound(path: &Path, mode: u32) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    let inode = File::from(OwnedFd::from(socket));
    inode.set_permissions(Permissions::from_mode(mode))?;
    let socket = socket2::Socket::from(OwnedFd::from(inode));
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    Ok(socket)
}

fn listening(socket: socket2::Socket) -> io::Result<UnixListener> {
    socket.listen(WAITING)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
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
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_path_is_read_as_grpcs_clients_write_it() {
        for address in ["/a/b", "unix:/a/b", "unix:///a/b"] {
            assert_eq!(path_of(address), "/a/b", "{address}");
        }
        assert_eq!(path_of("unix:b"), "b");
        assert_eq!(abstract_name("unix-abstract:a/b"), Some("a/b"));
        for other in ["unix-abstract:", "unix:a", "/unix-abstract:a"] {
            assert_eq!(abstract_name(other), None);
        }
        assert_eq!(path_of("b"), "b");
    }

    #[tokio::test]
    async fn connections_of_a_socket_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let socket = Socket::bind(&path).unwrap();
        let count = || connections(&path).unwrap();
        assert_eq!(count(), 0);
        let connect = || std::os::unix::net::UnixStream::connect(&path).unwrap();
        let callers = [connect(), connect()];
        let accepted = [socket.listener.accept().await.unwrap().0, {
            let (second, _) = socket.listener.accept().await.unwrap();
            second
        }];
        assert_eq!(count(), 2);
        drop((callers, accepted));
        assert_eq!(count(), 0);
    }

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

    fn mode_of(path: &Path) -> Option<u32> {
        std::fs::symlink_metadata(path).ok().map(|meta| meta.permissions().mode() & 0o777)
    }

    #[test]
    fn a_socket_is_made_with_no_bit_beyond_its_mode_and_before_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, MODE] {
            let path = dir.path().join(format!("{mode:o}.sock"));
            let socket = bound(&path, mode).unwrap();
            assert_eq!(mode_of(&path).unwrap() & !mode, 0, "{mode:o}");
            let refused = std::os::unix::net::UnixStream::connect(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            drop(socket);
        }
    }

    /// The modes that two files had until this was set.
    fn modes_until(ended: &AtomicBool, files: &[PathBuf; 2]) -> [BTreeSet<u32>; 2] {
        let mut seen = [BTreeSet::new(), BTreeSet::new()];
        while !ended.load(Ordering::Relaxed) {
            seen[0].extend(mode_of(&files[0]));
            seen[1].extend(mode_of(&files[1]));
        }
        seen
    }

    #[tokio::test]
    async fn a_watcher_never_sees_another_mode() {
        const OWNER: u32 = 0o600;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let watched = [path.with_extension("new"), path.clone()];
        let ended = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| modes_until(&ended, &watched));
            let served = (0..1000).try_for_each(|_| Socket::bind_for(&path, OWNER).map(drop));
            ended.store(true, Ordering::Relaxed);
            served.unwrap();
            watcher.join().unwrap()
        });
        let [beside, served] = seen;
        assert!(beside.iter().all(|mode| mode & !OWNER == 0), "{beside:?}");
        assert!(served.iter().all(|mode| *mode == OWNER), "{served:?}");
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
