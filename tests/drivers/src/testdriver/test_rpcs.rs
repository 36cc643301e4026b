//! All RPCs on a fresh driver, and the driver's memory.

use crate::grpc::controller_client::ControllerClient;
use crate::grpc::group_controller_client::GroupControllerClient;
use crate::grpc::identity_client::IdentityClient;
use crate::grpc::node_client::NodeClient;
use crate::grpc::snapshot_metadata_client::SnapshotMetadataClient;
use bytes::Bytes;
use proto::csi::*;
use tonic::{Code, Status};

use super::test_support::{Bench, create, publish};
use super::{METHODS, Optional, TOPOLOGY_KEY};

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

fn range(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

fn caps() -> Vec<VolumeCapability> {
    vec![VolumeCapability::default()]
}

macro_rules! calls {
    ($client:expr; $($rpc:ident($request:expr) => $code:ident),* $(,)?) => {
        $(assert_eq!(code($client.$rpc($request).await), Code::$code, stringify!($rpc));)*
    };
}

async fn ask_controller(bench: &Bench) {
    let cap = Some(VolumeCapability::default());
    let id = || "vol-9".to_owned();
    let mut c = ControllerClient::new(bench.channel().await);
    calls!(c;
        create_volume(create("a")) => Ok,
        delete_volume(DeleteVolumeRequest { volume_id: id(), ..Default::default() }) => Ok,
        controller_publish_volume(ControllerPublishVolumeRequest {
            volume_id: id(), node_id: "n".into(), volume_capability: cap, ..Default::default()
        }) => NotFound,
        controller_unpublish_volume(ControllerUnpublishVolumeRequest {
            volume_id: id(), ..Default::default()
        }) => Ok,
        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest {
            volume_id: id(), volume_capabilities: caps(), ..Default::default()
        }) => NotFound,
        list_volumes(ListVolumesRequest::default()) => Ok,
        controller_list_volume_health(ControllerListVolumeHealthRequest::default()) => Ok,
        controller_get_volume_health(ControllerGetVolumeHealthRequest {
            volume_id: id(), ..Default::default()
        }) => NotFound,
        get_capacity(GetCapacityRequest::default()) => Ok,
        controller_get_capabilities(ControllerGetCapabilitiesRequest {}) => Ok,
        create_snapshot(CreateSnapshotRequest {
            source_volume_id: id(), name: "s".into(), ..Default::default()
        }) => NotFound,
        delete_snapshot(DeleteSnapshotRequest {
            snapshot_id: "snap-9".into(), ..Default::default()
        }) => Ok,
        list_snapshots(ListSnapshotsRequest::default()) => Ok,
        get_snapshot(GetSnapshotRequest { snapshot_id: "snap-9".into(), ..Default::default() })
            => NotFound,
        controller_expand_volume(ControllerExpandVolumeRequest {
            volume_id: id(), capacity_range: range(1), ..Default::default()
        }) => NotFound,
        controller_get_volume(ControllerGetVolumeRequest { volume_id: id() }) => NotFound,
        controller_modify_volume(ControllerModifyVolumeRequest {
            volume_id: id(), ..Default::default()
        }) => NotFound,
    );
}

async fn ask_the_small_ones(bench: &Bench) {
    let snapshot_id = || "snap-9".to_owned();
    let mut i = IdentityClient::new(bench.channel().await);
    calls!(i;
        get_plugin_info(GetPluginInfoRequest {}) => Ok,
        get_plugin_capabilities(GetPluginCapabilitiesRequest {}) => Ok,
        probe(ProbeRequest {}) => Ok,
    );
    let mut g = GroupControllerClient::new(bench.channel().await);
    calls!(g;
        group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest {}) => Ok,
        create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest {
            name: "g".into(), source_volume_ids: vec!["vol-1".into()], ..Default::default()
        }) => Ok,
        delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: "group-9".into(), ..Default::default()
        }) => Ok,
        get_volume_group_snapshot(GetVolumeGroupSnapshotRequest {
            group_snapshot_id: "group-9".into(), ..Default::default()
        }) => NotFound,
    );
    let mut m = SnapshotMetadataClient::new(bench.channel().await);
    calls!(m;
        get_metadata_allocated(GetMetadataAllocatedRequest {
            snapshot_id: snapshot_id(), ..Default::default()
        }) => NotFound,
        get_metadata_delta(GetMetadataDeltaRequest {
            base_snapshot_id: snapshot_id(), ..Default::default()
        }) => NotFound,
    );
}

