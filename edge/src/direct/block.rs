//! A volume that is handed over as a block device of the host.

use std::path::Path;

use super::device::{Device, DeviceError, Host};

/// What the runtimes call it.
pub(super) const TYPE: &str = "directvol";

/// The device at which the driver has published, if nobody else uses it.
///
/// # Errors
/// There is none, or who uses it.
pub(super) async fn device(host: &Host, private: &Path) -> Result<Device, DeviceError> {
    let (host, private) = (host.clone(), private.to_owned());
    let look = move || {
        let device = host.device(&private)?;
        host.is_free(&private, device.number)?;
        Ok(device)
    };
    // An open may take as long as the device likes.
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|gone| {
        let source = std::io::Error::other(gone);
        Err(DeviceError::Absent { path: "the device".into(), source })
    })
}
