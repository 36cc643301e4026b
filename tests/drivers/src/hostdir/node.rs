//! The Node service: its capabilities and expansion. Mounts and measurements have own files.

use proto::csi::node_server::Node;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::node_service_capability::{Rpc, Type};
use proto::csi::*;
use tonic::{Request, Response, Status, async_trait};

use super::HostDir;
use super::check;
use super::core::Core;
use super::loops;
use super::record::topology;
use super::usage::located;

impl Core {
    pub(super) fn expand_on_node(
        &self,
        q: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        check::id("volume_id", &q.volume_id)?;
        check::present("volume_path", &q.volume_path)?;
        let range = check::range(q.capacity_range.unwrap_or_default())?;
        let _held = self.locks.take("volume", &q.volume_id)?;
        let volume = self.volume(&q.volume_id)?;
        located(&volume, &q.volume_path)?;
        if !check::fits(volume.capacity, range) {
            return Err(Status::out_of_range(format!(
                "capacity_range: volume {} has {} bytes since ControllerExpandVolume",
                volume.id, volume.capacity
            )));
        }
        if volume.block {
            loops::grow(&self.data(&volume))?;
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes: volume.capacity })
    }

    fn node_info(&self, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
        Ok(NodeGetInfoResponse {
            node_id: self.node().to_owned(),
            max_volumes_per_node: self.settings.attach_limit.into(),
            accessible_topology: Some(topology(self.node())),
        })
    }
}

fn node_capabilities(
    _: &Core,
    _: NodeGetCapabilitiesRequest,
) -> Result<NodeGetCapabilitiesResponse, Status> {
    let all = [
        RpcType::StageUnstageVolume,
        RpcType::GetVolumeStats,
        RpcType::ExpandVolume,
        RpcType::SingleNodeMultiWriter,
        RpcType::VolumeMountGroup,
        RpcType::GetVolumeHealth,
        RpcType::GetStorageHealth,
    ];
    let one = |rpc| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: rpc as i32 })) };
    Ok(NodeGetCapabilitiesResponse { capabilities: all.map(one).into() })
}

/// Implements the service: each RPC is one function of [`Core`].
macro_rules! node {
    ($($rpc:ident: $request:ident => $response:ident by $work:expr;)*) => {
        #[async_trait]
        impl Node for HostDir {
            $(async fn $rpc(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                self.run(request, $work).await
            })*
        }
    };
}

node! {
    node_stage_volume: NodeStageVolumeRequest => NodeStageVolumeResponse by Core::stage;
    node_unstage_volume: NodeUnstageVolumeRequest => NodeUnstageVolumeResponse by Core::unstage;
    node_publish_volume: NodePublishVolumeRequest => NodePublishVolumeResponse by Core::publish;
    node_unpublish_volume: NodeUnpublishVolumeRequest => NodeUnpublishVolumeResponse by Core::unpublish;
    node_get_volume_stats: NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse by Core::stats;
    node_get_volume_health: NodeGetVolumeHealthRequest => NodeGetVolumeHealthResponse by Core::node_health;
    node_get_storage_health: NodeGetStorageHealthRequest => NodeGetStorageHealthResponse by Core::storage_health;
    node_expand_volume: NodeExpandVolumeRequest => NodeExpandVolumeResponse by Core::expand_on_node;
    node_get_capabilities: NodeGetCapabilitiesRequest => NodeGetCapabilitiesResponse by node_capabilities;
    node_get_info: NodeGetInfoRequest => NodeGetInfoResponse by Core::node_info;
}
