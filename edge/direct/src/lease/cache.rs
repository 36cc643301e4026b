//! The leases of this node: the durable ones, and two facts in memory only. These are fences that
//! could not be written yet, and what the cloud knows on the link in use.
//!
//! A fence counts from the cloud's answer on, even if the disk is full.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};

use super::record;
use super::record::{Lease, LeaseEntry};

/// A volume: its driver's name and its id.
type Key = (String, String);

#[derive(Default)]
pub(crate) struct LeaseCache(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    /// Fences that could not be kept.
    fences: BTreeMap<Key, LeaseEntry>,
    /// The leases that were reported to the cloud, and on which link.
    reported: BTreeMap<Key, (u64, LeaseEntry)>,
}

fn key(entry: &LeaseEntry) -> Key {
    (entry.driver.clone(), entry.volume_id.clone())
}

impl LeaseCache {
    /// The lease of a volume.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn of(
        &self,
        state: &Path,
        driver: &str,
        volume: &str,
    ) -> io::Result<Option<LeaseEntry>> {
        let fence = self.memory().fences.get(&(driver.to_owned(), volume.to_owned())).cloned();
        fence.map_or_else(|| record::of(state, driver, volume), |fence| Ok(Some(fence)))
    }

    /// Makes a lease durable. A fence counts even if that fails.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn keep(&self, state: &Path, entry: &LeaseEntry) -> io::Result<()> {
        if matches!(entry.lease, Lease::Fenced { .. }) {
            self.memory().fences.insert(key(entry), entry.clone());
        }
        entry.keep(state)?;
        self.memory().fences.remove(&key(entry));
        Ok(())
    }

    /// Forgets a lease.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn forget(&self, state: &Path, entry: &LeaseEntry) -> io::Result<()> {
        record::forget(state, &entry.driver, &entry.volume_id)?;
        let mut memory = self.memory();
        memory.fences.remove(&key(entry));
        memory.reported.remove(&key(entry));
        Ok(())
    }

    /// True if a volume's fence is in memory only.
    pub(crate) fn is_only_remembered(&self, entry: &LeaseEntry) -> bool {
        self.memory().fences.contains_key(&key(entry))
    }

    /// Notes that a lease was reported to the cloud on this link.
    pub(crate) fn set_reported(&self, link: u64, entry: LeaseEntry) {
        self.memory().reported.insert(key(&entry), (link, entry));
    }

    /// True if this lease was reported to the cloud on this link.
    pub(crate) fn is_reported(&self, link: u64, entry: &LeaseEntry) -> bool {
        self.memory()
            .reported
            .get(&key(entry))
            .is_some_and(|(on, reported)| *on == link && reported == entry)
    }

    /// True if the cloud has confirmed on this link that the volume is this node's, for any pod.
    pub(crate) fn has_confirmed(&self, link: u64, entry: &LeaseEntry) -> bool {
        let held = |lease: &Lease| matches!(lease, Lease::Held { .. }) && *lease == entry.lease;
        self.memory()
            .reported
            .get(&key(entry))
            .is_some_and(|(on, reported)| *on == link && held(&reported.lease))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(lease: Lease) -> LeaseEntry {
        LeaseEntry { driver: "d.example".into(), volume_id: "v".into(), pod: "p".into(), lease }
    }

    #[test]
    fn a_fence_counts_though_the_disk_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let known = LeaseCache::default();
        let of = || known.of(&state, "d.example", "v").unwrap();
        let held = entry(Lease::Held { epoch: 5, mac: None });
        known.keep(&state, &held).unwrap();
        let kept = state.join("direct/owners");
        // A file in place of the directory keeps anything from being written.
        std::fs::rename(&kept, dir.path().join("aside")).unwrap();
        std::fs::File::create(&kept).unwrap();
        let fence = entry(Lease::Fenced { epoch: 5, why: "w".into() });
        let full = known.keep(&state, &fence).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::AlreadyExists, "{full}");
        assert!(known.is_only_remembered(&fence));
        let full = known.keep(&state, &entry(Lease::Unsettled)).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::AlreadyExists, "{full}");
        assert_eq!(of(), Some(fence.clone()), "it was not unpublished durably");
        std::fs::remove_file(&kept).unwrap();
        std::fs::rename(dir.path().join("aside"), &kept).unwrap();
        assert_eq!(of(), Some(fence.clone()), "the file says that it is held");
        known.keep(&state, &fence).unwrap();
        assert!(!known.is_only_remembered(&fence));
        assert_eq!(of(), Some(fence));
    }

    #[test]
    fn what_was_heard_on_another_link_or_of_another_lease_was_not_heard() {
        let known = LeaseCache::default();
        let held = entry(Lease::Held { epoch: 5, mac: None });
        assert!(!known.is_reported(1, &held));
        known.set_reported(1, held.clone());
        assert!(known.is_reported(1, &held) && known.has_confirmed(1, &held));
        assert!(!known.is_reported(2, &held) && !known.has_confirmed(2, &held));
        let pod = LeaseEntry { pod: "q".into(), ..held.clone() };
        assert!(
            !known.is_reported(1, &pod) && known.has_confirmed(1, &pod),
            "the node is the same"
        );
        let other = entry(Lease::Held { epoch: 6, mac: None });
        assert!(!known.is_reported(1, &other) && !known.has_confirmed(1, &other));
        known.set_reported(1, entry(Lease::Unsettled));
        assert!(!known.has_confirmed(1, &entry(Lease::Unsettled)));
    }
}
