//! Files with secrets (private keys, tokens, passwords): their owner and its group may read them,
//! and nobody else.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Everybody else may read or write.
const OTHERS: u32 = 0o006;

/// The reason why a file with a secret is refused.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// It cannot be looked at.
    #[error("the mode of {}, which has a secret, cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// Every process of the machine can read or change it.
    #[error(
        "{path} has mode {mode:04o}, so others than its owner and group can read or change the \
         secret in it; run `chmod o-rwx {path}`, or set `defaultMode: 0440` in the Secret's \
         volume and `fsGroup` in the pod, and replace the secret if others may have read it",
        path = path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Passes if only the owner and the group can read or write this file; links are followed.
///
/// The group may: a pod without root reads the files of a Secret as a member of its fsGroup.
///
/// # Errors
/// See [`PrivateError`].
pub fn check(path: &Path) -> Result<(), PrivateError> {
    let metadata = std::fs::metadata(path)
        .map_err(|source| PrivateError::Io { path: path.to_owned(), source })?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(PrivateError::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_and_the_group_may_read_a_key_and_others_may_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |mode| {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            check(file.path())
        };
        for mode in [0o400, 0o600, 0o440, 0o640, 0o660] {
            with(mode).unwrap();
        }
        for mode in [0o644, 0o444, 0o604, 0o602, 0o666, 0o777] {
            let error = with(mode).unwrap_err().to_string();
            for word in [format!("mode {mode:04o}"), "chmod o-rwx".into(), "0440".into()] {
                assert!(error.contains(&word), "{word} is not in {error}");
            }
        }
    }

    #[test]
    fn the_mode_is_that_of_the_file_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        crate::host::publish::publish(&key, b"", 0o644, crate::host::publish::Existing::Keep)
            .unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&key, &link).unwrap();
        assert!(matches!(check(&link), Err(PrivateError::Open { mode: 0o644, .. })));
        assert!(matches!(check(&dir.path().join("none")), Err(PrivateError::Io { .. })));
    }
}
