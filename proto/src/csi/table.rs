//! The table of all CSI RPCs: adding an RPC is one row here.
//!
//! A row is `Service/Method(request) => key, learn what_an_answer_teaches, { column: value };`. The
//! last two parts may be missing. `method.rs` makes the enum and the columns out of it, `key.rs`
//! the keys of calls, and `learn.rs` what answers teach. After `as` stands a part of the request
//! that is enough for its key.
//!
//! A renamed field breaks the build, but for those parts. A missing or doubled row breaks a test
//! over the descriptor set.

/// Calls the macro `$each` with all rows.
macro_rules! table {
    ($each:ident) => {
        $each! {
            Identity/GetPluginInfo(_) => Key::Local, { local: Some(Local::Info) };
            Identity/GetPluginCapabilities(_) => Key::Local, {
                local: Some(Local::Capabilities(Capabilities::Plugin)),
                rewrite: Rewrite::PluginCapabilities,
            };
            Identity/Probe(_) => Key::Local, { local: Some(Local::Probe) };

            Controller/CreateVolume(r: CreateVolumeRequest as Created) => create(r),
                learn Learn::Made(created_volume), {
                locks: Locks::Made,
                creates: Some(Resource::Volume),
                rewrite: Rewrite::CreateVolume,
                direct: Some(DirectCall::Create),
                places: Some(Places { capability: 3, context: &[4] }),
                secrets: Some(5),
                classes: &[(4, Class::Storage), (8, Class::VolumeAttributes)],
                sent: true,
            };
            Controller/DeleteVolume(r: DeleteVolumeRequest) => Key::Delete(Id::Volume(r.volume_id)),
                learn Learn::Gone, {
                locks: Locks::Gone { members: None },
                direct: Some(DirectCall::Delete),
                secrets: Some(2),
                sent: true,
            };
            Controller/ControllerPublishVolume(r: ControllerPublishVolumeRequest as OfVolume)
                => Key::Home(Id::Volume(r.volume_id)),
                learn Learn::Attached(node_id), {
                locks: Locks::Attachment(2),
                incomplete: required::of_publish,
                direct: Some(DirectCall::Attach),
                places: Some(Places { capability: 3, context: &[6] }),
                secrets: Some(5),
                sent: true,
            };
            Controller/ControllerUnpublishVolume(r: ControllerUnpublishVolumeRequest)
                => Key::Delete(Id::Volume(r.volume_id)),
                learn Learn::Detached(node_id), {
                locks: Locks::Attachment(2),
                secrets: Some(3),
                sent: true,
            };
            Controller/ValidateVolumeCapabilities(r: ValidateVolumeCapabilitiesRequest)
                => Key::Home(Id::Volume(r.volume_id)), {
                incomplete: required::of_validate,
                direct: Some(DirectCall::Validate),
                places: Some(Places { capability: 3, context: &[2, 4] }),
                secrets: Some(5),
                sent: true,
            };
            Controller/ListVolumes(_) => Key::All, {
                lists: Some(List::Volumes),
                rewrite: Rewrite::ListVolumes,
                sent: true,
            };
            Controller/ControllerListVolumeHealth(_) => Key::All, {
                lists: Some(List::Health),
                secrets: Some(3),
                sent: true,
            };
            Controller/ControllerGetVolumeHealth(r: ControllerGetVolumeHealthRequest)
                => Key::Home(Id::Volume(r.volume_id)), {
                secrets: Some(2),
                sent: true,
            };
            Controller/GetCapacity(r: GetCapacityRequest)
                => Key::Capacity(r.accessible_topology.map(segments)), {
                rewrite: Rewrite::Capacity,
                direct: Some(DirectCall::Capacity),
                places: Some(Places { capability: 1, context: &[2] }),
                sent: true,
            };
            Controller/ControllerGetCapabilities(_) => Key::Local, {
                local: Some(Local::Capabilities(Capabilities::Controller)),
            };
            Controller/CreateSnapshot(r: CreateSnapshotRequest)
                => snapshot(r.name, [r.source_volume_id]),
                learn Learn::Made(created_snapshot), {
                locks: Locks::Made,
                creates: Some(Resource::Snapshot),
                rewrite: Rewrite::CreateSnapshot,
                secrets: Some(3),
                classes: &[(4, Class::VolumeSnapshot)],
                sent: true,
            };
            Controller/DeleteSnapshot(r: DeleteSnapshotRequest)
                => Key::Delete(Id::Snapshot(r.snapshot_id)),
                learn Learn::Gone, {
                locks: Locks::Gone { members: None },
                secrets: Some(2),
                sent: true,
            };
            Controller/ListSnapshots(r: ListSnapshotsRequest) => listed_snapshots(r), {
                lists: Some(List::Snapshots),
                rewrite: Rewrite::ListSnapshots,
                secrets: Some(5),
                sent: true,
            };
            Controller/GetSnapshot(r: GetSnapshotRequest)
                => Key::Home(Id::Snapshot(r.snapshot_id)), {
                secrets: Some(2),
                sent: true,
            };
            Controller/ControllerExpandVolume(r: ControllerExpandVolumeRequest)
                => Key::Home(Id::Volume(r.volume_id)),
                learn Learn::Resized(new_size), {
                locks: Locks::Size,
                incomplete: required::of_expand,
                direct: Some(DirectCall::Expand),
                places: Some(Places { capability: 4, context: &[] }),
                secrets: Some(3),
                sent: true,
            };
            Controller/ControllerGetVolume(r: ControllerGetVolumeRequest)
                => Key::Home(Id::Volume(r.volume_id)), {
                sent: true,
            };
            Controller/ControllerModifyVolume(r: ControllerModifyVolumeRequest)
                => Key::Home(Id::Volume(r.volume_id)), {
                locks: Locks::Attributes,
                secrets: Some(2),
                classes: &[(3, Class::VolumeAttributes)],
                sent: true,
            };

            GroupController/GroupControllerGetCapabilities(_) => Key::Local, {
                local: Some(Local::Capabilities(Capabilities::Group)),
            };
            GroupController/CreateVolumeGroupSnapshot(r: CreateVolumeGroupSnapshotRequest)
                => snapshot(r.name, r.source_volume_ids),
                learn Learn::Made(created_group), {
                locks: Locks::Made,
                creates: Some(Resource::Group),
                secrets: Some(3),
                classes: &[(4, Class::VolumeGroupSnapshot)],
                sent: true,
            };
            GroupController/DeleteVolumeGroupSnapshot(r: DeleteVolumeGroupSnapshotRequest)
                => Key::Delete(Id::Group(r.group_snapshot_id)),
                learn Learn::Gone, {
                locks: Locks::Gone { members: Some(2) },
                secrets: Some(3),
                sent: true,
            };
            GroupController/GetVolumeGroupSnapshot(r: GetVolumeGroupSnapshotRequest)
                => Key::Home(Id::Group(r.group_snapshot_id)), {
                secrets: Some(3),
                sent: true,
            };

            SnapshotMetadata/GetMetadataAllocated(r: GetMetadataAllocatedRequest)
                => Key::Home(Id::Snapshot(r.snapshot_id)), {
                streaming: true,
                secrets: Some(4),
                sent: true,
            };
            SnapshotMetadata/GetMetadataDelta(r: GetMetadataDeltaRequest)
                => Key::Home(Id::Snapshot(r.base_snapshot_id)), {
                streaming: true,
                secrets: Some(5),
                sent: true,
            };

            Node/NodeStageVolume(r: NodeStageVolumeRequest) => on_node(r.volume_id), {
                locks: Locks::AtNode,
                direct: Some(DirectCall::Node(NodeStep::Stage)),
                places: Some(Places { capability: 4, context: &[6] }),
                secrets: Some(5),
            };
            Node/NodeUnstageVolume(r: NodeUnstageVolumeRequest) => on_node(r.volume_id), {
                locks: Locks::AtNode,
                direct: Some(DirectCall::Node(NodeStep::Unstage)),
            };
            Node/NodePublishVolume(r: NodePublishVolumeRequest) => on_node(r.volume_id), {
                locks: Locks::Target(4),
                direct: Some(DirectCall::Node(NodeStep::Publish)),
                places: Some(Places { capability: 5, context: &[8] }),
                secrets: Some(7),
            };
            Node/NodeUnpublishVolume(r: NodeUnpublishVolumeRequest) => on_node(r.volume_id), {
                locks: Locks::Target(2),
                direct: Some(DirectCall::Node(NodeStep::Unpublish)),
            };
            Node/NodeGetVolumeStats(r: NodeGetVolumeStatsRequest) => on_node(r.volume_id), {
                direct: Some(DirectCall::Node(NodeStep::Stats)),
            };
            Node/NodeGetVolumeHealth(r: NodeGetVolumeHealthRequest) => on_node(r.volume_id), {
                direct: Some(DirectCall::Node(NodeStep::Health)),
            };
            Node/NodeGetStorageHealth(_) => Key::Node(None), {
                secrets: Some(1),
            };
            Node/NodeExpandVolume(r: NodeExpandVolumeRequest) => on_node(r.volume_id), {
                locks: Locks::AtNode,
                direct: Some(DirectCall::Node(NodeStep::Expand)),
                places: Some(Places { capability: 5, context: &[] }),
                secrets: Some(6),
            };
            Node/NodeGetCapabilities(_) => Key::Local, {
                local: Some(Local::Capabilities(Capabilities::Node)),
            };
            Node/NodeGetInfo(_) => Key::Local, {
                local: Some(Local::NodeInfo),
                rewrite: Rewrite::NodeInfo,
            };
        }
    };
}
pub(super) use table;
