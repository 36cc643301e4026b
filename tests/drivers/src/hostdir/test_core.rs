//! The driver's calls without a socket: what survives and what is copied.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::grpc::snapshot_metadata_server::SnapshotMetadata as _;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use proto::csi::*;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};

use super::HostDir;
use super::core::{Core, Settings};

pub(super) const MIB: i64 = 1 << 20;

pub(super) fn open(state: &Path) -> Core {
    with_capacity(state, 0)
}

fn with_capacity(state: &Path, capacity: i64) -> Core {
    let settings = Settings {
        name: "hostdir".to_owned(),
        node_id: "n".to_owned(),
        attach_limit: 1,
        echo_preferred: false,
        capacity,
        server: None,
    };
    Core::open(state, settings).unwrap()
}

pub(super) fn capability(block: bool, mode: Mode) -> Option<VolumeCapability> {
    let kind = if block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            volume_mount_group: "4242".to_owned(),
            ..Default::default()
        })
    };
    Some(VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(kind),
    })
}

pub(super) fn request(name: &str, block: bool) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: capability(block, Mode::SingleNodeWriter).into_iter().collect(),
        capacity_range: Some(CapacityRange { required_bytes: 8 * MIB, limit_bytes: 0 }),
        ..Default::default()
    }
}

pub(super) fn create(core: &Core, request: CreateVolumeRequest) -> String {
    core.create_volume(request).unwrap().volume.unwrap().volume_id
}

pub(super) fn path(core: &Core, id: &str) -> PathBuf {
    core.data(&core.volume(id).unwrap())
}

pub(super) fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

pub(super) fn snapshot(core: &Core, name: &str, volume: &str) -> String {
    let q = CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..Default::default()
    };
    core.create_snapshot(q).unwrap().snapshot.unwrap().snapshot_id
}

#[test]
fn a_clone_and_a_volume_from_a_snapshot_are_real_copies() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let first = create(&core, request("first", false));
    let put = |dir: &Path, text: &str| {
        proto::host::publish::publish(
            &dir.join("f"),
            text.as_bytes(),
            0o640,
            proto::host::publish::Existing::Replace,
        )
    };
    put(&path(&core, &first), "old").unwrap();
    let snap = snapshot(&core, "snap", &first);
    let from = |kind| Some(VolumeContentSource { r#type: Some(kind) });
    let of_volume = volume_content_source::VolumeSource { volume_id: first.clone() };
    let of_snapshot = volume_content_source::SnapshotSource { snapshot_id: snap };
    let clone = create(
        &core,
        CreateVolumeRequest {
            volume_content_source: from(volume_content_source::Type::Volume(of_volume)),
            ..request("clone", false)
        },
    );
    put(&path(&core, &first), "new").unwrap();
    let restored = create(
        &core,
        CreateVolumeRequest {
            volume_content_source: from(volume_content_source::Type::Snapshot(of_snapshot)),
            ..request("restored", false)
        },
    );
    core.delete_volume(DeleteVolumeRequest { volume_id: first, ..Default::default() }).unwrap();
    for id in [&clone, &restored] {
        assert_eq!(fs::read_to_string(path(&core, id).join("f")).unwrap(), "old");
    }
}

#[test]
fn objects_survive_a_restart_and_half_made_ones_do_not() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let a = create(&core, request("a", true));
    let b = create(&core, request("b", false));
    let node = "n".to_owned();
    let attach = ControllerPublishVolumeRequest {
        volume_id: a.clone(),
        node_id: node,
        volume_capability: capability(true, Mode::SingleNodeWriter),
        ..Default::default()
    };
    core.attach(attach.clone()).unwrap();
    // As a SIGKILL leaves them: a volume under way, and a member of a group that was not finished.
    std::mem::forget(core.volumes.draft("half").unwrap());
    let member =
        core.snap(&core.volume(&b).unwrap(), String::new(), Some("gone".to_owned())).unwrap();
    let settings = core.settings.clone();
    let second = Core::open(state.path(), settings).err().unwrap();
    assert!(
        format!("{second:#}").contains("another driver uses"),
        "two drivers on one state: {second:#}"
    );
    // As in a child process between fork and exec.
    let _inherited = core._alone.as_ref().unwrap().0.try_clone().unwrap();
    drop(core);

    let core = open(state.path());
    assert_eq!(core.volumes.all().len(), 2);
    assert!(core.snapshots.get(&member.id).is_none());
    assert!(!state.path().join("volumes/.new-half").exists());
    assert_eq!(create(&core, request("a", true)), a, "CreateVolume is idempotent");
    assert_eq!(fs::metadata(path(&core, &a)).unwrap().len(), 8 * MIB.unsigned_abs());
    core.attach(attach.clone()).unwrap();
    let other = ControllerPublishVolumeRequest {
        volume_id: b,
        volume_capability: capability(false, Mode::SingleNodeWriter),
        ..attach.clone()
    };
    assert_eq!(code(core.attach(other)), Code::ResourceExhausted, "the limit is one");
    assert_eq!(
        code(core.attach(ControllerPublishVolumeRequest { readonly: true, ..attach })),
        Code::AlreadyExists
    );
    assert_eq!(
        code(core.delete_volume(DeleteVolumeRequest { volume_id: a, ..Default::default() })),
        Code::FailedPrecondition
    );
}

