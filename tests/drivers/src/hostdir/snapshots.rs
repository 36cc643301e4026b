//! Snapshots: full copies, which outlive their volumes.

use proto::csi::*;
use tonic::Status;
use uuid::Uuid;

use super::check;
use super::core::Core;
use super::data;
use super::loops;
use super::record::{Snapshot, Volume, now};

impl Core {
    pub(super) fn create_snapshot(
        &self,
        q: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        check::name(&q.name)?;
        check::id("source_volume_id", &q.source_volume_id)?;
        check::topology(q.accessibility_requirements.as_ref(), self.node())?;
        let wanted = q.accessibility_requirements.unwrap_or_default().requisite;
        let _name = self.locks.take("the snapshot name", &q.name)?;
        if let Some(there) = self.snapshots.by_name(&q.name) {
            if there.volume != q.source_volume_id {
                return Err(Status::already_exists(format!(
                    "snapshot {} is named {} already, and is of volume {}",
                    there.id, q.name, there.volume
                )));
            }
            return Ok(self.created(&there, &wanted));
        }
        let _source = self.locks.share("volume", &q.source_volume_id)?;
        let volume = self.volume(&q.source_volume_id)?;
        loops::flush(&self.data(&volume), volume.block)?;
        let snapshot = self.snap(&volume, q.name, None)?;
        Ok(self.created(&snapshot, &wanted))
    }

    /// The answer to CreateSnapshot. Whoever asked for just this node is not told again: csi-sanity
    /// 5.6.0 compares the topology it gets with the one it sent by their Go internals, which differ
    /// for any driver that says it.
    fn created(&self, snapshot: &Snapshot, wanted: &[Topology]) -> CreateSnapshotResponse {
        let mut snapshot = snapshot.csi(self.node());
        if snapshot.accessible_topology == wanted {
            snapshot.accessible_topology.clear();
        }
        CreateSnapshotResponse { snapshot: Some(snapshot) }
    }

    /// Copies a volume that the caller holds and has flushed.
    pub(super) fn snap(
        &self,
        volume: &Volume,
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

    pub(super) fn delete_snapshot(
        &self,
        q: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        check::id("snapshot_id", &q.snapshot_id)?;
        let _held = self.locks.take("snapshot", &q.snapshot_id)?;
        let Some(snapshot) = self.snapshots.get(&q.snapshot_id) else {
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

    pub(super) fn get_snapshot(
        &self,
        q: GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, Status> {
        check::id("snapshot_id", &q.snapshot_id)?;
        let snapshot = self.snapshot(&q.snapshot_id)?;
        Ok(GetSnapshotResponse { snapshot: Some(snapshot.csi(self.node())) })
    }

    pub(super) fn list_snapshots(
        &self,
        q: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let mut all = self.snapshots.all();
        all.retain(|snapshot| {
            (q.snapshot_id.is_empty() || q.snapshot_id == snapshot.id)
                && (q.source_volume_id.is_empty() || q.source_volume_id == snapshot.volume)
        });
        let (page, next_token) = check::page(all, q.max_entries, &q.starting_token)?;
        let entry = |snapshot: Snapshot| list_snapshots_response::Entry {
            snapshot: Some(snapshot.csi(self.node())),
        };
        Ok(ListSnapshotsResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }
}
