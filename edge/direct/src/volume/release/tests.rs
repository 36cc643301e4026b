//! Devices that somebody still has, that two volumes would have, or whose state is not known.

use super::super::verify::{DeviceMatch, verify};
use super::*;
use crate::device::host::tests::{block_device, with_open};
use crate::records::published::tests::record;
use crate::runtimes::mount_info::{MountInfo, Root};
use proto::csi::status::ToStatus;

struct Fixture {
    dir: tempfile::TempDir,
    proc: tempfile::TempDir,
    node: Node,
    /// A block device of this host; the tests only look at it.
    device: std::path::PathBuf,
    number: u64,
}

/// A node with a process that has a block device open; none on a host without block devices.
fn fixture() -> Option<Fixture> {
    let device = block_device()?;
    let number = host::number(&device).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (proc, host) = with_open(&device);
    let root = Root::new(dir.path().join("run/entries"));
    let node = Node::new(Some(dir.path().join("state")), host, root);
    Some(Fixture { dir, proc, node, device, number })
}

impl Fixture {
    /// A volume that was handed over with that device.
    fn volume(&self, id: &str) -> Published {
        let target = self.dir.path().join("pods").join(id);
        let private_path = self.dir.path().join(format!("private-{id}"));
        std::os::unix::fs::symlink(&self.device, &private_path).unwrap();
        let device = self.device.clone();
        Published { target, private_path, device, number: self.number, ..record(id) }
    }

    fn vm_ends(&self) {
        std::fs::remove_file(self.proc.path().join("12/fd/3")).unwrap();
    }

