//! Snapshots: full copies, which outlive their volumes.

use proto::csi::*;
use tonic::Status;
use uuid::Uuid;

use super::check;
use super::core::Core;
use super::data;
use super::loops;
use super::record::{Snapshot, VolumeRecord, now};

impl Core {
    /// CreateSnapshot, which is idempotent by the snapshot's name.
    ///
    /// CSI: a snapshot of this name and source is OK; of another source it is ALREADY_EXISTS.
    pub(super) fn create_snapshot(
        &self,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        check::name(&request.name)?;
        check::id("source_volume_id", &request.source_volume_id)?;
        self.check_place(request.accessibility_requirements.as_ref())?;
        let wanted = request.accessibility_requirements.unwrap_or_default().requisite;
        let _name = self.locks.take("the snapshot name", &request.name)?;
        if let Some(there) = self.snapshots.by_name(&request.name) {
            if there.volume != request.source_volume_id {
                return Err(Status::already_exists(format!(
                    "snapshot {} is named {} already, and is of volume {}",
                    there.id, request.name, there.volume
                )));
            }
            return Ok(self.created(&there, &wanted));
        }
        let _source = self.locks.share("volume", &request.source_volume_id)?;
        let volume = self.volume(&request.source_volume_id)?;
        loops::flush(&self.data(&volume), volume.block)?;
        let snapshot = self.snap(&volume, request.name, None)?;
        Ok(self.created(&snapshot, &wanted))
    }

    /// The answer to CreateSnapshot. It has no topology if the request names just this node.
    /// csi-sanity 5.6.0 compares the two topologies by Go internals, which differ for every driver.
    fn created(&self, snapshot: &Snapshot, wanted: &[Topology]) -> CreateSnapshotResponse {
        let mut snapshot = snapshot.csi(self.topology());
        if snapshot.accessible_topology == wanted {
            snapshot.accessible_topology.clear();
        }
        CreateSnapshotResponse { snapshot: Some(snapshot) }
    }

    /// Copies a volume that the caller holds and has flushed.
    pub(super) fn snap(
        &self,
        volume: &VolumeRecord,
        name: String,
        group: Option<String>,
    ) -> Result<Snapshot, Status> {
        let id = Uuid::new_v4().to_string();
        let draft = self.snapshots.draft(&id)?;
        data::copy(&self.data(volume), &data::path(&draft.dir, volume.block))?;
        let size = volume.capacity;
        let block = volume.block;
        let volume = volume.id.clone();
        let snapshot = Snapshot { id, name, created: now(), size, block, volume, group };
        self.snapshots.admit(draft, snapshot.clone())?;
        Ok(snapshot)
    }

    /// DeleteSnapshot, which is idempotent.
    ///
    /// CSI: a snapshot that does not exist is OK.
    pub(super) fn delete_snapshot(
        &self,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        check::id("snapshot_id", &request.snapshot_id)?;
        let _held = self.locks.take("snapshot", &request.snapshot_id)?;
        let Some(snapshot) = self.snapshots.get(&request.snapshot_id) else {
            return Ok(DeleteSnapshotResponse {});
        };
        if let Some(group) = snapshot.group {
            return Err(Status::invalid_argument(format!(
                "snapshot {} is part of the group snapshot {group}, and is deleted with it",
                snapshot.id
            )));
        }
        self.snapshots.remove(&snapshot.id)?;
        Ok(DeleteSnapshotResponse {})
    }

    /// GetSnapshot.
    pub(super) fn get_snapshot(
        &self,
        request: GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, Status> {
        check::id("snapshot_id", &request.snapshot_id)?;
        let snapshot = self.snapshot(&request.snapshot_id)?;
        Ok(GetSnapshotResponse { snapshot: Some(snapshot.csi(self.topology())) })
    }

    /// ListSnapshots, by id, by source, or all in pages.
    ///
    /// CSI: an id or a source that does not exist is an empty list, not an error.
    pub(super) fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let mut all = self.snapshots.all();
        all.retain(|snapshot| {
            (request.snapshot_id.is_empty() || request.snapshot_id == snapshot.id)
                && (request.source_volume_id.is_empty()
                    || request.source_volume_id == snapshot.volume)
        });
        let (page, next_token) = check::page(all, request.max_entries, &request.starting_token)?;
        let entry = |snapshot: Snapshot| list_snapshots_response::Entry {
            snapshot: Some(snapshot.csi(self.topology())),
        };
        Ok(ListSnapshotsResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }
}
