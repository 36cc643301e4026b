//! One operation at a time on a volume.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::names::DriverName;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// A volume: its driver and its id.
type VolumeKey = (DriverName, String);

/// The operation that holds a lock, as errors name it, and since when.
pub(super) type Holder = (&'static str, Instant);

/// The volumes that are locked.
#[derive(Default)]
struct HeldVolumes {
    by: Mutex<HashMap<VolumeKey, Holder>>,
    released: Notify,
}

/// The locks of all volumes.
#[derive(Default)]
pub(super) struct VolumeLocks {
    held: Arc<HeldVolumes>,
    /// The volume whose lease is being reported, which no caller asked for.
    reporting: watch::Sender<Option<VolumeKey>>,
}

/// The right to operate on a volume, while it lives.
pub(super) struct VolumeLock {
    held: Arc<HeldVolumes>,
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
        self.held.lock().remove(&self.volume);
        self.held.released.notify_waiters();
    }
}

impl VolumeLocks {
    /// Locks a volume for an operation.
    ///
    /// # Errors
    /// The operation that holds it.
    pub(super) fn try_lock(
        &self,
        driver: &DriverName,
        volume: &str,
        operation: &'static str,
    ) -> Result<VolumeLock, Holder> {
        let volume = (driver.clone(), volume.to_owned());
        let mut held = self.held.lock();
        if let Some(holder) = held.get(&volume) {
            return Err(*holder);
        }
        held.insert(volume.clone(), (operation, Instant::now()));
        drop(held);
        Ok(VolumeLock { held: self.held.clone(), volume })
    }

    /// True if an operation runs on a volume.
    pub(super) fn is_locked(&self, driver: &DriverName, volume: &str) -> bool {
        self.held.lock().contains_key(&(driver.clone(), volume.to_owned()))
    }

    /// Ends when any lock is released after this call.
    pub(super) fn released(&self) -> Notified<'_> {
        self.held.released.notified()
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

impl HeldVolumes {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeKey, Holder>> {
        self.by.lock()
    }
}
