//! Claims a device for a volume, and makes sure that nobody uses it any more.
//!
//! What cannot be found out counts as in use: nothing is taken away, or given to anybody else, for
//! that.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use proto::csi::direct::DeviceKind;
use rustix::fs::FileType;
use tokio::time::Instant;

use super::node::Node;
use crate::device::host;
use crate::device::host::{Device, DeviceError, Host};
use crate::device::vfio;
use crate::error::{Error, HANDED_OVER, TAKEN_BACK, not_yet};
use crate::records::published;
use crate::records::published::{PublicationState, Published};

/// The time to wait for a VM that is just ending, or for udev to close the device.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(50);

/// The meaning of a driver's device that is missing at its path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The driver may have taken it back: it was asked to.
    TakenBack,
    /// Nobody asked the driver, so an earlier holder may still have the device.
    Lost,
}

impl Absent {
    /// What it means for a volume with this record.
    pub(crate) fn of(record: &Published) -> Self {
        if record.unpublishing { Self::TakenBack } else { Self::Lost }
    }
}

/// Removes a volume's entry, and makes sure that nobody uses its device.
///
/// In the other order a VM could start between the two.
///
/// # Errors
/// The entry cannot be removed, somebody may use the device, or the host cannot get it back.
pub(crate) async fn withdraw(node: &Node, record: &Published, absent: Absent) -> Result<(), Error> {
    let volume = &record.volume_id;
    let removed = node.root.remove(&record.target, &record.driver, volume);
    removed.map_err(not_yet(volume, TAKEN_BACK))?;
    wait_released(node, record, absent).await.map_err(not_yet(volume, TAKEN_BACK))?;
    give_back(node, record).await
}

/// Waits a moment until nobody uses the volume's device.
///
/// # Errors
/// Somebody still uses it after that, or this is not known.
pub(crate) async fn wait_released(
    node: &Node,
    record: &Published,
    absent: Absent,
) -> Result<(), DeviceError> {
    let end = Instant::now() + PATIENCE;
    loop {
        match check_released(node, record, absent).await {
            Err(DeviceError::Held { .. } | DeviceError::InUse(_) | DeviceError::Looped { .. })
                if Instant::now() < end =>
            {
                tokio::time::sleep(BETWEEN).await;
            }
            checked => return checked,
        }
    }
}

/// Checks that nobody uses the volume's device now.
///
/// # Errors
/// Somebody uses it, or this is not known.
pub(crate) async fn check_released(
    node: &Node,
    record: &Published,
    absent: Absent,
) -> Result<(), DeviceError> {
    // No process outlives its boot.
    if node.host.is_other_boot(&record.boot) {
        return Ok(());
    }
    let passed_on = other_with(node, record, record.number)?.is_some();
    let host = node.host.clone();
    let record = record.clone();
    let path = record.private_path.display().to_string();
    // An open may take as long as the device likes.
    let check = move || is_released(&host, &record, absent, passed_on);
    let checked = tokio::task::spawn_blocking(check).await;
    checked
        .unwrap_or_else(|gone| Err(DeviceError::Unknown { path, source: io::Error::other(gone) }))
}

/// Records that a device is this volume's, before anything is written to it.
///
/// # Errors
/// Another volume has it, or the record cannot be kept.
pub(crate) fn claim(node: &Node, record: &mut Published, device: &Device) -> Result<(), Error> {
    let volume = record.volume_id.clone();
    let state = node.state(&volume)?;
    let _one = node.claims.lock();
    let other = other_with(node, record, device.number).map_err(not_yet(&volume, HANDED_OVER))?;
    if let Some(other) = other {
        let path = device.path.display().to_string();
        let taken = DeviceError::Anothers { path, volume: other.volume_id };
        return Err(not_yet(&volume, HANDED_OVER)(taken));
    }
    record.number = device.number;
    record.keep(state).map_err(not_yet(&volume, HANDED_OVER))
}

/// The record of another volume that has the block device with this number. A controller that was
/// handed over has none any more, and its number may be any device's. A damaged record hinders its
/// own volume only. While the records cannot be read, any volume may have it.
fn other_with(
    node: &Node,
    record: &Published,
    number: u64,
) -> Result<Option<Published>, DeviceError> {
    let Some(state) = node.state.as_deref() else { return Ok(None) };
    let unknown = |source| DeviceError::Unknown { path: state.display().to_string(), source };
    let records = published::each(state).map_err(unknown)?;
    Ok(records.into_iter().flatten().find(|other| {
        let is_gone = other.kind == DeviceKind::Vfio && other.state == PublicationState::Published;
        !other.is_of(record)
            && other.number == number
            && !is_gone
            && node.host.is_boot(&other.boot)
            && host::number(&other.private_path).is_ok_and(|there| there == number)
    }))
}

/// Gives the host back a PCI device that a VM was given.
async fn give_back(node: &Node, record: &Published) -> Result<(), Error> {
    // At boot the kernel gives all devices to their own drivers. Before the driver was asked, the
    // host got the device back: the group's number may be another volume's since.
    if record.kind != DeviceKind::Vfio
        || record.unpublishing
        || record.device.as_os_str().is_empty()
        || node.host.is_other_boot(&record.boot)
    {
        return Ok(());
    }
    let host = node.host.clone();
    let device = record.device.clone();
    let given = vfio::aside(move || match vfio::handed_over(&host, &device)? {
        Some(pci) => pci.give_back(&host, &vfio::kernel),
        None => Ok(()),
    });
    given.await.map_err(not_yet(&record.volume_id, "given back to the host"))
}

fn is_released(
    host: &Host,
    record: &Published,
    absent: Absent,
    passed_on: bool,
) -> Result<(), DeviceError> {
    let handed_over = !record.device.as_os_str().is_empty();
    match record.kind {
        // Only SPDK's driver knows who is connected to a socket.
        DeviceKind::Spdk => Ok(()),
        // Nobody had it when the driver was asked, and nobody has got it since.
        DeviceKind::Vfio if handed_over && absent == Absent::TakenBack => Ok(()),
        DeviceKind::Vfio if handed_over => match number_of(&record.device)? {
            Some(number) => host.is_closed(FileType::CharacterDevice, number, &record.device),
            None => Ok(()),
        },
        DeviceKind::Block | DeviceKind::Vfio => is_block_released(host, record, absent, passed_on),
    }
}

fn is_block_released(
    host: &Host,
    record: &Published,
    absent: Absent,
    passed_on: bool,
) -> Result<(), DeviceError> {
    let here = match host::number(&record.private_path) {
        Err(DeviceError::Absent { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        Err(DeviceError::NoBlockDevice(_)) => None,
        here => Some(here?),
    };
    if let Some(here) = here {
        host.is_let_go(&record.private_path, here)?;
    }
    let was = record.number;
    let known = was == 0 || here == Some(was) || passed_on;
    if known || (here.is_none() && absent == Absent::TakenBack) {
        return Ok(());
    }
    host.is_closed(FileType::BlockDevice, was, &record.device)
}

/// The number of a device that may be gone.
fn number_of(path: &Path) -> Result<Option<u64>, DeviceError> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(Some(meta.rdev())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DeviceError::Absent { path: path.display().to_string(), source }),
    }
}

#[cfg(test)]
mod tests;
