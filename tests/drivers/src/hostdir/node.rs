//! The Node service: its capabilities and expansion. `stage` has the mounts, `usage` statistics and
//! health.

use crate::grpc::node_server::Node;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::node_service_capability::{Rpc, Type};
use proto::csi::*;
use tonic::{Request, Response, Status, async_trait};

use super::check;
use super::core::Core;
use super::driver::HostDir;
use super::loops;
use super::record::topology;
use super::usage::located;

impl Core {
    /// NodeExpandVolume: the loop device of a block volume takes its image's new size.
    ///
    /// CSI: a size that the volume cannot have is OUT_OF_RANGE.
    pub(super) fn expand_on_node(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        check::id("volume_id", &request.volume_id)?;
        check::present("volume_path", &request.volume_path)?;
        let range = check::range(request.capacity_range.unwrap_or_default())?;
        let _held = self.locks.take("volume", &request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        located(&volume, &request.volume_path)?;
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

    /// NodeGetInfo: the node's id, how many volumes it takes, and its topology.
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
            $(async fn $rpc(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                self.run(request, $work).await
            })*
        }
    };
}

node! {
    node_stage_volume: NodeStageVolumeRequest => NodeStageVolumeResponse by Core::stage;
    node_unstage_volume: NodeUnstageVolumeRequest => NodeUnstageVolumeResponse by Core::unstage;
    node_publish_volume: NodePublishVolumeRequest => NodePublishVolumeResponse by Core::publish;
    node_unpublish_volume: NodeUnpublishVolumeRequest => NodeUnpublishVolumeResponse
        by Core::unpublish;
    node_get_volume_stats: NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse by Core::stats;
    node_get_volume_health: NodeGetVolumeHealthRequest => NodeGetVolumeHealthResponse
        by Core::node_health;
    node_get_storage_health: NodeGetStorageHealthRequest => NodeGetStorageHealthResponse
        by Core::storage_health;
    node_expand_volume: NodeExpandVolumeRequest => NodeExpandVolumeResponse by Core::expand_on_node;
    node_get_capabilities: NodeGetCapabilitiesRequest => NodeGetCapabilitiesResponse
        by node_capabilities;
    node_get_info: NodeGetInfoRequest => NodeGetInfoResponse by Core::node_info;
}
