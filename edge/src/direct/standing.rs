//! Whether what was handed over is still this volume, and whether anybody still has it.
//!
//! Numbers and names of devices are used again; the file system's UUID is its own. What cannot be found out is neither
//! yes nor no, and nothing is taken away, or given to anybody else, for that.

use std::error::Error as StdError;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use proto::error::Error;
use rustix::fs::FileType;
use tokio::time::Instant;

use super::device;
use super::device::{Device, DeviceError, Host};
use super::probe::probe;
use super::published;
use super::published::{Kind, Published};
use super::{Direct, not_yet};

const TAKEN_BACK: &str = "taken back";

/// A VM that is just ending, or udev looking at a device, is waited for as long.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN: Duration = Duration::from_millis(50);

/// What the device of a volume that was handed over is now.
pub(super) enum Standing {
    /// The volume's.
    Same,
    /// Another's, or gone with its boot.
    Another,
    /// It is not known.
    Unknown(Box<dyn StdError + Send + Sync>),
}

/// Whether a device that is not where the driver had published it may have been taken back by the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// It may: the driver was asked to.
    TakenBack,
    /// Nobody asked for that, so who had the device may have it still.
    Lost,
}

impl Direct {
    /// Looks at the device of a volume that was handed over.
    pub(super) async fn standing(&self, record: &Published) -> Standing {
        if self.host.boot().is_empty() {
            return Standing::Unknown("the kernel does not say which boot this is".into());
        }
        if !self.host.is_boot(&record.boot) {
            return Standing::Another;
        }
        if record.kind != Kind::Block {
            return match record.device.try_exists() {
                Ok(true) => Standing::Same,
                Ok(false) => Standing::Another,
                Err(error) => Standing::Unknown(error.into()),
            };
        }
        let numbers = [device::number(&record.private_path), device::number(&record.device)];
        if numbers.iter().flatten().any(|number| *number != record.number) {
            return Standing::Another;
        }
        let found = match probe(&record.device).await {
            Ok(seen) => seen.signature,
            Err(error) => return Standing::Unknown(error.into()),
        };
        match (found, numbers) {
            (Some(found), _) if !found.uuid.eq_ignore_ascii_case(&record.uuid) => Standing::Another,
            (Some(_), [Ok(_), Ok(_)]) => Standing::Same,
            (Some(_), [Err(error), _] | [_, Err(error)]) => Standing::Unknown(error.into()),
            (None, _) => Standing::Unknown("its device reads as if it had no file system".into()),
        }
    }

    /// Tells the runtime no more of a volume, and sees to it that nobody has it any more.
    ///
    /// The other order would leave time for a VM to begin between the two.
    pub(super) async fn withdraw(&self, record: &Published, absent: Absent) -> Result<(), Arc<Error>> {
        let volume = &record.volume_id;
        let removed = self.root.remove(&record.target, &record.driver, volume);
        removed.map_err(not_yet(volume, TAKEN_BACK))?;
        self.is_let_go(record, absent).await.map_err(not_yet(volume, TAKEN_BACK))?;
        self.give_back(record).await
    }

    /// The same, with some patience for who is just ending.
    pub(super) async fn is_let_go(&self, record: &Published, absent: Absent) -> Result<(), DeviceError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.is_let_go_now(record, absent).await {
                Err(DeviceError::Held { .. } | DeviceError::InUse(_)) if Instant::now() < end => {
                    tokio::time::sleep(BETWEEN).await;
                }
                looked => return looked,
            }
        }
    }

    /// Whether nobody has a volume any more, without waiting for who may be just ending.
    pub(super) async fn is_let_go_now(&self, record: &Published, absent: Absent) -> Result<(), DeviceError> {
        // No process outlives its boot.
        if self.host.is_other_boot(&record.boot) {
            return Ok(());
        }
        let passed_on = self.other_with(record, record.number).is_some();
        let (host, record) = (self.host.clone(), record.clone());
        let path = record.private_path.display().to_string();
        // An open may take as long as the device likes.
        let look = move || is_let_go(&host, &record, absent, passed_on);
        let looked = tokio::task::spawn_blocking(look).await;
        looked.unwrap_or_else(|gone| Err(DeviceError::Unknown { path, source: io::Error::other(gone) }))
    }

    /// Notes that a device is this volume's, before it is written to; no two volumes have the same.
    pub(super) fn claim(&self, record: &mut Published, device: &Device) -> Result<(), Arc<Error>> {
        let volume = record.volume_id.clone();
        let state = self.state(&volume)?;
        let _one = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = self.other_with(record, device.number) {
            let (path, other) = (device.path.display().to_string(), other.volume_id);
            return Err(not_yet(&volume, "handed over directly")(DeviceError::Anothers {
                path,
                volume: other,
            }));
        }
        record.number = device.number;
        record.keep(state).map_err(not_yet(&volume, "handed over directly"))
    }

    /// The record of another volume that has the device with this number. A damaged record is in the way of its own
    /// volume only.
    fn other_with(&self, record: &Published, number: u64) -> Option<Published> {
        let records = published::each(self.state.as_deref()?).ok()?;
        records.into_iter().flatten().find(|other| {
            !other.is_of(record)
                && other.number == number
                && self.host.is_boot(&other.boot)
                && device::number(&other.private_path).is_ok_and(|there| there == number)
        })
    }
}

fn is_let_go(host: &Host, record: &Published, absent: Absent, passed_on: bool) -> Result<(), DeviceError> {
    let handed = !record.device.as_os_str().is_empty();
    match record.kind {
        // Who is connected to a socket is not known here; SPDK's driver knows.
        Kind::Spdk => Ok(()),
        Kind::Vfio if handed => match number_of(&record.device)? {
            Some(number) => host.is_closed(FileType::CharacterDevice, number, &record.device),
            None => Ok(()),
        },
        Kind::Block | Kind::Vfio => {
            let here = match device::number(&record.private_path) {
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
    }
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
