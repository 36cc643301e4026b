//! The Controller service: publication to the node, lists and capacity. Volumes and snapshots have
//! own files.

use std::sync::PoisonError;

use proto::csi::controller_server::Controller;
use proto::csi::controller_service_capability::rpc::Type as RpcType;
use proto::csi::controller_service_capability::{Rpc, Type};
use proto::csi::*;
use tonic::{Request, Response, Status, async_trait};

use super::HostDir;
use super::check;
use super::core::Core;
use super::record::{Attached, Volume};

impl Core {
    pub(super) fn attach(
        &self,
        q: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        check::id("volume_id", &q.volume_id)?;
        check::present("node_id", &q.node_id)?;
        let capability = check::capability(q.volume_capability)?;
        let _held = self.locks.take("volume", &q.volume_id)?;
        let mut volume = self.volume(&q.volume_id)?;
        if q.node_id != self.node() {
            return Err(Status::not_found(format!(
                "node {} does not exist; there is {}",
                q.node_id,
                self.node()
            )));
        }
        fitting(&volume, capability.block)?;
        let wanted = Attached { capability, readonly: q.readonly };
        match volume.attached.get(&q.node_id) {
            Some(there) if *there == wanted => {
                return Ok(ControllerPublishVolumeResponse::default());
            }
            Some(_) => {
                return Err(Status::already_exists(format!(
                    "volume {} is published to node {} with another capability or readonly flag",
                    volume.id, q.node_id
                )));
            }
            None => {}
        }
        let _counting = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self
            .volumes
            .all()
            .iter()
            .filter(|volume| volume.attached.contains_key(&q.node_id))
            .count();
        let limit = usize::try_from(self.settings.attach_limit).unwrap_or(usize::MAX);
        if limit > 0 && count >= limit {
            return Err(Status::resource_exhausted(format!(
                "node {} has {count} volumes, and {limit} is the most",
                q.node_id
            )));
        }
        volume.attached.insert(q.node_id, wanted);
        self.volumes.update(volume)?;
        Ok(ControllerPublishVolumeResponse::default())
    }

    fn detach(
        &self,
        q: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        check::id("volume_id", &q.volume_id)?;
        let _held = self.locks.take("volume", &q.volume_id)?;
        // What is not there is not published: the CO may ask again after it deleted the volume.
        if let Some(mut volume) = self.volumes.get(&q.volume_id) {
            let before = volume.attached.len();
            // No node means all of them.
            volume.attached.retain(|node, _| !q.node_id.is_empty() && *node != q.node_id);
            if volume.attached.len() != before {
                self.volumes.update(volume)?;
            }
        }
        Ok(ControllerUnpublishVolumeResponse {})
    }

    fn validate(
        &self,
        q: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        use validate_volume_capabilities_response::Confirmed;
        check::id("volume_id", &q.volume_id)?;
        let capabilities = check::capabilities(q.volume_capabilities.clone())?;
        let volume = self.volume(&q.volume_id)?;
        let refused =
            |message: String| Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        if let Some(status) = capabilities.iter().find_map(|one| fitting(&volume, one.block).err())
        {
            return refused(status.message().to_owned());
        }
        if let Some((key, _)) =
            q.parameters.iter().find(|(key, value)| volume.parameters.get(*key) != Some(value))
        {
            return refused(format!("the volume was not made with this parameter: {key}"));
        }
        if let Err(status) = check::mutable(q.mutable_parameters.clone()) {
            return refused(status.message().to_owned());
        }
        let confirmed = Confirmed {
            volume_context: q.volume_context,
            volume_capabilities: q.volume_capabilities,
            parameters: q.parameters,
            mutable_parameters: q.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        })
    }

    fn list_volumes(&self, q: ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        use list_volumes_response::{Entry, VolumeStatus};
        let (page, next_token) = check::page(self.volumes.all(), q.max_entries, &q.starting_token)?;
        let entry = |volume: Volume| Entry {
            volume: Some(volume.csi(self.node())),
            status: Some(VolumeStatus { published_node_ids: volume.nodes() }),
        };
        Ok(ListVolumesResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }

    fn get_volume(
        &self,
        q: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        use controller_get_volume_response::VolumeStatus;
        check::id("volume_id", &q.volume_id)?;
        let volume = self.volume(&q.volume_id)?;
        Ok(ControllerGetVolumeResponse {
            volume: Some(volume.csi(self.node())),
            status: Some(VolumeStatus { published_node_ids: volume.nodes() }),
        })
    }

    fn capacity(&self, q: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        if !q.volume_capabilities.is_empty() {
            check::capabilities(q.volume_capabilities)?;
        }
        let here = q
            .accessible_topology
            .is_none_or(|topology| check::here(&topology.segments, self.node()));
        let available = if here { self.available()? } else { 0 };
        Ok(GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(available),
            minimum_volume_size: Some(check::BLOCK),
        })
    }
}

