//! How much is used, and whether the data is well: measured, not remembered.

use std::fs;
use std::os::unix::fs::MetadataExt;

use proto::csi::volume_health::VolumeHealthEntry;
use proto::csi::volume_usage::Unit;
use proto::csi::*;
use tonic::Status;

use super::check;
use super::core::Core;
use super::data;
use super::fail::Doing as _;
use super::mounts;
use super::record::VolumeRecord;

impl Core {
    /// NodeGetVolumeStats: the bytes and files that are measured at the path.
    ///
    /// CSI: a volume that is not at the path is NOT_FOUND.
    pub(super) fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::present("volume_path", &request.volume_path)?;
        let volume = self.volume(&request.volume_id)?;
        located(&volume, &request.volume_path)?;
        let path = self.data(&volume);
        let what = || format!("measure {}", path.display());
        let room = data::room(&self.state)?;
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let bytes = |total: i64, used: i64| VolumeUsage {
            available: (total - used).clamp(0, room.available),
            total,
            used,
            unit: Unit::Bytes as i32,
        };
        if volume.block {
            let meta = fs::metadata(&path).doing(what)?;
            return Ok(NodeGetVolumeStatsResponse {
                usage: vec![bytes(signed(meta.len()), signed(meta.blocks() * 512))],
            });
        }
        let (used, files) = data::used(&path).doing(what)?;
        let inodes = VolumeUsage {
            available: room.files_available,
            total: room.files,
            used: signed(files),
            unit: Unit::Inodes as i32,
        };
        Ok(NodeGetVolumeStatsResponse { usage: vec![bytes(volume.capacity, signed(used)), inodes] })
    }

    pub(super) fn list_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, Status> {
        let (page, next_token) =
            check::page(self.volumes.all(), request.max_entries, &request.starting_token)?;
        let entries = page.iter().map(|volume| health(volume, self.ills(volume))).collect();
        Ok(ControllerListVolumeHealthResponse { entries, next_token })
    }

    pub(super) fn get_health(
        &self,
        request: ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        Ok(ControllerGetVolumeHealthResponse {
            volume_health: Some(health(&volume, self.ills(&volume))),
        })
    }

    pub(super) fn node_health(
        &self,
        request: NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        let mut ills = self.ills(&volume);
        let staging = if volume.block { "" } else { request.staging_target_path.as_str() };
        for path in [request.volume_publish_path.as_str(), staging] {
            if !path.is_empty() && !mounts::is_mount(path) {
                ills.push(ill(
                    VolumeHealthErrorType::Inaccessible,
                    "NotMounted",
                    format!("nothing is mounted at {path}"),
                ));
            }
        }
        Ok(NodeGetVolumeHealthResponse { volume_health: Some(health(&volume, ills)) })
    }

    /// Checks a volume's data.
    fn ills(&self, volume: &VolumeRecord) -> Vec<VolumeHealthEntry> {
        use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
        let path = self.data(volume);
        let shown = path.display();
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return vec![ill(DataLoss, "DataMissing", format!("{shown} is gone"))];
            }
            Err(error) => {
                return vec![ill(Inaccessible, "DataUnreadable", format!("{shown}: {error}"))];
            }
        };
        if meta.is_dir() == volume.block {
            return vec![ill(DataLoss, "DataReplaced", format!("{shown} is of another kind"))];
        }
        let length = i64::try_from(meta.len()).unwrap_or(i64::MAX);
        if volume.block && length < volume.capacity {
            let capacity = volume.capacity;
            return vec![ill(
                DataLoss,
                "DataTruncated",
                format!("{shown} has {length} of {capacity} bytes"),
            )];
        }
        match data::room(&path) {
            Ok(room) if room.readonly => {
                vec![ill(Degraded, "ReadOnly", format!("{shown} cannot be written"))]
            }
            Ok(_) => vec![],
            Err(status) => vec![ill(Inaccessible, "DataUnreadable", status.message().to_owned())],
        }
    }

    pub(super) fn storage_health(
        &self,
        _: NodeGetStorageHealthRequest,
    ) -> Result<NodeGetStorageHealthResponse, Status> {
        use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
        let found = match data::room(&self.state) {
            Err(status) => Some((StorageUnreachable, "Unreadable", status.message().to_owned())),
            Ok(room) if room.readonly => Some((
                StorageDegraded,
                "ReadOnly",
                format!("{} cannot be written", self.state.display()),
            )),
            Ok(room) if room.available < room.total / 100 => Some((
                StorageDegraded,
                "AlmostFull",
                format!("{} bytes are available", room.available),
            )),
            Ok(_) => None,
        };
        let entry = |(status, reason, message): (StorageHealthErrorType, &str, String)| {
            node_get_storage_health_response::StorageBackendHealth {
                status: status as i32,
                reason: reason.to_owned(),
                message,
                volume_capability: None,
            }
        };
        Ok(NodeGetStorageHealthResponse { backend_health: found.map(entry).into_iter().collect() })
    }
}

fn health(volume: &VolumeRecord, health_statuses: Vec<VolumeHealthEntry>) -> VolumeHealth {
    VolumeHealth { volume_id: volume.id.clone(), health_statuses }
}

fn ill(status: VolumeHealthErrorType, reason: &str, message: String) -> VolumeHealthEntry {
    VolumeHealthEntry { status: status as i32, reason: reason.to_owned(), message }
}

/// Refuses a path at which a volume is not.
pub(super) fn located(volume: &VolumeRecord, path: &str) -> Result<(), Status> {
    let staged = volume.staged.as_ref().is_some_and(|staged| staged.path == path);
    if staged || volume.targets.contains_key(path) {
        return Ok(());
    }
    Err(Status::not_found(format!(
        "volume {} is neither published nor staged at {path}",
        volume.id
    )))
}
