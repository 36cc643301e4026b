//! Slows down mounts of volumes that their driver does not have.
//!
//! A kubelet backs off after a failed mount. It forgets that when it unmounts the same volume for
//! another pod in between, and then asks some five times a second. So a mount waits here after each
//! NOT_FOUND of the driver, each time twice as long. The driver is asked all the same. It uses no
//! other room.

use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::{DirectCall, Id, Method, NodeStep};
use proto::host::backoff::Backoff;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

/// The wait after the first NOT_FOUND, and the longest one.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// The part of its caller's time that a mount has left after the wait.
const SPARE: Duration = Duration::from_secs(5);
/// The most volumes that are known. Mounts of further ones do not wait.
const MOST: usize = 1024;

/// The volumes that a driver did not have when they were to be mounted last.
#[derive(Clone, Default)]
pub(crate) struct MissingVolumes(Arc<Mutex<HashMap<Id, Missing>>>);

struct Missing {
    delays: Backoff,
    not_before: Instant,
}

/// A mount of a volume.
pub(crate) struct Mount {
    missing: MissingVolumes,
    volume: Id,
}

impl MissingVolumes {
    /// The mount that a call is; none if it is none.
    pub(crate) fn mount(&self, method: Method, about: &[Id]) -> Option<Mount> {
        let step = method.direct();
        let mounts = [NodeStep::Stage, NodeStep::Publish].map(DirectCall::Node).map(Some);
        let volume = about.first().filter(|_| mounts.contains(&step))?.clone();
        Some(Mount { missing: self.clone(), volume })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Missing>> {
        self.0.lock()
    }

    fn note_missing(&self, volume: &Id, now: Instant) {
        let mut known = self.lock();
        if known.len() >= MOST && !known.contains_key(volume) {
            // Nobody asked for these for long.
            known.retain(|_, missing| missing.not_before + LONGEST > now);
            if known.len() >= MOST {
                return;
            }
        }
        let new = || Missing { delays: Backoff::new(FIRST, LONGEST), not_before: now };
        let missing = known.entry(volume.clone()).or_insert_with(new);
        missing.not_before = now + missing.delays.delay();
    }
}

impl Mount {
    /// Waits for its turn, but not until the caller's deadline.
    pub(crate) async fn wait(&self, deadline: Option<Instant>) {
        let Some(turn) = self.turn() else { return };
        let latest = deadline.and_then(|end| end.checked_sub(SPARE)).unwrap_or(turn);
        sleep_until(turn.min(latest)).await;
    }

    /// The time from which on the driver is asked.
    fn turn(&self) -> Option<Instant> {
        self.missing.lock().get(&self.volume).map(|missing| missing.not_before)
    }

    /// Notes the driver's answer; none is an OK.
    pub(crate) fn answered(&self, code: Option<Code>) {
        match code {
            Some(Code::NotFound) => self.missing.note_missing(&self.volume, Instant::now()),
            Some(_) | None => drop(self.missing.lock().remove(&self.volume)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(id: &str) -> [Id; 1] {
        [Id::Volume(id.into())]
    }

    fn mount(missing: &MissingVolumes, id: &str) -> Mount {
        missing.mount(Method::NodeStageVolume, &volume(id)).unwrap()
    }

    /// The seconds for which it waits.
    async fn waits(mount: &Mount, deadline: Option<Instant>) -> u64 {
        let begun = Instant::now();
        mount.wait(deadline).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_mount_of_a_missing_volume_waits_longer_each_time() {
        let missing = MissingVolumes::default();
        let mount = mount(&missing, "v");
        let mut waited = Vec::new();
        for _ in 0..8 {
            waited.push(waits(&mount, None).await);
            mount.answered(Some(Code::NotFound));
        }
        assert_eq!(waited, [0, 1, 2, 4, 8, 16, 30, 30]);
        let publish = missing.mount(Method::NodePublishVolume, &volume("v")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(12);
        assert_eq!(waits(&publish, Some(deadline)).await, 7, "the driver is asked before it");
        assert_eq!(waits(&self::mount(&missing, "w"), None).await, 0, "it is about one volume");
        publish.answered(None);
        assert_eq!(waits(&mount, None).await, 0, "it is there again");
        mount.answered(Some(Code::NotFound));
        mount.answered(Some(Code::Internal));
        assert_eq!(waits(&mount, None).await, 0, "other errors are the kubelet's to wait after");
    }

    #[tokio::test(start_paused = true)]
    async fn only_mounts_wait_and_the_number_of_volumes_is_bounded() {
        let missing = MissingVolumes::default();
        let other = [Method::NodeUnstageVolume, Method::NodeUnpublishVolume, Method::DeleteVolume];
        assert!(other.iter().all(|method| missing.mount(*method, &volume("v")).is_none()));
        for number in 0..=MOST {
            mount(&missing, &number.to_string()).answered(Some(Code::NotFound));
        }
        assert_eq!(missing.lock().len(), MOST);
        tokio::time::advance(FIRST + LONGEST).await;
        mount(&missing, "later").answered(Some(Code::NotFound));
        assert_eq!(missing.lock().len(), 1, "those that nobody asks for are forgotten");
    }
}