async fn ask_node(bench: &Bench) {
    let cap = Some(VolumeCapability::default());
    let id = || "vol-9".to_owned();
    let path = || "/staging".to_owned();
    let mut n = NodeClient::new(bench.channel().await);
    calls!(n;
        node_stage_volume(NodeStageVolumeRequest {
            volume_id: id(), staging_target_path: path(), volume_capability: cap,
            ..Default::default()
        }) => Ok,
        node_unstage_volume(NodeUnstageVolumeRequest {
            volume_id: id(), staging_target_path: path()
        }) => Ok,
        node_get_volume_stats(NodeGetVolumeStatsRequest {
            volume_id: id(), volume_path: path(), ..Default::default()
        }) => NotFound,
        node_get_volume_health(NodeGetVolumeHealthRequest { volume_id: id(), ..Default::default() })
            => NotFound,
        node_get_storage_health(NodeGetStorageHealthRequest::default()) => Ok,
        node_expand_volume(NodeExpandVolumeRequest {
            volume_id: id(), volume_path: path(), ..Default::default()
        }) => NotFound,
        node_publish_volume(publish("vol-9")) => Ok,
        node_unpublish_volume(NodeUnpublishVolumeRequest {
            volume_id: id(), target_path: "/target".into()
        }) => Ok,
        node_get_capabilities(NodeGetCapabilitiesRequest {}) => Ok,
        node_get_info(NodeGetInfoRequest {}) => Ok,
    );
}

#[tokio::test]
async fn all_rpcs_answer_on_a_fresh_driver() {
    let bench = Bench::new();
    ask_controller(&bench).await;
    ask_the_small_ones(&bench).await;
    ask_node(&bench).await;
    let called: Vec<_> = bench.driver.calls().into_iter().map(|call| call.path).collect();
    for (service, method) in METHODS {
        let path = format!("/csi.v1.{service}/{method}");
        assert_eq!(called.iter().filter(|c| **c == path).count(), 1, "{path}");
    }
    assert_eq!(called.len(), METHODS.len());
}

#[tokio::test]
async fn creations_are_idempotent_by_name() {
    let bench = Bench::new();
    let mut c = ControllerClient::new(bench.channel().await);
    let first = c.create_volume(create("a")).await.unwrap().into_inner().volume.unwrap();
    let again = c.create_volume(create("a")).await.unwrap().into_inner().volume.unwrap();
    assert!(first == again && first.volume_id == "vol-1");
    let bigger = CreateVolumeRequest { capacity_range: range(1 << 40), ..create("a") };
    assert_eq!(code(c.create_volume(bigger).await), Code::AlreadyExists);

    let request = || CreateSnapshotRequest {
        source_volume_id: "vol-1".into(),
        name: "s".into(),
        ..Default::default()
    };
    let first = c.create_snapshot(request()).await.unwrap().into_inner().snapshot.unwrap();
    let again = c.create_snapshot(request()).await.unwrap().into_inner().snapshot.unwrap();
    assert!(first == again && first.snapshot_id == "snap-2");
}

#[tokio::test]
async fn a_group_snapshot_is_kept_and_deleted_as_one() {
    let bench = Bench::new();
    bench.driver.fill(2, 0);
    let mut g = GroupControllerClient::new(bench.channel().await);
    let mut c = ControllerClient::new(bench.channel().await);
    let source_volume_ids = vec!["vol-1".to_owned(), "vol-2".to_owned()];
    let request = CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids,
        ..Default::default()
    };
    let made = g.create_volume_group_snapshot(request.clone()).await.unwrap().into_inner();
    let again = g.create_volume_group_snapshot(request).await.unwrap().into_inner();
    assert!(made == again);
    let group = made.group_snapshot.unwrap();
    assert_eq!((group.group_snapshot_id.as_str(), group.snapshots.len()), ("group-3", 2));
    let one = DeleteSnapshotRequest { snapshot_id: "snap-4".into(), ..Default::default() };
    assert_eq!(code(c.delete_snapshot(one).await), Code::InvalidArgument);
    let all = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "group-3".into(),
        ..Default::default()
    };
    g.delete_volume_group_snapshot(all).await.unwrap();
    let left = c.list_snapshots(ListSnapshotsRequest::default()).await.unwrap().into_inner();
    assert!(left.entries.is_empty());
}

