//! The Controller service.

use crate::grpc::controller_server::Controller;
use proto::csi::controller_service_capability::{Rpc, Type, rpc};
use proto::csi::validate_volume_capabilities_response::Confirmed;
use proto::csi::*;
use tonic::{Request, Response, Status};

use super::core::{Answer, Core};
use super::keys::PUBLISH_KEY;
use super::lock::lock;
use super::store::{Held, Published, fits, number, page, require, single_node};

/// The capacity that the driver pretends to have.
const CAPACITY: i64 = 1 << 40;

fn nodes_of(held: &Held) -> Vec<String> {
    held.published.keys().cloned().collect()
}

fn healthy(volume_id: String) -> VolumeHealth {
    VolumeHealth { volume_id, health_statuses: Vec::new() }
}

impl Core {
    fn check_node(&self, node: &str) -> Result<(), Status> {
        require(node, "node_id")?;
        if lock(&self.nodes).as_ref().is_some_and(|nodes| !nodes.contains(node)) {
            return Err(Status::not_found(format!("node {node} does not exist")));
        }
        Ok(())
    }
}

fn publish(
    held: &mut Held,
    node: &str,
    wanted: Published,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let id = &held.volume.volume_id;
    match held.published.get(node) {
        Some(have) if *have != wanted => {
            return Err(Status::already_exists(format!(
                "{id} is published to {node} in another way"
            )));
        }
        Some(_) => {}
        None if single_node(&wanted.capability) && !held.published.is_empty() => {
            return Err(Status::failed_precondition(format!("{id} is published to another node")));
        }
        None => drop(held.published.insert(node.to_owned(), wanted)),
    }
    let publish_context = [(PUBLISH_KEY.to_owned(), format!("/dev/test/{id}"))].into();
    Ok(ControllerPublishVolumeResponse { publish_context })
}

