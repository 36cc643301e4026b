//! What is handed over, looked at when csi-edge starts: what the runtime was told is there again after it was lost,
//! and is gone where a device has become another's.
//!
//! Nothing is formatted, and the driver is not asked, here: that is for the kubelet's next call.

use tracing::{info, warn};

use super::probe::probe;
use super::published::{self, Kind, Published, State};
use super::{Direct, device};

impl Direct {
    /// Looks at each record once.
    pub async fn reconcile(&self) {
        let Some(state) = &self.state else { return };
        let records = match published::all(state) {
            Ok(records) => records,
            Err(error) => {
                let error = proto::error::chain(&error);
                warn!(error, "it is not known what is handed over directly; no such volume is touched");
                return;
            }
        };
        for record in records.iter().filter(|record| record.state == State::Published) {
            let (driver, volume) = (&record.driver, &record.volume_id);
            if self.is_still(record).await {
                match self.show(record) {
                    Ok(()) => info!(driver, volume, "is handed over directly"),
                    Err(error) => warn!(driver, volume, error = error.chain(), "not shown to its runtime"),
                }
                continue;
            }
            // A runtime that started a container now would give it somebody else's device.
            match self.root.remove(&record.target, driver, volume) {
                Ok(()) => {
                    info!(driver, volume, "its device is not there; the next NodePublishVolume brings it")
                }
                Err(error) => {
                    let error = proto::error::chain(&error);
                    warn!(
                        driver,
                        volume, error, "its device is not there, and the runtime is still told of it"
                    );
                }
            }
        }
    }

    /// Whether the device is the volume still. Numbers and names are used again; the file system's UUID is its own.
    async fn is_still(&self, record: &Published) -> bool {
        if record.boot != self.host.boot() {
            return false;
        }
        if record.kind != Kind::Block {
            return record.device.exists();
        }
        let same = device::number(&record.private_path).is_ok_and(|number| number == record.number)
            && device::number(&record.device).is_ok_and(|number| number == record.number);
        let seen = if same { probe(&record.private_path).await.ok() } else { None };
        seen.and_then(|seen| seen.signature).is_some_and(|found| found.uuid == record.uuid)
    }
}