/// Refuses to use a volume as what it is not.
pub(super) fn fitting(volume: &Volume, block: bool) -> Result<(), Status> {
    if volume.block == block {
        return Ok(());
    }
    let kind = |block: bool| if block { "block" } else { "mount" };
    Err(Status::failed_precondition(format!(
        "volume {} is a {} volume, and volume_capability is {}",
        volume.id,
        kind(volume.block),
        kind(block)
    )))
}

fn controller_capabilities(
    _: &Core,
    _: ControllerGetCapabilitiesRequest,
) -> Result<ControllerGetCapabilitiesResponse, Status> {
    let all = [
        RpcType::CreateDeleteVolume,
        RpcType::PublishUnpublishVolume,
        RpcType::ListVolumes,
        RpcType::GetCapacity,
        RpcType::CreateDeleteSnapshot,
        RpcType::ListSnapshots,
        RpcType::CloneVolume,
        RpcType::PublishReadonly,
        RpcType::ExpandVolume,
        RpcType::ListVolumesPublishedNodes,
        RpcType::GetVolume,
        RpcType::SingleNodeMultiWriter,
        RpcType::ModifyVolume,
        RpcType::GetSnapshot,
        RpcType::GetVolumeHealth,
        RpcType::ListVolumeHealth,
    ];
    let one =
        |rpc| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: rpc as i32 })) };
    Ok(ControllerGetCapabilitiesResponse { capabilities: all.map(one).into() })
}

/// Implements the service: each RPC is one function of [`Core`].
macro_rules! controller {
    ($($rpc:ident: $request:ident => $response:ident by $work:expr;)*) => {
        #[async_trait]
        impl Controller for HostDir {
            $(async fn $rpc(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                self.run(request, $work).await
            })*
        }
    };
}

controller! {
    create_volume: CreateVolumeRequest => CreateVolumeResponse by Core::create_volume;
    delete_volume: DeleteVolumeRequest => DeleteVolumeResponse by Core::delete_volume;
    controller_publish_volume: ControllerPublishVolumeRequest => ControllerPublishVolumeResponse by Core::attach;
    controller_unpublish_volume: ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse by Core::detach;
    validate_volume_capabilities: ValidateVolumeCapabilitiesRequest => ValidateVolumeCapabilitiesResponse by Core::validate;
    list_volumes: ListVolumesRequest => ListVolumesResponse by Core::list_volumes;
    controller_list_volume_health: ControllerListVolumeHealthRequest => ControllerListVolumeHealthResponse by Core::list_health;
    controller_get_volume_health: ControllerGetVolumeHealthRequest => ControllerGetVolumeHealthResponse by Core::get_health;
    get_capacity: GetCapacityRequest => GetCapacityResponse by Core::capacity;
    controller_get_capabilities: ControllerGetCapabilitiesRequest => ControllerGetCapabilitiesResponse by controller_capabilities;
    create_snapshot: CreateSnapshotRequest => CreateSnapshotResponse by Core::create_snapshot;
    delete_snapshot: DeleteSnapshotRequest => DeleteSnapshotResponse by Core::delete_snapshot;
    list_snapshots: ListSnapshotsRequest => ListSnapshotsResponse by Core::list_snapshots;
    get_snapshot: GetSnapshotRequest => GetSnapshotResponse by Core::get_snapshot;
    controller_expand_volume: ControllerExpandVolumeRequest => ControllerExpandVolumeResponse by Core::expand_volume;
    controller_get_volume: ControllerGetVolumeRequest => ControllerGetVolumeResponse by Core::get_volume;
    controller_modify_volume: ControllerModifyVolumeRequest => ControllerModifyVolumeResponse by Core::modify_volume;
}
