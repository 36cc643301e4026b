//! The Node service. It records what is staged and published and mounts nothing.
//!
//! It takes any volume id: the volume may have been created by another driver's controller.

use crate::grpc::node_server::Node;
use proto::csi::node_service_capability::{Rpc, Type, rpc};
use proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology,
    VolumeHealth, VolumeUsage, volume_usage,
};
use tonic::{Request, Response, Status};

use super::core::{Answer, Core};
use super::keys::TOPOLOGY_KEY;
use super::store::{Store, require};

/// Refuses a volume that is not on this node, or is at another path if `path` is not empty.
fn here(store: &Store, id: &str, path: &str) -> Result<(), Status> {
    require(id, "volume_id")?;
    let mut places = store.staged.iter().chain(&store.node_published);
    if places.any(|(volume, place)| volume == id && (path.is_empty() || place == path)) {
        return Ok(());
    }
    Err(Status::not_found(format!("volume {id} is not on this node")))
}

#[tonic::async_trait]
impl Node for Core {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        require(&request.staging_target_path, "staging_target_path")?;
        if request.volume_capability.is_none() {
            return Err(Status::invalid_argument("volume_capability is required"));
        }
        self.with(|store| {
            store.staged.insert((request.volume_id, request.staging_target_path));
            Ok(NodeStageVolumeResponse {})
        })
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        require(&request.staging_target_path, "staging_target_path")?;
        self.with(|store| {
            store.staged.remove(&(request.volume_id, request.staging_target_path));
            Ok(NodeUnstageVolumeResponse {})
        })
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        require(&request.target_path, "target_path")?;
        if request.volume_capability.is_none() {
            return Err(Status::invalid_argument("volume_capability is required"));
        }
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is required"));
        }
        self.with(|store| {
            store.node_published.insert((request.volume_id, request.target_path));
            Ok(NodePublishVolumeResponse {})
        })
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        require(&request.target_path, "target_path")?;
        self.with(|store| {
            store.node_published.remove(&(request.volume_id, request.target_path));
            Ok(NodeUnpublishVolumeResponse {})
        })
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        require(&request.volume_path, "volume_path")?;
        self.with(|store| {
            here(store, &request.volume_id, &request.volume_path)?;
            let total = 1 << 30;
            let used = 1 << 20;
            let unit = volume_usage::Unit::Bytes.into();
            Ok(NodeGetVolumeStatsResponse {
                usage: vec![VolumeUsage { available: total - used, total, used, unit }],
            })
        })
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Answer<NodeGetVolumeHealthResponse> {
        let request = request.into_inner();
        self.with(|store| {
            here(store, &request.volume_id, &request.volume_publish_path)?;
            let health = VolumeHealth { volume_id: request.volume_id, health_statuses: Vec::new() };
            Ok(NodeGetVolumeHealthResponse { volume_health: Some(health) })
        })
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Answer<NodeGetStorageHealthResponse> {
        Ok(Response::new(NodeGetStorageHealthResponse { backend_health: Vec::new() }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        require(&request.volume_path, "volume_path")?;
        self.with(|store| {
            here(store, &request.volume_id, &request.volume_path)?;
            let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
            Ok(NodeExpandVolumeResponse { capacity_bytes })
        })
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        use rpc::Type as Kind;
        let kinds = [
            Kind::StageUnstageVolume,
            Kind::GetVolumeStats,
            Kind::ExpandVolume,
            Kind::SingleNodeMultiWriter,
            Kind::VolumeMountGroup,
            Kind::GetVolumeHealth,
            Kind::GetStorageHealth,
        ];
        let rpcs = kinds.into_iter().map(|kind| Type::Rpc(Rpc { r#type: kind.into() }));
        let capabilities = rpcs.map(|rpc| NodeServiceCapability { r#type: Some(rpc) }).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        let segments = [(TOPOLOGY_KEY.to_owned(), self.node_id.clone())].into();
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}
