//! A volume that was taken from this node: no guest that begins now is to find it. One that has it is left alone, and
//! unpublishing it ends this.

use std::sync::Arc;

use proto::error::{Error, chain};
use tracing::{error, warn};

use super::super::Direct;
use super::super::published;
use super::super::published::Published;
use super::super::standing::Absent;
use super::lease::Lease;

/// What a pod is told that wants it.
pub(super) fn refusal(volume: &str, why: &str) -> Arc<Error> {
    let why = format!(
        "{why}. What is here may be older than what another has written: delete the pod whose guest runs with it here, if \
         one does, and when it is unpublished ask again"
    );
    Error::Owned { volume: volume.to_owned(), why }.into()
}

impl Direct {
    /// Sees to it that no runtime is told of a volume; false while one is, since a guest has it. That is said each time,
    /// because its guest destroys data.
    pub(super) async fn hide(&self, driver: &str, volume: &str) -> bool {
        let Some(state) = &self.state else { return true };
        let records = match published::of(state, driver, volume) {
            Ok(records) => records,
            Err(error) => {
                warn!(driver, volume, error = chain(&error), "it is not known where a fenced volume is");
                return false;
            }
        };
        let mut all = true;
        for record in records {
            all &= self.hide_at(&record).await;
        }
        all
    }

    async fn hide_at(&self, record: &Published) -> bool {
        let (driver, volume) = (&record.driver, &record.volume_id);
        let entry = self.root.entry(&record.target);
        if entry.is_ok_and(|entry| entry.symlink_metadata().is_err()) {
            return true;
        }
        let removed = async {
            self.is_let_go_now(record, Absent::Lost).await.map_err(|error| chain(&error))?;
            self.root.remove(&record.target, driver, volume).map_err(|error| chain(&error))
        };
        if let Err(error) = removed.await {
            warn!(driver, volume, error, "a fenced volume is still with a guest here; delete its pod");
            return false;
        }
        // One may have found it between the look and the removal.
        if let Err(error) = self.is_let_go_now(record, Absent::Lost).await {
            let error = chain(&error);
            error!(driver, volume, error, "a guest has begun with a fenced volume just now; delete its pod");
        }
        true
    }

    /// Whether a volume was taken from this node; also if that cannot be read.
    pub(in super::super) fn is_fenced(&self, record: &Published) -> bool {
        let Some(state) = &self.state else { return false };
        let kept = self.known.of(state, &record.driver, &record.volume_id);
        kept.map_or(true, |kept| kept.is_some_and(|kept| matches!(kept.lease, Lease::Fenced { .. })))
    }
}
