//! The GroupController service: snapshots of several volumes, all or none.

use std::collections::BTreeSet;

use crate::grpc::group_controller_server::GroupController;
use proto::csi::group_controller_service_capability::rpc::Type as RpcType;
use proto::csi::group_controller_service_capability::{Rpc, Type};
use proto::csi::*;
use tonic::{Request, Response, Status, async_trait};
use uuid::Uuid;

use super::check;
use super::core::Core;
use super::driver::HostDir;
use super::loops;
use super::record::{Group, VolumeRecord, now, timestamp};

impl Core {
    /// CreateVolumeGroupSnapshot, which is idempotent by the group's name.
    ///
    /// CSI: either all snapshots of a group are made or none.
    pub(super) fn create_group(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<CreateVolumeGroupSnapshotResponse, Status> {
        check::name(&request.name)?;
        if request.source_volume_ids.is_empty() {
            return Err(Status::invalid_argument("source_volume_ids is missing"));
        }
        for id in &request.source_volume_ids {
            check::id("source_volume_ids", id)?;
        }
        let sources: BTreeSet<String> = request.source_volume_ids.into_iter().collect();
        let _name = self.locks.take("the group snapshot name", &request.name)?;
        if let Some(there) = self.groups.by_name(&request.name) {
            if !there.volumes.iter().eq(&sources) {
                return Err(Status::already_exists(format!(
                    "group snapshot {} is named {} already, and is of other volumes",
                    there.id, request.name
                )));
            }
            return Ok(CreateVolumeGroupSnapshotResponse {
                group_snapshot: Some(self.describe(&there)),
            });
        }
        let _held: Vec<_> =
            sources.iter().map(|id| self.locks.share("volume", id)).collect::<Result<_, _>>()?;
        let volumes: Vec<_> = sources.iter().map(|id| self.volume(id)).collect::<Result<_, _>>()?;
        for volume in &volumes {
            loops::flush(&self.data(volume), volume.block)?;
        }
        let group = self.snap_all(request.name, &volumes)?;
        Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(self.describe(&group)) })
    }

    fn snap_all(&self, name: String, volumes: &[VolumeRecord]) -> Result<Group, Status> {
        let id = Uuid::new_v4().to_string();
        let mut snapshots = Vec::new();
        let made = volumes.iter().try_for_each(|volume| {
            snapshots.push(self.snap(volume, String::new(), Some(id.clone()))?.id);
            Ok(())
        });
        let volumes = volumes.iter().map(|volume| volume.id.clone()).collect();
        let group = Group { id: id.clone(), name, created: now(), snapshots, volumes };
        let made = made.and_then(|()| self.groups.admit(self.groups.draft(&id)?, group.clone()));
        if made.is_err() {
            for snapshot in &group.snapshots {
                // The next start removes what stays.
                let _ = self.snapshots.remove(snapshot);
            }
        }
        made.map(|()| group)
    }

    /// DeleteVolumeGroupSnapshot, which is idempotent. It deletes the members too.
    pub(super) fn delete_group(
        &self,
        request: DeleteVolumeGroupSnapshotRequest,
    ) -> Result<DeleteVolumeGroupSnapshotResponse, Status> {
        check::id("group_snapshot_id", &request.group_snapshot_id)?;
        let _held = self.locks.take("group snapshot", &request.group_snapshot_id)?;
        let group = self.groups.get(&request.group_snapshot_id);
        if let Some(group) = &group {
            members(group, &request.snapshot_ids)?;
        }
        // Also those that an earlier deletion could not remove.
        let mut all = self.snapshots.all();
        all.retain(|snapshot| snapshot.group.as_ref() == Some(&request.group_snapshot_id));
        let _members: Vec<_> = all
            .iter()
            .map(|member| self.locks.take("snapshot", &member.id))
            .collect::<Result<_, _>>()?;
        // The group first: members without one are removed at the next start.
        if let Some(group) = &group {
            self.groups.remove(&group.id)?;
        }
        for member in all {
            self.snapshots.remove(&member.id)?;
        }
        Ok(DeleteVolumeGroupSnapshotResponse {})
    }

    /// GetVolumeGroupSnapshot.
    pub(super) fn get_group(
        &self,
        request: GetVolumeGroupSnapshotRequest,
    ) -> Result<GetVolumeGroupSnapshotResponse, Status> {
        check::id("group_snapshot_id", &request.group_snapshot_id)?;
        let group = self.groups.get(&request.group_snapshot_id).ok_or_else(|| {
            Status::not_found(format!(
                "group snapshot {} does not exist",
                request.group_snapshot_id
            ))
        })?;
        members(&group, &request.snapshot_ids)?;
        Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(self.describe(&group)) })
    }

    fn describe(&self, group: &Group) -> VolumeGroupSnapshot {
        let snapshots = group.snapshots.iter().filter_map(|id| self.snapshots.get(id));
        VolumeGroupSnapshot {
            group_snapshot_id: group.id.clone(),
            snapshots: snapshots.map(|snapshot| snapshot.csi(self.topology())).collect(),
            creation_time: Some(timestamp(group.created)),
            ready_to_use: true,
        }
    }
}

/// Refuses a list of members that is not the group's.
fn members(group: &Group, given: &[String]) -> Result<(), Status> {
    if given.iter().collect::<BTreeSet<_>>() == group.snapshots.iter().collect() {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "snapshot_ids are not those of the group snapshot {}",
        group.id
    )))
}

fn group_capabilities(
    _: &Core,
    _: GroupControllerGetCapabilitiesRequest,
) -> Result<GroupControllerGetCapabilitiesResponse, Status> {
    let rpc = Rpc { r#type: RpcType::CreateDeleteGetVolumeGroupSnapshot as i32 };
    let capabilities = vec![GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
    Ok(GroupControllerGetCapabilitiesResponse { capabilities })
}

#[async_trait]
impl GroupController for HostDir {
    async fn group_controller_get_capabilities(
        &self,
        request: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        self.run(request, group_capabilities).await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        self.run(request, Core::create_group).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        self.run(request, Core::delete_group).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        self.run(request, Core::get_group).await
    }
}
