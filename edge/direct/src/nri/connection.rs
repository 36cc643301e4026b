//! Keeps the plugin connected to the container runtime, which may start later or restart.
//!
//! A file in the state directory is locked while it is, so that a check sees it. The lock is the
//! kernel's, and ends with the process.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::host::backoff::Backoff;
use proto::host::chain;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tracing::{info, warn};

use super::plugin::Plugin;
use super::session;

/// A connection that lasted so long was stable: the next attempt is soon.
const STABLE: Duration = Duration::from_secs(10);
/// The delays between attempts.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

fn lock_file(state: &Path) -> PathBuf {
    state.join("direct").join("nri.lock")
}

/// Says that a plugin is connected while the file is open. Two may be, as in an upgrade. Where the
/// directory cannot be written, a check does not see this one.
fn connected(state: &Path) -> io::Result<File> {
    let path = lock_file(state);
    std::fs::create_dir_all(state.join("direct"))?;
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    file.try_lock_shared()?;
    Ok(file)
}

/// Whether a plugin with this state directory is connected to the container runtime.
///
/// # Errors
/// This is not known.
pub fn is_connected(state: &Path) -> io::Result<bool> {
    match File::open(lock_file(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        file => match file?.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        },
    }
}

impl Plugin {
    /// Keeps a connection to the socket for ever.
    pub async fn keep(&self, socket: PathBuf) {
        let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            let begun = Instant::now();
            let Err(error) = match UnixStream::connect(&socket).await {
                Ok(stream) => {
                    info!(socket = %socket.display(), "connected to the container runtime");
                    let _connected = connected(&self.state);
                    session::serve(stream, self).await.map_err(|ended| chain(&ended))
                }
                Err(error) => Err(format!("cannot connect: {error}; is NRI enabled there?")),
            };
            if begun.elapsed() >= STABLE {
                delays.reset();
            }
            let delay = delays.delay();
            let socket = socket.display();
            warn!(%socket, error, ?delay, "containers are made unasked; trying again");
            tokio::time::sleep(delay).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_seen_while_it_is_connected() {
        let state = tempfile::tempdir().unwrap();
        assert!(!is_connected(state.path()).unwrap());
        let first = connected(state.path()).unwrap();
        let second = connected(state.path()).unwrap();
        drop(first);
        assert!(is_connected(state.path()).unwrap());
        drop(second);
        assert!(lock_file(state.path()).exists());
    }
}
