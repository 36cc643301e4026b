//! This node, as work with direct volumes needs it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use proto::names::DriverName;

use crate::device::host::Host;
use crate::device::vfio::Nvme;
use crate::error::{Error, HANDED_OVER, not_yet};
use crate::records::lock::StateLock;
use crate::runtimes::mount_info::Root;
use crate::runtimes::prerequisites::Checks;

/// A node's state directory, its kernel's files, and the entries that its runtimes read.
pub(crate) struct Node {
    /// Without one no volume is handed over.
    pub(crate) state: Option<PathBuf>,
    /// The lock of the state directory; none until it can be taken.
    lock: Mutex<Option<StateLock>>,
    pub(crate) host: Host,
    pub(crate) root: Root,
    /// The check of the installed runtimes.
    pub(crate) checks: Checks,
    /// Says if the runtimes take NVMe controllers as volumes.
    pub(crate) nvme: Nvme,
    /// The directories in which targets may be; anywhere if there are none.
    pub(crate) targets: Vec<PathBuf>,
    /// Held while a device is claimed for a volume.
    pub(super) claims: Mutex<()>,
    /// The drivers whose volumes came without a pod's name.
    pub(crate) without_pod: Logged,
}

/// The drivers about which something is logged already.
#[derive(Default)]
pub(crate) struct Logged(Mutex<BTreeSet<DriverName>>);

impl Logged {
    /// Notes a driver; true the first time.
    pub(crate) fn is_first(&self, driver: &DriverName) -> bool {
        self.0.lock().insert(driver.clone())
    }
}

impl Node {
    pub(crate) fn new(state: Option<PathBuf>, host: Host, root: Root) -> Self {
        Self {
            state,
            lock: Mutex::default(),
            host,
            root,
            checks: Checks::default(),
            nvme: Nvme::default(),
            targets: Vec::new(),
            claims: Mutex::default(),
            without_pod: Logged::default(),
        }
    }

    /// The same node with the lock of its state directory.
    pub(crate) fn with_lock(self, lock: Option<StateLock>) -> Self {
        Self { lock: Mutex::new(lock), ..self }
    }

    /// The same node with other checks of the installed runtimes.
    pub(crate) fn with_checks(self, checks: Checks) -> Self {
        Self { checks, ..self }
    }

    /// The same node with runtimes that take other devices.
    pub(crate) fn with_nvme(self, nvme: Nvme) -> Self {
        Self { nvme, ..self }
    }

    /// The same node with targets in these directories only.
    pub(crate) fn with_targets(self, targets: Vec<PathBuf>) -> Self {
        Self { targets, ..self }
    }

    /// The state directory.
    ///
    /// # Errors
    /// There is none, so this volume is refused.
    pub(crate) fn state(&self, volume: &str) -> Result<&Path, Error> {
        let missing = || Error::DirectRefused {
            volume: volume.to_owned(),
            why: "there is no --state".into(),
        };
        self.state.as_deref().ok_or_else(missing)
    }

    /// True if no other csi-edge works on the state directory.
    pub(crate) fn has_lock(&self) -> bool {
        self.lock.lock().is_some()
    }

    /// Makes sure that no other csi-edge works on the state directory, before this volume is handed
    /// over.
    ///
    /// # Errors
    /// There is no state directory, or it is not locked and cannot be locked now.
    pub(crate) fn lock(&self, volume: &str) -> Result<(), Error> {
        let state = self.state(volume)?;
        let mut lock = self.lock.lock();
        if lock.is_none() {
            *lock = Some(StateLock::take(state).map_err(not_yet(volume, HANDED_OVER))?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::csi::status::ToStatus;

    #[test]
    fn no_volume_is_handed_over_without_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let lock = state.join("direct/lock");
        let root = || Root::new(dir.path().join("entries"));
        let node = Node::new(Some(state.clone()), Host::default(), root());
        std::fs::create_dir_all(&lock).unwrap();
        let refused = node.lock("v").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.chain().contains("cannot be locked"), "{}", refused.chain());
        // The directory is mended.
        std::fs::remove_dir(&lock).unwrap();
        node.lock("v").unwrap();
        node.lock("v").unwrap();
        let other = Node::new(Some(state), Host::default(), root());
        let refused = other.lock("v").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.chain().contains("works on"), "{}", refused.chain());
        let without = Node::new(None, Host::default(), root()).lock("v").unwrap_err();
        assert_eq!(without.code(), tonic::Code::FailedPrecondition);
    }

    #[test]
    fn each_driver_is_logged_once() {
        let logged = Logged::default();
        let [one, other] = ["a.example", "b.example"].map(|name| name.parse().unwrap());
        assert!(logged.is_first(&one));
        assert!(!logged.is_first(&one));
        assert!(logged.is_first(&other));
    }
}
