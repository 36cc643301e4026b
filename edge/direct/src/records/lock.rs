//! Locks a state directory for one program: two would each take back what the other hands over.
//!
//! The lock is the kernel's, on an open file, so it ends with the process.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The lock of a state directory, while it lives.
#[derive(Debug)]
pub struct StateLock {
    _locked: File,
}

/// The reason why a lock is not given.
#[derive(Debug, thiserror::Error)]
pub enum NotLocked {
    /// Another has it.
    #[error(
        "a csi-edge works on {state} already, and looks after its direct volumes itself when it \
         starts; stop it first",
        state = state.display()
    )]
    Another {
        /// The state directory.
        state: PathBuf,
    },
    /// It is not known.
    #[error(
        "{path} cannot be locked, so it is not known whether another csi-edge works there",
        path = path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the attempt.
        #[source]
        source: io::Error,
    },
}

impl StateLock {
    /// Locks a state directory.
    ///
    /// # Errors
    /// Another program has it, or this is not known.
    pub fn take(state: &Path) -> Result<Self, NotLocked> {
        let path = state.join("direct").join("lock");
        let open = || {
            std::fs::create_dir_all(state.join("direct"))?;
            // An ordinary open of a FIFO lasts until a reader comes.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let mut options = File::options();
            options.write(true).create(true).truncate(false).custom_flags(flags).open(&path)
        };
        let file = open().map_err(|source| NotLocked::Io { path: path.clone(), source })?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _locked: file }),
            Err(TryLockError::WouldBlock) => Err(NotLocked::Another { state: state.to_owned() }),
            Err(TryLockError::Error(source)) => Err(NotLocked::Io { path, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test]
    async fn a_state_directory_has_one_csi_edge() {
        let state = tempfile::tempdir().unwrap();
        let first = StateLock::take(state.path()).unwrap();
        assert!(matches!(StateLock::take(state.path()), Err(NotLocked::Another { .. })));
        drop(first);
        // A process that another test starts has the file open until it runs its own program.
        let until = Instant::now() + Duration::from_secs(10);
        while StateLock::take(state.path()).is_err() {
            assert!(Instant::now() < until, "it is still locked");
            sleep(Duration::from_millis(1)).await;
        }
    }
}
