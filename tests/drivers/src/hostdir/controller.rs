//! The Controller service: publication to the node, lists, capacity and the list of capabilities.
//! `volumes` and `snapshots` have the other RPCs.

use std::fs::File;

use crate::grpc::controller_server::Controller;
use proto::csi::controller_service_capability::rpc::Type as RpcType;
use proto::csi::controller_service_capability::{Rpc, Type};
use proto::csi::*;
use tonic::{Request, Response, Status, async_trait};

use super::check;
use super::core::Core;
use super::driver::HostDir;
use super::keys::ATTACH_WAITS;
use super::record::{Attached, VolumeRecord};

impl Core {
    /// ControllerPublishVolume. There is nothing to attach on one node, so it is only recorded.
    ///
    /// CSI: a volume that is "already published at the node" in a compatible way is OK, in another
    /// way ALREADY_EXISTS. More than the node takes is RESOURCE_EXHAUSTED.
    pub(super) fn attach(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::present("node_id", &request.node_id)?;
        let capability = check::capability(request.volume_capability)?;
        self.wait_for(ATTACH_WAITS);
        let _held = self.locks.take("volume", &request.volume_id)?;
        let mut volume = self.volume(&request.volume_id)?;
        if request.node_id != self.node() {
            return Err(Status::not_found(format!(
                "node {} does not exist; there is {}",
                request.node_id,
                self.node()
            )));
        }
        check_kind(&volume, capability.block)?;
        let wanted = Attached { capability, readonly: request.readonly };
        match volume.attached.get(&request.node_id) {
            Some(there) if *there == wanted => {
                return Ok(ControllerPublishVolumeResponse::default());
            }
            Some(_) => {
                return Err(Status::already_exists(format!(
                    "volume {} is published to node {} with another capability or readonly flag",
                    volume.id, request.node_id
                )));
            }
            None => {}
        }
        let _counting = self.attaching.lock();
        let count = self
            .volumes
            .all()
            .iter()
            .filter(|volume| volume.attached.contains_key(&request.node_id))
            .count();
        let limit = usize::try_from(self.settings.attach_limit).unwrap_or(usize::MAX);
        if limit > 0 && count >= limit {
            return Err(Status::resource_exhausted(format!(
                "node {} has {count} volumes, and {limit} is the most",
                request.node_id
            )));
        }
        volume.attached.insert(request.node_id, wanted);
        self.volumes.update(volume)?;
        Ok(ControllerPublishVolumeResponse::default())
    }

    /// Waits while a pipe of this name in the state directory has no writer.
    pub(super) fn wait_for(&self, pipe: &str) {
        let pipe = self.state.join(pipe);
        if pipe.exists() {
            // Opened as soon as it has a writer, so there is nothing to read.
            let _ = File::open(pipe);
        }
    }

    /// ControllerUnpublishVolume. An empty node id means all nodes.
    ///
    /// CSI: a volume that is not published at the node is OK.
    fn detach(
        &self,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        // A volume that does not exist is published nowhere, so the answer is OK.
        if let Some(mut volume) = self.volumes.get(&request.volume_id) {
            let before = volume.attached.len();
            volume
                .attached
                .retain(|node, _| !request.node_id.is_empty() && *node != request.node_id);
            if volume.attached.len() != before {
                self.volumes.update(volume)?;
            }
        }
        Ok(ControllerUnpublishVolumeResponse {})
    }

