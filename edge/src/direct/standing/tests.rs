//! Devices that somebody still has, that two volumes would have, or of which nothing can be said.

use proto::host::tasks::Tasks;

use super::super::Places;
use super::super::device::tests::{block_devices, with_open};
use super::super::mount_info::Root;
use super::super::published::State;
use super::super::published::tests::record;
use super::super::runtime::Roots;
use super::*;
use crate::calls::Calls;

struct Node {
    dir: tempfile::TempDir,
    proc: tempfile::TempDir,
    direct: Direct,
    /// A block device of this host, which is only looked at.
    device: std::path::PathBuf,
    number: u64,
}

/// A node with a process that has a block device open; none on a host without block devices.
fn node() -> Option<Node> {
    let device = block_devices().into_iter().next()?;
    let number = device::number(&device).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (proc, host) = with_open(&device);
    let roots = Roots { entries: dir.path().join("run/entries"), ..Roots::default() };
    let places = Places { state: Some(dir.path().join("state")), host, roots };
    let direct = Direct::new(Arc::new(Calls::new(&[], Tasks::default())), places, Tasks::default());
    Some(Node { dir, proc, direct, device, number })
}

impl Node {
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
    let Some(node) = node() else { return };
    let volume = node.volume("v");
    let root = Root::new(node.dir.path().join("run/entries"));
    let mut info = super::super::publish::info(&volume);
    info.metadata = [("edge-csi.io/driver", "d.example"), ("edge-csi.io/volume-id", "v")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    root.publish(&volume.target, &info).unwrap();
    for absent in [Absent::TakenBack, Absent::Lost] {
        let refused = node.direct.withdraw(&volume, absent).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.chain().contains("is open in process 12"), "{}", refused.chain());
    }
    assert_eq!(node.entries(), 0, "a VM that starts now would get it");
    // Also when formatting was only begun.
    let begun = Published { number: 0, state: State::Begun, ..volume.clone() };
    assert!(node.direct.withdraw(&begun, Absent::TakenBack).await.is_err());
    // Nobody has it after another boot.
    let before = Published { boot: "before".into(), ..volume.clone() };
    node.direct.withdraw(&before, Absent::TakenBack).await.unwrap();
    node.vm_ends();
    node.direct.withdraw(&volume, Absent::TakenBack).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_vm_has_is_not_published_anew_though_the_driver_shows_another_device() {
    let Some(node) = node() else { return };
    let volume = node.volume("v");
    std::fs::remove_file(&volume.private_path).unwrap();
    assert!(node.direct.withdraw(&volume, Absent::Lost).await.is_err(), "its VM still has it");
    // The driver has taken it back already; the number may be anybody's.
    node.direct.withdraw(&volume, Absent::TakenBack).await.unwrap();
    // It is another volume's by now.
    node.volume("w").keep(&node.dir.path().join("state")).unwrap();
    node.direct.withdraw(&volume, Absent::Lost).await.unwrap();
}

#[test]
fn a_device_is_one_volumes() {
    let Some(node) = node() else { return };
    let device = Device { path: node.device.clone(), number: node.number };
    let mut first = Published { number: 0, state: State::Begun, ..node.volume("v") };
    let mut second = Published { number: 0, state: State::Begun, ..node.volume("w") };
    node.direct.claim(&mut first, &device).unwrap();
    node.direct.claim(&mut first, &device).unwrap();
    let refused = node.direct.claim(&mut second, &device).unwrap_err();
    assert!(refused.chain().contains("is the device of volume v too"), "{}", refused.chain());
    assert_eq!((refused.code(), second.number), (tonic::Code::Unavailable, 0));
    // The driver has given the number to another since.
    std::fs::remove_file(&first.private_path).unwrap();
    node.direct.claim(&mut second, &device).unwrap();
}

#[tokio::test]
async fn what_cannot_be_found_out_is_neither_yes_nor_no() {
    let Some(node) = node() else { return };
    let volume = node.volume("v");
    let before = Published { boot: "before".into(), ..volume.clone() };
    assert!(matches!(node.direct.standing(&before).await, Standing::Another));
    let other = Published { number: volume.number + 1, ..volume.clone() };
    assert!(matches!(node.direct.standing(&other).await, Standing::Another));
    // A device that cannot be looked at, and is not there under its name.
    let gone = Published { device: "/dev/does-not-exist".into(), ..volume.clone() };
    assert!(matches!(node.direct.standing(&gone).await, Standing::Unknown(_)));
    std::fs::remove_dir_all(node.proc.path().join("sys")).unwrap();
    assert!(matches!(node.direct.standing(&before).await, Standing::Unknown(_)));
}
