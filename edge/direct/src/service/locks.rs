//! One operation at a time on a volume.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::names::DriverName;
use tokio::sync::watch;

/// A volume: its driver and its id.
type VolumeKey = (DriverName, String);

/// The locks of all volumes.
#[derive(Default)]
pub(super) struct VolumeLocks {
    held: Arc<Mutex<HashSet<VolumeKey>>>,
    /// The volume whose lease is being reported, which no caller asked for.
    reporting: watch::Sender<Option<VolumeKey>>,
}

/// The right to operate on a volume, while it lives.
pub(super) struct VolumeLock {
    held: Arc<Mutex<HashSet<VolumeKey>>>,
    volume: VolumeKey,
}

impl VolumeLock {
    /// The volume's id.
    pub(super) fn volume_id(&self) -> &str {
        &self.volume.1
    }
}

impl Drop for VolumeLock {
    fn drop(&mut self) {
        lock(&self.held).remove(&self.volume);
    }
}

impl VolumeLocks {
    /// Locks a volume; none if an operation runs on it.
    pub(super) fn try_lock(&self, driver: &DriverName, volume: &str) -> Option<VolumeLock> {
        let volume = (driver.clone(), volume.to_owned());
        let taken = lock(&self.held).insert(volume.clone());
        taken.then(|| VolumeLock { held: self.held.clone(), volume })
    }

    /// True if an operation runs on a volume.
    pub(super) fn is_locked(&self, driver: &DriverName, volume: &str) -> bool {
        lock(&self.held).contains(&(driver.clone(), volume.to_owned()))
    }

    /// The volume whose lease is being reported, as it changes.
    pub(super) fn reporting(&self) -> watch::Receiver<Option<VolumeKey>> {
        self.reporting.subscribe()
    }

    /// Marks a volume as being reported, until the mark is dropped.
    pub(super) fn report(&self, driver: &DriverName, volume: &str) -> Reporting<'_> {
        self.reporting.send_replace(Some((driver.clone(), volume.to_owned())));
        Reporting(&self.reporting)
    }
}

/// Marks the volume whose lease is being reported.
pub(super) struct Reporting<'a>(&'a watch::Sender<Option<VolumeKey>>);

impl Drop for Reporting<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

fn lock(held: &Mutex<HashSet<VolumeKey>>) -> MutexGuard<'_, HashSet<VolumeKey>> {
    held.lock()
}
