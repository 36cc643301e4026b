//! Finds the block device that a driver has published.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::host::{Device, DeviceError, Host};

/// The runtimes' name of this kind.
pub(crate) const TYPE: &str = "directvol";

/// The time to wait for a process that opens the device for a moment, such as udev.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(50);

/// The device that the driver has published, if nobody else uses it.
///
/// # Errors
/// There is none, or somebody uses it.
pub(crate) async fn device(host: &Host, private: &Path) -> Result<Device, DeviceError> {
    let end = Instant::now() + PATIENCE;
    loop {
        match look(host.clone(), private.to_owned()).await {
            Err(DeviceError::Held { .. }) if Instant::now() < end => {
                tokio::time::sleep(BETWEEN).await
            }
            looked => return looked,
        }
    }
}

async fn look(host: Host, private: PathBuf) -> Result<Device, DeviceError> {
    let path = private.display().to_string();
    let look = move || {
        let device = host.device(&private)?;
        host.is_free(&private, device.number)?;
        Ok(device)
    };
    // An open may take as long as the device likes.
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|gone| {
        Err(DeviceError::Absent { path, source: std::io::Error::other(gone) })
    })
}