#[test]
fn a_name_stands_for_one_volume_and_a_node_for_itself() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    create(&core, request("a", false));
    assert_eq!(code(core.create_volume(request("a", true))), Code::AlreadyExists);
    let larger = Some(CapacityRange { required_bytes: 9 * MIB, limit_bytes: 0 });
    assert_eq!(
        code(
            core.create_volume(CreateVolumeRequest {
                capacity_range: larger,
                ..request("a", false)
            })
        ),
        Code::AlreadyExists
    );
    let elsewhere =
        TopologyRequirement { requisite: vec![super::record::topology("m")], preferred: vec![] };
    let elsewhere =
        CreateVolumeRequest { accessibility_requirements: Some(elsewhere), ..request("b", false) };
    assert_eq!(code(core.create_volume(elsewhere)), Code::ResourceExhausted);
    let huge = Some(CapacityRange { required_bytes: i64::MAX - 1, limit_bytes: 0 });
    for block in [true, false] {
        let huge = CreateVolumeRequest { capacity_range: huge, ..request("b", block) };
        assert_eq!(code(core.create_volume(huge)), Code::OutOfRange);
    }
}

#[test]
fn a_group_snapshot_is_made_and_deleted_as_a_whole() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let volumes = vec![create(&core, request("a", true)), create(&core, request("b", false))];
    let q = CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: volumes.clone(),
        ..Default::default()
    };
    let group = core.create_group(q.clone()).unwrap().group_snapshot.unwrap();
    let again = core.create_group(q.clone()).unwrap().group_snapshot.unwrap();
    assert_eq!(group.group_snapshot_id, again.group_snapshot_id);
    let fewer = CreateVolumeGroupSnapshotRequest { source_volume_ids: volumes[..1].to_vec(), ..q };
    assert_eq!(code(core.create_group(fewer)), Code::AlreadyExists);
    let ids: Vec<_> = group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
    assert_eq!(ids.len(), 2);
    let alone = DeleteSnapshotRequest { snapshot_id: ids[0].clone(), ..Default::default() };
    assert_eq!(code(core.delete_snapshot(alone)), Code::InvalidArgument);
    let delete = |snapshot_ids: &[String]| DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: snapshot_ids.to_vec(),
        ..Default::default()
    };
    assert_eq!(code(core.delete_group(delete(&ids[..1]))), Code::InvalidArgument);
    core.delete_group(delete(&ids)).unwrap();
    core.delete_group(delete(&ids)).unwrap();
    assert!(core.snapshots.all().is_empty());
}

#[tokio::test]
async fn metadata_comes_in_batches_and_from_the_real_extents() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let volume = create(&core, request("a", true));
    let write = |at: u64| {
        let image = fs::File::options().write(true).open(path(&core, &volume)).unwrap();
        image.write_all_at(&[7; 4096], at).unwrap();
    };
    (0..5).for_each(|n| write(n << 20));
    let old = snapshot(&core, "old", &volume);
    write(6 << 20);
    let new = snapshot(&core, "new", &volume);
    let plain = snapshot(&core, "plain", &create(&core, request("b", false)));
    let driver = HostDir(std::sync::Arc::new(core));

    let q = GetMetadataAllocatedRequest {
        snapshot_id: old.clone(),
        starting_offset: MIB,
        max_results: 3,
        ..Default::default()
    };
    let answers =
        driver.get_metadata_allocated(Request::new(q.clone())).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
    assert_eq!(answers.iter().map(|one| one.block_metadata.len()).collect::<Vec<_>>(), [3, 1]);
    assert!(answers[0].block_metadata[0] == BlockMetadata { byte_offset: MIB, size_bytes: 4096 });
    assert_eq!(answers[0].volume_capacity_bytes, 8 * MIB);
    for (snapshot_id, starting_offset, expected) in [
        (old.clone(), 8 * MIB + 1, Code::OutOfRange),
        (old.clone(), -1, Code::OutOfRange),
        (String::new(), 0, Code::InvalidArgument),
        ("none".to_owned(), 0, Code::NotFound),
        (plain, 0, Code::InvalidArgument),
    ] {
        let q = GetMetadataAllocatedRequest { snapshot_id, starting_offset, ..q.clone() };
        assert_eq!(code(driver.get_metadata_allocated(Request::new(q)).await), expected);
    }

    let delta = |base: &str, target: &str| {
        let base_snapshot_id = base.to_owned();
        let target_snapshot_id = target.to_owned();
        Request::new(GetMetadataDeltaRequest {
            base_snapshot_id,
            target_snapshot_id,
            ..Default::default()
        })
    };
    for (base, found) in
        [(&old, vec![BlockMetadata { byte_offset: 6 * MIB, size_bytes: 4096 }]), (&new, vec![])]
    {
        let answers = driver.get_metadata_delta(delta(base, &new)).await.unwrap().into_inner();
        let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
        assert_eq!(answers.len(), 1, "the capacity is told also if nothing changed");
        assert!(answers[0].block_metadata == found);
    }
}

#[test]
fn a_driver_with_a_capacity_promises_no_more() {
    let state = tempfile::tempdir().unwrap();
    let core = with_capacity(state.path(), 20 * MIB);
    assert_eq!(core.available().unwrap(), 20 * MIB);
    let first = create(&core, request("first", false));
    assert_eq!(core.available().unwrap(), 12 * MIB);
    create(&core, request("second", true));
    assert_eq!(code(core.create_volume(request("third", false))), Code::ResourceExhausted);
    let larger = CapacityRange { required_bytes: 13 * MIB, limit_bytes: 0 };
    let grow = ControllerExpandVolumeRequest {
        volume_id: first.clone(),
        capacity_range: Some(larger),
        ..Default::default()
    };
    assert_eq!(code(core.expand_volume(grow)), Code::ResourceExhausted);
    let huge = CapacityRange { required_bytes: 21 * MIB, limit_bytes: 0 };
    let huge = CreateVolumeRequest { capacity_range: Some(huge), ..request("huge", false) };
    assert_eq!(code(core.create_volume(huge)), Code::OutOfRange);
    core.delete_volume(DeleteVolumeRequest { volume_id: first, ..Default::default() }).unwrap();
    create(&core, request("third", false));
}
