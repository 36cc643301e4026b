//! Hides a volume that an operator took from this node, so that no guest that starts later finds
//! it.
//!
//! A guest that has the volume is left alone. Unpublishing the volume ends the fence.

use proto::host::chain;
use tracing::{error, warn};

use crate::error::Error;
use crate::records::published;
use crate::records::published::Published;
use crate::volume::node::Node;
use crate::volume::release;
use crate::volume::release::Absent;

/// The refusal for a pod that wants the volume.
pub(super) fn refusal(volume: &str, why: &str) -> Error {
    let why = format!(
        "{why}. What is here may be older than what another has written: delete the pod whose \
         guest runs with it here, if one does, and when it is unpublished ask again"
    );
    Error::Owned { volume: volume.to_owned(), why }
}

/// Removes a volume's runtime entries. False while a guest has it; that is logged each time,
/// because the guest destroys data.
pub(super) async fn hide(node: &Node, driver: &str, volume: &str) -> bool {
    let Some(state) = &node.state else { return true };
    let records = match published::of(state, driver, volume) {
        Ok(records) => records,
        Err(error) => {
            let error = chain(&error);
            warn!(driver, volume, error, "it is not known where a fenced volume is");
            return false;
        }
    };
    let mut all = true;
    for record in records {
        all &= hide_at(node, &record).await;
    }
    all
}

async fn hide_at(node: &Node, record: &Published) -> bool {
    let driver = &record.driver;
    let volume = &record.volume_id;
    let entry = node.root.entry(&record.target);
    if entry.is_ok_and(|entry| entry.symlink_metadata().is_err()) {
        return true;
    }
    let removed = async {
        let released = release::check_released(node, record, Absent::Lost).await;
        released.map_err(|error| chain(&error))?;
        node.root.remove(&record.target, driver, volume).map_err(|error| chain(&error))
    };
    if let Err(error) = removed.await {
        warn!(driver, volume, error, "a fenced volume is still with a guest here; delete its pod");
        return false;
    }
    // A guest may have found it between the check and the removal.
    if let Err(error) = release::check_released(node, record, Absent::Lost).await {
        let error = chain(&error);
        error!(
            driver,
            volume, error, "a guest has begun with a fenced volume just now; delete its pod"
        );
    }
    true
}
