//! The format of the state directory, in a file of its own there.
//!
//! A directory without the file is of format 1: csi-edge 0.1.0 wrote none. The number grows only if
//! an older csi-edge could misread a record, so a higher one is refused. It uses no other room.

use std::io;
use std::path::{Path, PathBuf};

use proto::host::files;
use proto::host::files::Unread;
use proto::host::publish::publish_record;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The format that this csi-edge writes, and the highest that it reads.
pub const FORMAT: u32 = 1;
/// The file's name in the state directory.
const FILE: &str = "format.json";

#[derive(Serialize, Deserialize)]
struct Stated {
    format: u32,
}

/// The state directory is of a newer csi-edge.
#[derive(Debug, thiserror::Error)]
#[error(
    "the state directory {} is of a newer csi-edge, in format {format}, and this one reads up to \
     {FORMAT}; nothing in it was read or changed; start the newer csi-edge again, \
     or first do what its release notes say of going back",
    directory.display()
)]
pub struct NewerState {
    directory: PathBuf,
    format: u32,
}

/// Refuses a state directory whose records this csi-edge could misread.
///
/// A file that cannot be read refuses nothing: each record is still read by itself, and a damaged
/// one hinders its own volume only.
///
/// # Errors
/// It states a higher format.
pub fn check(directory: &Path) -> Result<(), NewerState> {
    let Some(format) = stated(directory) else { return Ok(()) };
    if format > FORMAT {
        return Err(NewerState { directory: directory.to_owned(), format });
    }
    Ok(())
}

/// States the format in a directory whose file has another one, or none.
///
/// # Errors
/// The file system's.
pub fn state(directory: &Path) -> io::Result<()> {
    if stated(directory) == Some(FORMAT) {
        return Ok(());
    }
    publish_record(&directory.join(FILE), &Stated { format: FORMAT })
}

/// The format that the file states; none if there is no file, or it cannot be read.
fn stated(directory: &Path) -> Option<u32> {
    let path = directory.join(FILE);
    let error = match files::read(&path) {
        Ok(text) => match serde_json::from_slice::<Stated>(&text) {
            Ok(stated) => return Some(stated.format),
            Err(error) => error.to_string(),
        },
        Err(Unread::Missing) => return None,
        Err(error) => error.to_string(),
    };
    warn!(path = %path.display(), error, "it is damaged, so format {FORMAT} is assumed");
    None
}

#[cfg(test)]
mod tests {
    use proto::host::publish::{Existing, publish};

    use super::*;

    #[test]
    fn a_directory_states_its_format_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path()).unwrap();
        state(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(text.split_whitespace().collect::<String>(), r#"{"format":1}"#);
        check(dir.path()).unwrap();
        let newer = br#"{"format":2,"and":"more"}"#;
        publish(&dir.path().join(FILE), newer, 0o600, Existing::Replace).unwrap();
        let refused = check(dir.path()).unwrap_err().to_string();
        for word in [dir.path().to_str().unwrap(), "in format 2", "up to 1", "start the newer"] {
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn a_file_that_is_damaged_refuses_nothing_and_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{\"format\":", "{\"format\":-1}", "{}"] {
            publish(&dir.path().join(FILE), text.as_bytes(), 0o600, Existing::Replace).unwrap();
            check(dir.path()).unwrap();
            state(dir.path()).unwrap();
            assert_eq!(stated(dir.path()), Some(FORMAT), "{text}");
        }
    }
}
