//! The GroupController and SnapshotMetadata services.

use std::vec::IntoIter;

use crate::grpc::group_controller_server::GroupController;
use crate::grpc::snapshot_metadata_server::SnapshotMetadata;
use proto::csi::group_controller_service_capability::{Rpc, Type, rpc};
use proto::csi::{
    BlockMetadata, BlockMetadataType, CreateVolumeGroupSnapshotRequest,
    CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse, GetVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotResponse, GroupControllerGetCapabilitiesRequest,
    GroupControllerGetCapabilitiesResponse, GroupControllerServiceCapability,
};
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

use super::core::{Answer, Core};
use super::store::{number, require};

#[tonic::async_trait]
impl GroupController for Core {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<GroupControllerGetCapabilitiesResponse> {
        let rpc = Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() };
        let capabilities = vec![GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<CreateVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        require(&request.name, "name")?;
        if request.source_volume_ids.is_empty() {
            return Err(Status::invalid_argument("source_volume_ids is required"));
        }
        self.with(|store| {
            let group_snapshot = Some(store.create_group(request)?);
            Ok(CreateVolumeGroupSnapshotResponse { group_snapshot })
        })
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<DeleteVolumeGroupSnapshotResponse> {
        let id = request.into_inner().group_snapshot_id;
        require(&id, "group_snapshot_id")?;
        self.with(|store| {
            number("group", &id).and_then(|n| store.groups.remove(&n));
            store.snapshots.retain(|_, (_, snapshot)| snapshot.group_snapshot_id != id);
            Ok(DeleteVolumeGroupSnapshotResponse {})
        })
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Answer<GetVolumeGroupSnapshotResponse> {
        self.with(|store| {
            let group = store.group(&request.get_ref().group_snapshot_id)?.clone();
            Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) })
        })
    }
}

/// The pretended size of a block.
const BLOCK: i64 = 1 << 20;
/// How many blocks of each snapshot are pretended to hold data, at most.
const BLOCKS: i64 = 16;
/// How many blocks a message has when the caller sets no bound.
const PER_MESSAGE: usize = 4;

type Stream<T> = Iter<IntoIter<Result<T, Status>>>;

/// The blocks from `from` on, `step` blocks apart, in the messages' portions.
fn blocks(
    size: i64,
    step: i64,
    from: i64,
    max_results: i32,
) -> Result<Vec<Vec<BlockMetadata>>, Status> {
    if !(0..size).contains(&from) {
        return Err(Status::out_of_range("starting_offset lies outside of the volume"));
    }
    let per_message = match usize::try_from(max_results) {
        Ok(0) => PER_MESSAGE,
        Ok(most) => most,
        Err(_) => return Err(Status::invalid_argument("max_results is negative")),
    };
    let all = (0..BLOCKS).map(|n| n * step * BLOCK).filter(|at| *at < size && at + BLOCK > from);
    let all: Vec<_> =
        all.map(|at| BlockMetadata { byte_offset: at, size_bytes: BLOCK.min(size - at) }).collect();
    Ok(all.chunks(per_message).map(<[_]>::to_vec).collect())
}

#[tonic::async_trait]
impl SnapshotMetadata for Core {
    type GetMetadataAllocatedStream = Stream<GetMetadataAllocatedResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Answer<Self::GetMetadataAllocatedStream> {
        let request = request.into_inner();
        self.with(|store| {
            let size = store.snapshot(&request.snapshot_id)?.size_bytes;
            let portions = blocks(size, 1, request.starting_offset, request.max_results)?;
            let messages = portions.into_iter().map(|block_metadata| {
                let block_metadata_type = BlockMetadataType::FixedLength.into();
                Ok(GetMetadataAllocatedResponse {
                    block_metadata_type,
                    volume_capacity_bytes: size,
                    block_metadata,
                })
            });
            Ok(tokio_stream::iter(messages.collect::<Vec<_>>()))
        })
    }

    type GetMetadataDeltaStream = Stream<GetMetadataDeltaResponse>;

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Answer<Self::GetMetadataDeltaStream> {
        let request = request.into_inner();
        self.with(|store| {
            store.snapshot(&request.base_snapshot_id)?;
            let size = store.snapshot(&request.target_snapshot_id)?.size_bytes;
            let portions = blocks(size, 2, request.starting_offset, request.max_results)?;
            let messages = portions.into_iter().map(|block_metadata| {
                let block_metadata_type = BlockMetadataType::FixedLength.into();
                Ok(GetMetadataDeltaResponse {
                    block_metadata_type,
                    volume_capacity_bytes: size,
                    block_metadata,
                })
            });
            Ok(tokio_stream::iter(messages.collect::<Vec<_>>()))
        })
    }
}
