//! Real mounts and loop devices, for root: `cargo test -p drivers --lib -- --ignored`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use parking_lot::Mutex;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::*;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::core::Core;
use super::loops;
use super::mounts;
use super::test_core::{MIB, capability, code, create, open, request, snapshot};

/// Held by the tests that use loop devices. A losetup that another thread begins has, until it
/// runs, a copy of each file that is open here, and the kernel unmounts no device that is open.
static LOOPS: Mutex<()> = Mutex::new(());

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

    fn publish(
        &self,
        core: &Core,
        name: &str,
        readonly: bool,
    ) -> Result<NodePublishVolumeResponse, Status> {
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
        core.delete_volume(DeleteVolumeRequest {
            volume_id: self.volume.clone(),
            ..Default::default()
        })
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
    let _alone = LOOPS.lock();
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
    let written =
        fs::File::options().write(true).open(at.path("ro")).and_then(|ro| ro.write_all_at(&[1], 0));
    let refused = written.expect_err("the read-only device was written").raw_os_error();
    assert_eq!(refused, Some(rustix::io::Errno::PERM.raw_os_error()));
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

#[test]
#[ignore = "needs root: it attaches loop devices"]
fn a_staged_device_is_kept_over_a_restart_and_forgotten_after_a_power_cut() {
    let _alone = LOOPS.lock();
    let state = tempfile::tempdir().unwrap();
    let core = open(state.path());
    let volume = create(&core, request("a", true));
    let at = Place { dir: tempfile::tempdir().unwrap(), volume: volume.clone(), block: true };
    at.stage(&core).unwrap();
    drop(core);
    let core = open(state.path());
    let delete = DeleteVolumeRequest { volume_id: volume.clone(), ..Default::default() };
    let refused = core.delete_volume(delete.clone());
    assert_eq!(code(refused), Code::FailedPrecondition, "the volume is staged");
    loops::detach(&core.data(&core.volume(&volume).unwrap()), None).unwrap();
    drop(core);
    let core = open(state.path());
    core.delete_volume(delete).unwrap();
}