    /// ValidateVolumeCapabilities.
    ///
    /// CSI: `confirmed` holds what was asked only if all of it holds; a mismatch is OK with a
    /// `message`, not an error.
    fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        use validate_volume_capabilities_response::Confirmed;
        check::id("volume_id", &request.volume_id)?;
        let capabilities = check::capabilities(request.volume_capabilities.clone())?;
        let volume = self.volume(&request.volume_id)?;
        let refused =
            |message: String| Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
        if let Some(status) =
            capabilities.iter().find_map(|one| check_kind(&volume, one.block).err())
        {
            return refused(status.message().to_owned());
        }
        if let Some((key, _)) = request
            .parameters
            .iter()
            .find(|(key, value)| volume.parameters.get(*key) != Some(value))
        {
            return refused(format!("the volume was not made with this parameter: {key}"));
        }
        if let Err(status) = check::mutable(request.mutable_parameters.clone()) {
            return refused(status.message().to_owned());
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            message: String::new(),
        })
    }

    /// ListVolumes, oldest volume first, in pages.
    fn list_volumes(&self, request: ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        use list_volumes_response::{Entry, VolumeStatus};
        let (page, next_token) =
            check::page(self.volumes.all(), request.max_entries, &request.starting_token)?;
        let entry = |volume: VolumeRecord| Entry {
            volume: Some(self.show(&volume)),
            status: Some(VolumeStatus { published_node_ids: volume.nodes() }),
        };
        Ok(ListVolumesResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }

    /// ControllerGetVolume.
    fn get_volume(
        &self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        use controller_get_volume_response::VolumeStatus;
        check::id("volume_id", &request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        Ok(ControllerGetVolumeResponse {
            volume: Some(self.show(&volume)),
            status: Some(VolumeStatus { published_node_ids: volume.nodes() }),
        })
    }

    /// GetCapacity. Another node than this one has no capacity.
    fn capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        if !request.volume_capabilities.is_empty() {
            check::capabilities(request.volume_capabilities)?;
        }
        let here = request
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

/// Refuses a block capability for a volume of files, and the reverse.
pub(super) fn check_kind(volume: &VolumeRecord, block: bool) -> Result<(), Status> {
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

/// What there is on one node only; a file server's volumes are attached nowhere.
const LOCAL: [RpcType; 8] = [
    RpcType::PublishUnpublishVolume,
    RpcType::PublishReadonly,
    RpcType::ListVolumesPublishedNodes,
    RpcType::SingleNodeMultiWriter,
    RpcType::ModifyVolume,
    RpcType::GetVolumeHealth,
    RpcType::ListVolumeHealth,
    RpcType::GetSnapshot,
];

fn controller_capabilities(
    core: &Core,
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
    let is_shared = core.settings.server.is_some();
    let offered = all.into_iter().filter(|rpc| !is_shared || !LOCAL.contains(rpc));
    Ok(ControllerGetCapabilitiesResponse { capabilities: offered.map(one).collect() })
}

/// Implements the service: each RPC is one function of [`Core`].
macro_rules! controller {
    ($($rpc:ident: $request:ident => $response:ident by $work:expr;)*) => {
        #[async_trait]
        impl Controller for HostDir {
            $(async fn $rpc(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                self.run(request, $work).await
            })*
        }
    };
}

controller! {
    create_volume: CreateVolumeRequest => CreateVolumeResponse by Core::create;
    delete_volume: DeleteVolumeRequest => DeleteVolumeResponse by Core::delete_volume;
    controller_publish_volume: ControllerPublishVolumeRequest => ControllerPublishVolumeResponse
        by Core::attach;
    controller_unpublish_volume: ControllerUnpublishVolumeRequest
        => ControllerUnpublishVolumeResponse by Core::detach;
    validate_volume_capabilities: ValidateVolumeCapabilitiesRequest
        => ValidateVolumeCapabilitiesResponse by Core::validate;
    list_volumes: ListVolumesRequest => ListVolumesResponse by Core::list_volumes;
    controller_list_volume_health: ControllerListVolumeHealthRequest
        => ControllerListVolumeHealthResponse by Core::list_health;
    controller_get_volume_health: ControllerGetVolumeHealthRequest
        => ControllerGetVolumeHealthResponse by Core::get_health;
    get_capacity: GetCapacityRequest => GetCapacityResponse by Core::capacity;
    controller_get_capabilities: ControllerGetCapabilitiesRequest
        => ControllerGetCapabilitiesResponse by controller_capabilities;
    create_snapshot: CreateSnapshotRequest => CreateSnapshotResponse by Core::create_snapshot;
    delete_snapshot: DeleteSnapshotRequest => DeleteSnapshotResponse by Core::delete_snapshot;
    list_snapshots: ListSnapshotsRequest => ListSnapshotsResponse by Core::list_snapshots;
    get_snapshot: GetSnapshotRequest => GetSnapshotResponse by Core::get_snapshot;
    controller_expand_volume: ControllerExpandVolumeRequest => ControllerExpandVolumeResponse
        by Core::expand_volume;
    controller_get_volume: ControllerGetVolumeRequest => ControllerGetVolumeResponse
        by Core::get_volume;
    controller_modify_volume: ControllerModifyVolumeRequest => ControllerModifyVolumeResponse
        by Core::modify_volume;
}
