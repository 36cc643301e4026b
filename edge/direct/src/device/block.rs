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
    let look = || look(host.clone(), private.to_owned());
    while_held(look, |error| matches!(error, DeviceError::Held { .. })).await
}

/// Looks again for a moment while a process has the device open.
///
/// # Errors
/// The last look's.
pub(crate) async fn while_held<T, E, F>(
    look: impl Fn() -> F,
    is_held: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let end = Instant::now() + PATIENCE;
    loop {
        match look().await {
            Err(error) if is_held(&error) && Instant::now() < end => {
                tokio::time::sleep(BETWEEN).await;
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
