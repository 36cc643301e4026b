//! Looks at the state directory when csi-edge starts, and says what is wrong with it.
//!
//! csi-edge serves in any case but one: what cannot be known or kept is answered as such, call by
//! call. A directory of a newer csi-edge is refused, because its records could be misread. It may
//! use `link` and `edge-calls`.

pub mod first_link;

use std::io;
use std::path::Path;

use edge_calls::state_format;
use edge_calls::state_format::NewerState;
use proto::host::chain;
use proto::host::publish::{Existing, publish};
use tracing::{error, info, warn};

/// Made and removed, to see whether anything can be kept.
const PROBE: &str = "probe";

/// Makes the directory if needed, removes remains of a crash, and logs faults.
///
/// # Errors
/// It is of a newer csi-edge.
pub fn look(directory: &Path) -> Result<(), NewerState> {
    state_format::check(directory)?;
    if let Err(error) = prepare(directory) {
        let directory = directory.display();
        let error = chain(&error);
        error!(
            %directory, error,
            "the state directory cannot be used: nothing is kept, no volume is handed over or \
             expanded here, and a restart without the cloud knows less; mend it and start \
             csi-edge again"
        );
    }
    Ok(())
}

fn prepare(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut is_empty = true;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".new") {
            // It was being written at a crash, and nobody reads it. The next start tries again.
            let _ = std::fs::remove_file(entry.path());
        } else if name != PROBE {
            is_empty = false;
        }
    }
    if is_empty {
        info!(
            directory = %directory.display(),
            "nothing is kept in the state directory: this is the first start here, or what was \
             kept is lost"
        );
    }
    let probe = directory.join(PROBE);
    publish(&probe, &[b'\n'; 4096], 0o600, Existing::Replace)?;
    if let Err(error) = std::fs::remove_file(&probe) {
        warn!(path = %probe.display(), %error, "cannot be removed");
    }
    state_format::state(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_left_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/here");
        prepare(&state).unwrap();
        for name in [".x.new", "scopes.json", ".kept", PROBE] {
            publish(&state.join(name), b"x", 0o600, Existing::Keep).unwrap();
        }
        prepare(&state).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".kept", "format.json", "scopes.json"]);
        assert!(prepare(&state.join("scopes.json")).is_err());
        look(&state.join("scopes.json")).unwrap();
        publish(&state.join("format.json"), br#"{"format":9}"#, 0o600, Existing::Replace).unwrap();
        let refused = look(&state).unwrap_err().to_string();
        assert!(refused.contains("in format 9"), "{refused}");
    }
}
