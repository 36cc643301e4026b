//! Limits how many different things a csi-cloud may delete at this node in a time.
//!
//! Whoever takes over a csi-cloud can delete all that the node has. With this limit most of it is
//! there when somebody looks at the alert. The limit is off unless the operator chooses it, because
//! an honest cluster that is taken down deletes as much.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use proto::csi::{Id, Key, Learn, Method};
use proto::host::limit::{Bucket, Rate};
use proto::names::DriverName;
use tokio::time::Instant;

/// The different volumes, snapshots and groups that may be deleted at once.
pub(crate) const AT_ONCE: u32 = 200;
/// How many more each hour.
pub(crate) const PER_HOUR: u32 = 20;
/// Of the latest so many ids a repeated delete is free.
const REMEMBERED: usize = 1024;

/// The deletes of one node. A csi-edge that is started again begins with a whole burst.
#[derive(Default)]
pub(crate) struct DeleteLimit {
    counted: Mutex<Counted>,
    refused: AtomicU64,
}

#[derive(Default)]
struct Counted {
    bucket: Bucket,
    /// The oldest first.
    ids: VecDeque<(DriverName, Id)>,
}

impl DeleteLimit {
    /// Counts a call if it deletes something that was not counted lately. Returns `false` if that
    /// is too much.
    pub(crate) fn take(&self, driver: &DriverName, method: Method, key: &Key) -> bool {
        let (Learn::Gone, Key::Delete(id)) = (method.learn(), key) else { return true };
        let is_allowed = self.counted.lock().take(driver, id);
        if !is_allowed {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_allowed
    }

    /// How many calls were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Counted {
    fn take(&mut self, driver: &DriverName, id: &Id) -> bool {
        if self.ids.iter().any(|(of, counted)| of == driver && counted == id) {
            return true;
        }
        if !self.bucket.try_take(Rate::per_hour(PER_HOUR, AT_ONCE), Instant::now()) {
            return false;
        }
        if self.ids.len() == REMEMBERED {
            self.ids.pop_front();
        }
        self.ids.push_back((driver.clone(), id.clone()));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn volume(number: u32) -> Key {
        Key::Delete(Id::Volume(number.to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn different_deletes_are_limited_and_repeated_ones_are_free() {
        let limit = DeleteLimit::default();
        let driver: DriverName = "d.example".parse().unwrap();
        let delete = |number| limit.take(&driver, Method::DeleteVolume, &volume(number));
        let snapshot = Key::Delete(Id::Snapshot("1".into()));
        assert!(limit.take(&driver, Method::DeleteSnapshot, &snapshot));
        let allowed = (0..300).filter(|number| delete(*number)).count();
        assert_eq!(allowed, 199, "snapshots and volumes count together");
        assert_eq!(limit.refused(), 101);
        assert!(delete(0) && limit.take(&driver, Method::DeleteSnapshot, &snapshot));
        let other: DriverName = "e.example".parse().unwrap();
        assert!(!limit.take(&other, Method::DeleteVolume, &volume(0)), "the limit is the node's");
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!((300..400).filter(|number| delete(*number)).count(), 20);
        assert!(delete(1), "its first delete was counted");
    }

    #[tokio::test(start_paused = true)]
    async fn only_deletes_are_counted() {
        let limit = DeleteLimit::default();
        let driver: DriverName = "d.example".parse().unwrap();
        for number in 0..300 {
            let detach = Method::ControllerUnpublishVolume;
            assert!(limit.take(&driver, detach, &volume(number)), "a detach destroys nothing");
        }
        assert!(limit.take(&driver, Method::DeleteVolume, &volume(1)));
        assert_eq!(limit.refused(), 0);
    }
}