#[tokio::test]
async fn metadata_streams_come_in_portions() {
    let bench = Bench::new();
    let mut c = ControllerClient::new(bench.channel().await);
    c.create_volume(create("a")).await.unwrap();
    let request = CreateSnapshotRequest {
        source_volume_id: "vol-1".into(),
        name: "s".into(),
        ..Default::default()
    };
    c.create_snapshot(request).await.unwrap();
    let mut m = SnapshotMetadataClient::new(bench.channel().await);
    let request = GetMetadataAllocatedRequest {
        snapshot_id: "snap-2".into(),
        max_results: 5,
        ..Default::default()
    };
    let mut stream = m.get_metadata_allocated(request).await.unwrap().into_inner();
    let mut sizes = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        sizes.push(message.block_metadata.len());
    }
    assert_eq!(sizes, [5, 5, 5, 1]);
    let outcome = super::Outcome::Finished;
    bench.driver.wait_for_outcome("GetMetadataAllocated", outcome, 1).await.unwrap();
}

#[tokio::test]
async fn lists_have_pages() {
    let bench = Bench::new();
    bench.driver.fill(5, 1000);
    let mut c = ControllerClient::new(bench.channel().await);
    let mut token = String::new();
    let mut pages = Vec::new();
    loop {
        let request = ListVolumesRequest { max_entries: 2, starting_token: token };
        let page = c.list_volumes(request).await.unwrap().into_inner();
        pages.push(page.entries.len());
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [2, 2, 1]);
    let wrong = ListVolumesRequest { max_entries: 0, starting_token: "x".into() };
    assert_eq!(code(c.list_volumes(wrong).await), Code::Aborted);
}

#[tokio::test]
async fn volumes_are_published_as_csi_says() {
    let bench = Bench::new();
    bench.driver.fill(1, 0);
    bench.driver.only_nodes(["a", "b"]);
    let mut c = ControllerClient::new(bench.channel().await);
    let request = |node: &str, readonly| ControllerPublishVolumeRequest {
        volume_id: "vol-1".into(),
        node_id: node.into(),
        readonly,
        volume_capability: Some(VolumeCapability::default()),
        ..Default::default()
    };
    calls!(c;
        controller_publish_volume(request("x", false)) => NotFound,
        controller_publish_volume(request("a", false)) => Ok,
        controller_publish_volume(request("a", false)) => Ok,
        controller_publish_volume(request("a", true)) => AlreadyExists,
        controller_publish_volume(request("b", false)) => FailedPrecondition,
        delete_volume(DeleteVolumeRequest { volume_id: "vol-1".into(), ..Default::default() })
            => FailedPrecondition,
        controller_unpublish_volume(ControllerUnpublishVolumeRequest {
            volume_id: "vol-1".into(), node_id: "a".into(), ..Default::default()
        }) => Ok,
        delete_volume(DeleteVolumeRequest { volume_id: "vol-1".into(), ..Default::default() })
            => Ok,
    );
    assert!(bench.driver.volumes().is_empty());
}

#[tokio::test]
async fn name_topology_and_services_can_be_set() {
    let bench = Bench::new();
    let mut i = IdentityClient::new(bench.channel().await);
    bench.driver.set_name("wrong.example");
    assert_eq!(
        i.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner().name,
        "wrong.example"
    );
    let mut n = NodeClient::new(bench.channel().await);
    let info = n.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.accessible_topology.unwrap().segments.get(TOPOLOGY_KEY).unwrap(), "node-a");

    let before =
        i.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    bench.driver.offer(Optional::GroupController, false);
    let after =
        i.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(after.capabilities.len() + 1, before.capabilities.len());
    let mut g = GroupControllerClient::new(bench.channel().await);
    let answer =
        g.group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest {}).await;
    assert_eq!(code(answer), Code::Unimplemented);
}

#[tokio::test]
async fn the_record_has_bytes_and_headers() {
    use prost::Message as _;
    let bench = Bench::new();
    let mut n = NodeClient::new(bench.channel().await);
    let mut request = tonic::Request::new(publish("vol-9"));
    request.metadata_mut().insert("x-test", "1".parse().unwrap());
    n.node_publish_volume(request).await.unwrap();
    let [call] = &bench.driver.calls_of("NodePublishVolume")[..] else { panic!("one call") };
    assert_eq!(call.message, Bytes::from(publish("vol-9").encode_to_vec()));
    assert_eq!(call.headers["x-test"], "1");
    assert_eq!(call.outcome, super::Outcome::Finished);
    assert!(call.decode::<NodePublishVolumeRequest>().unwrap() == publish("vol-9"));
    assert_eq!(bench.driver.published(), [("vol-9".to_owned(), "/target".to_owned())]);
}

#[tokio::test]
async fn the_fast_path_answers_the_same() {
    let bench = Bench::new();
    bench.driver.record(false);
    bench.driver.refuse_overlaps(false);
    assert!(!bench.driver.core.watches());
    ask_controller(&bench).await;
    ask_the_small_ones(&bench).await;
    ask_node(&bench).await;
    assert!(bench.driver.calls().is_empty());
}
