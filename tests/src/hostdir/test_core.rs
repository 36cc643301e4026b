//! The driver's calls without a socket: what survives, what is copied, and, for root, real mounts and devices.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use proto::csi::*;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::core::{Core, Settings};
use super::mounts;

const MIB: i64 = 1 << 20;

fn open(state: &Path) -> Core {
    let settings = Settings { name: "hostdir".to_owned(), node_id: "n".to_owned(), attach_limit: 1 };
    Core::open(state, settings).unwrap()
}

fn capability(block: bool, mode: Mode) -> Option<VolumeCapability> {
    let kind = if block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume { volume_mount_group: "4242".to_owned(), ..Default::default() })
    };
    Some(VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type: Some(kind) })
}

fn request(name: &str, block: bool) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: capability(block, Mode::SingleNodeWriter).into_iter().collect(),
        capacity_range: Some(CapacityRange { required_bytes: 8 * MIB, limit_bytes: 0 }),
        ..Default::default()
    }
}

fn create(core: &Core, request: CreateVolumeRequest) -> String {
    core.create_volume(request).unwrap().volume.unwrap().volume_id
}

fn path(core: &Core, id: &str) -> PathBuf {
    core.data(&core.volume(id).unwrap())
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

fn snapshot(core: &Core, name: &str, volume: &str) -> String {
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
        proto::publish::publish(&dir.join("f"), text.as_bytes(), 0o640, proto::publish::Existing::Replace)
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
    let (a, b) = (create(&core, request("a", true)), create(&core, request("b", false)));
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
    let member = core.snap(&core.volume(&b).unwrap(), String::new(), Some("gone".to_owned())).unwrap();

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
        code(core.create_volume(CreateVolumeRequest { capacity_range: larger, ..request("a", false) })),
        Code::AlreadyExists
    );
    let elsewhere = TopologyRequirement { requisite: vec![super::record::topology("m")], preferred: vec![] };
    let elsewhere =
        CreateVolumeRequest { accessibility_requirements: Some(elsewhere), ..request("b", false) };
    assert_eq!(code(core.create_volume(elsewhere)), Code::ResourceExhausted);
    let huge = Some(CapacityRange { required_bytes: i64::MAX - 1, limit_bytes: 0 });
    for block in [true, false] {
        let huge = CreateVolumeRequest { capacity_range: huge, ..request("b", block) };
        assert_eq!(code(core.create_volume(huge)), Code::OutOfRange);
    }
}

/// A volume's paths on the node.
struct Place {
    dir: TempDir,
    volume: String,
    block: bool,
}

impl Place {
    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn stage(&self, core: &Core) -> Result<NodeStageVolumeResponse, Status> {
        core.stage(NodeStageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.path("stage"),
            volume_capability: capability(self.block, Mode::SingleNodeMultiWriter),
            ..Default::default()
        })
    }

    fn publish(&self, core: &Core, name: &str, readonly: bool) -> Result<NodePublishVolumeResponse, Status> {
        core.publish(NodePublishVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.path("stage"),
            target_path: self.path(name),
            volume_capability: capability(self.block, Mode::SingleNodeMultiWriter),
            readonly,
            ..Default::default()
        })
    }

    fn unpublish(&self, core: &Core, name: &str) -> Result<NodeUnpublishVolumeResponse, Status> {
        core.unpublish(NodeUnpublishVolumeRequest {
            volume_id: self.volume.clone(),
            target_path: self.path(name),
        })
    }

    fn unstage(&self, core: &Core) -> Result<NodeUnstageVolumeResponse, Status> {
        core.unstage(NodeUnstageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.path("stage"),
        })
    }

    /// Takes everything away, each step twice.
    fn leave(&self, core: &Core) {
        assert_eq!(code(self.unstage(core)), Code::FailedPrecondition, "it is still published");
        for _ in 0..2 {
            for name in ["rw", "ro"] {
                self.unpublish(core, name).unwrap();
                assert!(!Path::new(&self.path(name)).exists());
            }
        }
        for _ in 0..2 {
            self.unstage(core).unwrap();
        }
        assert!(!mounts::is_mount(self.path("stage")));
        core.delete_volume(DeleteVolumeRequest { volume_id: self.volume.clone(), ..Default::default() })
            .unwrap();
    }
}

#[test]
#[ignore = "needs root: it mounts"]
fn a_directory_is_published_for_writing_and_for_reading() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let volume = create(&core, request("a", false));
    let at = Place { dir: tempfile::tempdir().unwrap(), volume, block: false };
    assert_eq!(code(at.publish(&core, "rw", false)), Code::FailedPrecondition, "it is not staged");
    for _ in 0..2 {
        at.stage(&core).unwrap();
        at.publish(&core, "rw", false).unwrap();
        at.publish(&core, "ro", true).unwrap();
    }
    assert_eq!(code(at.publish(&core, "ro", false)), Code::AlreadyExists);
    fs::File::create(at.path("rw/f")).unwrap();
    assert_eq!(fs::metadata(at.path("ro/f")).unwrap().gid(), 4242, "set-group-id is inherited");
    let refused = fs::File::create(at.path("ro/g")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // A killed driver finds what it had mounted.
    drop(core);
    let core = open(state.path());
    at.publish(&core, "rw", false).unwrap();
    at.leave(&core);
}

#[test]
#[ignore = "needs root: it attaches loop devices"]
fn a_device_is_published_grows_in_use_and_is_read_only_where_asked() {
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let volume = create(&core, request("a", true));
    let at = Place { dir: tempfile::tempdir().unwrap(), volume: volume.clone(), block: true };
    for _ in 0..2 {
        at.stage(&core).unwrap();
        at.publish(&core, "rw", false).unwrap();
        at.publish(&core, "ro", true).unwrap();
    }
    let device = fs::File::options().write(true).open(at.path("rw")).unwrap();
    device.write_all_at(&[7; 4096], 1 << 20).unwrap();
    let written = fs::File::options().write(true).open(at.path("ro")).and_then(|ro| ro.write_all_at(&[1], 0));
    assert!(written.is_err(), "the read-only device was written");
    let grow = Some(CapacityRange { required_bytes: 12 * MIB, limit_bytes: 0 });
    let expand = ControllerExpandVolumeRequest {
        volume_id: volume.clone(),
        capacity_range: grow,
        ..Default::default()
    };
    assert!(core.expand_volume(expand).unwrap().node_expansion_required);
    let expand = NodeExpandVolumeRequest {
        volume_id: volume.clone(),
        volume_path: at.path("rw"),
        capacity_range: grow,
        ..Default::default()
    };
    core.expand_on_node(expand).unwrap();
    device.write_all_at(&[9; 4096], 11 << 20).unwrap();
    // Not synced by the writer: a snapshot has it all the same.
    let snapshot = core.snapshot(&snapshot(&core, "s", &volume)).unwrap();
    let copy = fs::File::open(core.copy_of(&snapshot)).unwrap();
    let found = super::extents::allocated(&copy, 0, 12 << 20).unwrap();
    assert_eq!(found, [(1 << 20, (1 << 20) + 4096), (11 << 20, (11 << 20) + 4096)]);
    drop(device);
    at.leave(&core);
}
