//! Where a driver of a node listens: at a path of this machine, or in a volume of its pod. A path
//! into a pod is longer than a socket's may be, so it gets a link.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::space::Space;

/// Where a kubelet has the pods.
const PODS: &str = "/var/lib/kubelet/pods";
/// Where in a pod's directory the drivers' sockets are.
const VOLUME: &str = "volumes/kubernetes.io~empty-dir/drivers";

/// The place of a driver's socket.
pub(super) enum Listens {
    /// At a path of this machine.
    At(PathBuf),
    /// In a pod of a node.
    InPod {
        /// The node.
        space: Arc<Space>,
        /// The link to the socket; it has its name.
        link: PathBuf,
    },
}

impl Listens {
    /// A path to dial. After its pod was made anew, it is asked for again.
    ///
    /// # Errors
    /// No pod has the socket.
    pub(super) fn path(&self) -> anyhow::Result<PathBuf> {
        let (space, link) = match self {
            Self::At(path) => return Ok(path.clone()),
            Self::InPod { space, link } => (space, link),
        };
        let name = link.file_name().context("a link without a name")?;
        let pods = PathBuf::from(format!("/proc/{}/root{PODS}", space.pid()));
        let sockets = std::fs::read_dir(&pods)?.filter_map(Result::ok);
        let mut sockets =
            sockets.map(|pod| pod.path().join(VOLUME).join(name)).filter(|socket| socket.exists());
        let socket = sockets.next().with_context(|| format!("no pod has {}", name.display()))?;
        linked(link, &socket).with_context(|| format!("cannot link {}", link.display()))?;
        Ok(link.clone())
    }
}

/// Lets a link lead to a file. Another one who asks meanwhile finds the old link or the new one.
fn linked(link: &Path, file: &Path) -> std::io::Result<()> {
    if std::fs::read_link(link).is_ok_and(|old| old == file) {
        return Ok(());
    }
    let dir = link.parent().unwrap_or(link);
    let beside = tempfile::Builder::new()
        .prefix("link-")
        .make_in(dir, |path| std::os::unix::fs::symlink(file, path))?;
    beside.into_temp_path().persist(link).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use proto::host::publish::{Existing, publish};

    use super::*;

    #[test]
    fn a_link_leads_to_the_newest_file() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        for name in ["old", "new", "new"] {
            let file = dir.path().join(name);
            publish(&file, name.as_bytes(), 0o600, Existing::Replace).unwrap();
            linked(&link, &file).unwrap();
            assert_eq!(std::fs::read_to_string(&link).unwrap(), name);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
