//! The sockets of the fronts while csi-cloud serves them: mode, owner, and who is connected.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use proto::admin::doctor::Finding;
use proto::host::socket;

use crate::admin::doctor::installation::Installation;

/// A socket as it was seen.
struct Seen {
    mode: u32,
    owner: (u32, u32),
    is_socket: bool,
    /// Connections; none if the kernel does not say.
    connections: Option<usize>,
}

/// The findings about all fronts.
pub(super) fn findings(installation: &Installation) -> Vec<Finding> {
    let Some(directory) = &installation.fronts else { return Vec::new() };
    let is_relayed = installation.is_relayed;
    let one = |driver| {
        let path = directory.join(format!("{driver}.sock"));
        judged(&path, look(&path), is_relayed)
    };
    installation.drivers.iter().map(one).collect()
}

fn look(path: &Path) -> io::Result<Seen> {
    let meta = std::fs::symlink_metadata(path)?;
    Ok(Seen {
        mode: meta.permissions().mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        is_socket: meta.file_type().is_socket(),
        connections: socket::connections(path),
    })
}

fn judged(path: &Path, seen: io::Result<Seen>, is_relayed: bool) -> Finding {
    const CHECK: &str = "front";
    const AGAIN: &str =
        "start csi-cloud again, which makes it; find out who else uses the directory";
    let about = path.display().to_string();
    let Seen { mode, owner: (user, group), is_socket, connections } = match seen {
        Ok(seen) => seen,
        Err(error) => {
            let found = format!("it cannot be looked at: {error}");
            return Finding::fault(CHECK, about, found, AGAIN);
        }
    };
    if !is_socket {
        return Finding::fault(CHECK, about, "it is no socket", AGAIN);
    }
    let found = format!("mode {mode:04o}, owner {user}:{group}");
    if mode != socket::MODE {
        let found = format!("{found}; csi-cloud makes it with {:04o}", socket::MODE);
        let advice =
            format!("`chmod {:o}` it: who can connect can do all that CSI can", socket::MODE);
        return Finding::warning(CHECK, about, found, advice);
    }
    match connections {
        None => Finding::ok(CHECK, about, found),
        Some(0) if !is_relayed => Finding::warning(
            CHECK,
            about,
            format!("{found}; nobody is connected"),
            "start the driver's sidecars; they need this socket's directory, and user or group of \
             the socket",
        ),
        Some(count) => Finding::ok(CHECK, about, format!("{found}; connections: {count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    fn of(mode: u32, is_socket: bool, connections: Option<usize>, is_relayed: bool) -> Verdict {
        let seen = Seen { mode, owner: (0, 7), is_socket, connections };
        judged(Path::new("/f/d.sock"), Ok(seen), is_relayed).verdict
    }

    #[test]
    fn a_front_is_a_socket_with_its_mode_and_a_caller() {
        assert_eq!(of(0o660, true, Some(2), false), Verdict::Ok);
        assert_eq!(of(0o660, true, None, false), Verdict::Ok);
        assert_eq!(of(0o660, true, Some(0), false), Verdict::Warning);
        assert_eq!(of(0o660, true, Some(0), true), Verdict::Ok);
        assert_eq!(of(0o666, true, Some(2), false), Verdict::Warning);
        assert_eq!(of(0o660, false, Some(0), false), Verdict::Fault);
        let gone = Err(io::ErrorKind::NotFound.into());
        assert_eq!(judged(Path::new("/f"), gone, false).verdict, Verdict::Fault);
    }
}