#[tonic::async_trait]
impl Controller for Core {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Answer<CreateVolumeResponse> {
        let request = request.into_inner();
        require(&request.name, "name")?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is required"));
        }
        self.with(|store| Ok(CreateVolumeResponse { volume: Some(store.create_volume(request)?) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Answer<DeleteVolumeResponse> {
        let id = request.into_inner().volume_id;
        require(&id, "volume_id")?;
        self.with(|store| {
            let Some(n) = number("vol", &id) else {
                return Ok(DeleteVolumeResponse {});
            };
            if store.volumes.get(&n).is_some_and(|held| !held.published.is_empty()) {
                return Err(Status::failed_precondition(format!("{id} is published")));
            }
            store.volumes.remove(&n);
            Ok(DeleteVolumeResponse {})
        })
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        let request = request.into_inner();
        let Some(capability) = request.volume_capability else {
            return Err(Status::invalid_argument("volume_capability is required"));
        };
        require(&request.node_id, "node_id")?;
        self.with(|store| {
            let held = store.volume(&request.volume_id)?;
            self.check_node(&request.node_id)?;
            publish(held, &request.node_id, Published { readonly: request.readonly, capability })
        })
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        let request = request.into_inner();
        require(&request.volume_id, "volume_id")?;
        self.with(|store| {
            // An unknown volume is as good as an unpublished one.
            if let Ok(held) = store.volume(&request.volume_id) {
                held.published
                    .retain(|node, _| !request.node_id.is_empty() && *node != request.node_id);
            }
            Ok(ControllerUnpublishVolumeResponse {})
        })
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is required"));
        }
        self.with(|store| {
            store.volume(&request.volume_id)?;
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
        })
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Answer<ListVolumesResponse> {
        use list_volumes_response::{Entry, VolumeStatus};
        let request = request.into_inner();
        self.with(|store| {
            let all = store.volumes.iter().map(|(n, held)| (*n, held));
            let (held, next_token) = page(all, request.max_entries, &request.starting_token)?;
            let entries = held.into_iter().map(|held| Entry {
                volume: Some(held.volume.clone()),
                status: Some(VolumeStatus { published_node_ids: nodes_of(held) }),
            });
            Ok(ListVolumesResponse { entries: entries.collect(), next_token })
        })
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Answer<ControllerListVolumeHealthResponse> {
        let request = request.into_inner();
        self.with(|store| {
            let all =
                store.volumes.iter().map(|(n, held)| (*n, healthy(held.volume.volume_id.clone())));
            let (entries, next_token) = page(all, request.max_entries, &request.starting_token)?;
            Ok(ControllerListVolumeHealthResponse { entries, next_token })
        })
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Answer<ControllerGetVolumeHealthResponse> {
        let id = request.into_inner().volume_id;
        self.with(|store| {
            store.volume(&id)?;
            Ok(ControllerGetVolumeHealthResponse { volume_health: Some(healthy(id)) })
        })
    }

    async fn get_capacity(&self, _: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        self.with(|store| {
            let used = store.volumes.values().map(|held| held.volume.capacity_bytes);
            let available_capacity = used.fold(CAPACITY, i64::saturating_sub).max(0);
            Ok(GetCapacityResponse {
                available_capacity,
                maximum_volume_size: Some(CAPACITY),
                minimum_volume_size: Some(1),
            })
        })
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        // All that CSI defines: the numbers 1 to 17 but for the reserved one.
        let kinds = (1..=17).filter_map(|n| rpc::Type::try_from(n).ok());
        let rpcs = kinds.map(|kind| Type::Rpc(Rpc { r#type: kind.into() }));
        let capabilities =
            rpcs.map(|rpc| ControllerServiceCapability { r#type: Some(rpc) }).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        let request = request.into_inner();
        require(&request.name, "name")?;
        require(&request.source_volume_id, "source_volume_id")?;
        self.with(|store| {
            Ok(CreateSnapshotResponse { snapshot: Some(store.create_snapshot(request)?) })
        })
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        let id = request.into_inner().snapshot_id;
        require(&id, "snapshot_id")?;
        self.with(|store| {
            if store.snapshot(&id).is_ok_and(|snapshot| !snapshot.group_snapshot_id.is_empty()) {
                return Err(Status::invalid_argument(format!("{id} belongs to a group snapshot")));
            }
            number("snap", &id).and_then(|n| store.snapshots.remove(&n));
            Ok(DeleteSnapshotResponse {})
        })
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Answer<ListSnapshotsResponse> {
        use list_snapshots_response::Entry;
        let request = request.into_inner();
        let wanted = |snapshot: &Snapshot| {
            (request.snapshot_id.is_empty() || snapshot.snapshot_id == request.snapshot_id)
                && (request.source_volume_id.is_empty()
                    || snapshot.source_volume_id == request.source_volume_id)
        };
        self.with(|store| {
            let all = store.snapshots.iter().filter(|(_, (_, snapshot))| wanted(snapshot));
            let all =
                all.map(|(n, (_, snapshot))| (*n, Entry { snapshot: Some(snapshot.clone()) }));
            let (entries, next_token) = page(all, request.max_entries, &request.starting_token)?;
            Ok(ListSnapshotsResponse { entries, next_token })
        })
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Answer<GetSnapshotResponse> {
        self.with(|store| {
            let snapshot = store.snapshot(&request.get_ref().snapshot_id)?.clone();
            Ok(GetSnapshotResponse { snapshot: Some(snapshot) })
        })
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let Some(range) = request.capacity_range else {
            return Err(Status::invalid_argument("capacity_range is required"));
        };
        self.with(|store| {
            let volume = &mut store.volume(&request.volume_id)?.volume;
            let size = volume.capacity_bytes.max(range.required_bytes);
            if !fits(size, Some(&range)) {
                return Err(Status::out_of_range("no size lies in this capacity range"));
            }
            volume.capacity_bytes = size;
            Ok(ControllerExpandVolumeResponse {
                capacity_bytes: size,
                node_expansion_required: true,
            })
        })
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        use controller_get_volume_response::VolumeStatus;
        self.with(|store| {
            let held = store.volume(&request.get_ref().volume_id)?;
            let status = VolumeStatus { published_node_ids: nodes_of(held) };
            Ok(ControllerGetVolumeResponse {
                volume: Some(held.volume.clone()),
                status: Some(status),
            })
        })
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        let request = request.into_inner();
        self.with(|store| {
            store.volume(&request.volume_id)?.mutable.extend(request.mutable_parameters);
            Ok(ControllerModifyVolumeResponse {})
        })
    }
}