    fn entries(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("run/entries")).unwrap().count()
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_vm_has_is_not_taken_back() {
    let Some(fixture) = fixture() else { return };
    let volume = fixture.volume("v");
    let mut info = MountInfo::of(&volume);
    info.metadata = [("edge-csi.io/driver", "d.example"), ("edge-csi.io/volume-id", "v")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    fixture.node.root.publish(&volume.target, &info).unwrap();
    for absent in [Absent::TakenBack, Absent::Lost] {
        let refused = withdraw(&fixture.node, &volume, absent).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.chain().contains("is open in process 12"), "{}", refused.chain());
    }
    assert_eq!(fixture.entries(), 0, "a VM that starts now would get it");
    // Also when formatting was only begun.
    let begun = Published { number: 0, state: PublicationState::Begun, ..volume.clone() };
    let refused = withdraw(&fixture.node, &begun, Absent::TakenBack).await.unwrap_err();
    assert!(refused.chain().contains("is open in process 12"), "{}", refused.chain());
    // Nobody has it after another boot.
    let before = Published { boot: "before".into(), ..volume.clone() };
    withdraw(&fixture.node, &before, Absent::TakenBack).await.unwrap();
    fixture.vm_ends();
    withdraw(&fixture.node, &volume, Absent::TakenBack).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_vm_has_is_not_published_anew_though_the_driver_shows_another_device() {
    let Some(fixture) = fixture() else { return };
    let volume = fixture.volume("v");
    std::fs::remove_file(&volume.private_path).unwrap();
    // Its VM still has it.
    let refused = withdraw(&fixture.node, &volume, Absent::Lost).await.unwrap_err();
    assert!(refused.chain().contains("is open in process 12"), "{}", refused.chain());
    // The driver has taken it back already; the number may be anybody's.
    withdraw(&fixture.node, &volume, Absent::TakenBack).await.unwrap();
    // It is another volume's by now.
    fixture.volume("w").keep(&fixture.dir.path().join("state")).unwrap();
    withdraw(&fixture.node, &volume, Absent::Lost).await.unwrap();
}

#[test]
fn a_device_is_one_volumes() {
    let Some(fixture) = fixture() else { return };
    let device = Device { path: fixture.device.clone(), number: fixture.number };
    let mut first = Published { number: 0, state: PublicationState::Begun, ..fixture.volume("v") };
    let mut second = Published { number: 0, state: PublicationState::Begun, ..fixture.volume("w") };
    claim(&fixture.node, &mut first, &device).unwrap();
    claim(&fixture.node, &mut first, &device).unwrap();
    let refused = claim(&fixture.node, &mut second, &device).unwrap_err();
    assert!(refused.chain().contains("is the device of volume v too"), "{}", refused.chain());
    assert_eq!((refused.code(), second.number), (tonic::Code::Unavailable, 0));
    // A controller that is being handed over may have it still; one that was has it no more.
    let records = fixture.dir.path().join("state");
    let vfio = |state| {
        let device = "/dev/vfio/9".into();
        Published { kind: DeviceKind::Vfio, device, state, ..first.clone() }
    };
    vfio(PublicationState::Begun).keep(&records).unwrap();
    claim(&fixture.node, &mut second, &device).unwrap_err();
    vfio(PublicationState::Published).keep(&records).unwrap();
    claim(&fixture.node, &mut second, &device).unwrap();
    second.forget(&records).unwrap();
    first.keep(&records).unwrap();
    claim(&fixture.node, &mut second, &device).unwrap_err();
    // The driver has given the number to another since.
    std::fs::remove_file(&first.private_path).unwrap();
    claim(&fixture.node, &mut second, &device).unwrap();
}

#[tokio::test]
async fn what_cannot_be_found_out_is_neither_yes_nor_no() {
    let Some(fixture) = fixture() else { return };
    let volume = fixture.volume("v");
    let before = Published { boot: "before".into(), ..volume.clone() };
    assert!(matches!(verify(&fixture.node, &before).await, DeviceMatch::Another));
    let other = Published { number: volume.number + 1, ..volume.clone() };
    assert!(matches!(verify(&fixture.node, &other).await, DeviceMatch::Another));
    // The device cannot be inspected, and is not there under its name.
    let gone = Published { device: "/dev/does-not-exist".into(), ..volume.clone() };
    assert!(matches!(verify(&fixture.node, &gone).await, DeviceMatch::Unknown(_)));
    std::fs::remove_dir_all(fixture.proc.path().join("sys")).unwrap();
    assert!(matches!(verify(&fixture.node, &before).await, DeviceMatch::Unknown(_)));
}

/// As without free file descriptors: the device may be another volume's.
#[tokio::test]
async fn no_device_is_free_while_the_records_cannot_be_read() {
    let Some(fixture) = fixture() else { return };
    fixture.vm_ends();
    let volume = fixture.volume("v");
    check_released(&fixture.node, &volume, Absent::Lost).await.unwrap();
    let records = fixture.dir.path().join("state/direct");
    std::fs::create_dir_all(&records).unwrap();
    std::fs::File::create(records.join("published")).unwrap();
    let unknown = check_released(&fixture.node, &volume, Absent::Lost).await.unwrap_err();
    assert!(matches!(unknown, DeviceError::Unknown { .. }), "{unknown}");
    let device = Device { path: fixture.device.clone(), number: fixture.number };
    let mut second = Published { number: 0, ..fixture.volume("w") };
    let refused = claim(&fixture.node, &mut second, &device).unwrap_err();
    assert!(refused.chain().contains("it is not known who has"), "{}", refused.chain());
    assert_eq!(second.number, 0);
}

#[tokio::test]
async fn a_controller_is_given_back_once() {
    let dir = tempfile::tempdir().unwrap();
    let sys = dir.path().join("sys");
    // Another volume's controller, which has the number by now.
    let group = sys.join("kernel/iommu_groups/9/devices/0000:00:04.0");
    std::fs::create_dir_all(group).unwrap();
    let host = Host { sys, ..Host::default() };
    let boot = host.boot();
    let node = Node::new(None, host, Root::new(dir.path().join("entries")));
    let device = "/dev/vfio/9".into();
    let volume = Published { kind: DeviceKind::Vfio, device, boot, ..record("v") };
    let refused = give_back(&node, &volume).await.unwrap_err().chain();
    assert!(refused.contains("0000:00:04.0"), "{refused}");
    let asked = Published { unpublishing: true, ..volume };
    give_back(&node, &asked).await.unwrap();
    assert!(is_released(&node.host, &asked, Absent::TakenBack, false).is_ok());
}
