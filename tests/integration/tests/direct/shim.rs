//! The requests to a direct volume's runtime, against shims that behave as the real ones or worse.
//! Each case has the numbers, or the gRPC code, for the kubelet.

#![expect(clippy::unwrap_used, reason = "a test's own functions, which clippy takes for others")]

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use edge_direct::records::published::{PublicationState, Published};
use edge_direct::runtimes::{Error, Roots, Runtimes, VolumeSandbox};
use guest::kubelet::Expansion;
use guest::shim::{Dialect, GuestFileSystem, Manner, Shim};
use proto::csi::direct::DeviceKind;
use proto::csi::status::ToStatus;
use tempfile::TempDir;
use tonic::Code;

const MIB: u64 = 1 << 20;
const GUEST: GuestFileSystem =
    GuestFileSystem { total: 60 * MIB, used: 20 * MIB, inodes: 1000, inodes_used: 0, grows: false };
const GROWS: GuestFileSystem = GuestFileSystem { grows: true, ..GUEST };
const UUID: &str = "5f0c4b1e-6f5d-4f0a-9d3e-0123456789ab";

/// A host with one direct volume, whose device is a file.
struct Host {
    dir: TempDir,
    roots: Roots,
    runtimes: Runtimes,
    volume: Published,
}

impl Host {
    fn new() -> Self {
        Self::with("disk", Duration::from_secs(60))
    }

    /// A device of this name, and shims that may take so long.
    fn with(name: &str, patience: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let roots = Roots {
            entries: at("entries"),
            kata_go: at("go"),
            kata_rs: at("rs"),
            reference: at("reference"),
        };
        let runtimes = Runtimes::new(roots.clone(), patience);
        let device = at(name);
        File::create(&device).unwrap().set_len(64 * MIB).unwrap();
        Self { volume: volume(device), dir, roots, runtimes }
    }

    /// Hands the volume over, and has these sandboxes recorded, the last one last.
    fn handed_over(self, sandboxes: &[&str]) -> Self {
        let entry = self.runtimes.entry(&self.volume.target).unwrap();
        std::fs::create_dir_all(&entry).unwrap();
        for (name, n) in ["mountInfo.json"].iter().chain(sandboxes).zip(1..) {
            let file = File::create(entry.join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(n)).unwrap();
        }
        self
    }

    fn shim(&self, sandbox: &str, dialect: Dialect, guest: GuestFileSystem) -> Shim {
        let root = match dialect {
            Dialect::Go => &self.roots.kata_go,
            Dialect::Rs => &self.roots.kata_rs,
            Dialect::Reference => &self.roots.reference,
        };
        let shim = Shim::start(root, sandbox, dialect).unwrap();
        shim.has(self.volume.device.to_str().unwrap(), guest);
        shim
    }

    /// Its guest does not grow it, for this reason, and the kubelet goes on with the pod.
    async fn is_not_grown(&self, bytes: u64, why: &str) {
        let error = self.runtimes.expand(&self.volume, bytes).await.unwrap_err();
        assert_eq!(Expansion::after(code(&error)), Expansion::NextPod, "{}", told(&error));
        assert!(told(&error).contains(why), "{why:?} is not in {}", told(&error));
    }

    fn mkfs(&self, bytes: u64) {
        let disk = File::create(&self.volume.device).unwrap();
        disk.set_len(bytes).unwrap();
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-F", "-U", UUID])
            .arg(&self.volume.device)
            .status();
        assert!(made.unwrap().success());
    }
}

fn volume(device: PathBuf) -> Published {
    Published {
        volume_id: "v-1".into(),
        driver: "d.example".into(),
        target: "/var/lib/kubelet/pods/p/volumes/kubernetes.io~csi/pv/mount".into(),
        target_as_given: "/var/lib/kubelet/pods/p/volumes/kubernetes.io~csi/pv/mount".into(),
        staging: PathBuf::new(),
        private_path: device.clone(),
        device,
        number: 0,
        boot: "b".into(),
        uuid: UUID.into(),
        fstype: "ext4".into(),
        options: Vec::new(),
        metadata: Default::default(),
        kind: DeviceKind::Block,
        state: PublicationState::Published,
        pod: None,
        unpublishing: false,
        custody: Default::default(),
    }
}

/// The error's text for the kubelet.
fn code(error: &Error) -> Code {
    let fault = error.fault();
    let source = "".into();
    edge_direct::Error::Direct { method: "NodeGetVolumeStats", fault, source }.code()
}

fn told(error: &Error) -> String {
    proto::host::chain(error)
}

#[tokio::test]
async fn a_guests_numbers_are_told_by_either_dialect_that_has_them() {
    for dialect in [Dialect::Go, Dialect::Reference] {
        let host = Host::new().handed_over(&["sandbox-1"]);
        let _shim = host.shim("sandbox-1", dialect, GUEST);
        let stats = host.runtimes.stats(&host.volume).await.unwrap();
        let bytes = (stats.bytes.total, stats.bytes.used, stats.bytes.available);
        assert_eq!(bytes, (60 * MIB, 20 * MIB, 40 * MIB), "{dialect:?}");
        assert_eq!(stats.inodes.unwrap().used, 0, "{dialect:?}: Go leaves a zero out");
    }
}

#[tokio::test]
async fn the_go_runtime_is_asked_by_a_path_that_survives_two_decodings() {
    for name in ["a disk", "100%", "a%2fb", "a+b&c=d"] {
        let host = Host::with(name, Duration::from_secs(60)).handed_over(&["sandbox-1"]);
        let shim = host.shim("sandbox-1", Dialect::Go, GUEST);
        let stats = host.runtimes.stats(&host.volume).await;
        assert!(stats.is_ok(), "{name}: {} {:?}", told(&stats.unwrap_err()), shim.requests());
    }
}

#[tokio::test]
async fn statistics_that_runtime_rs_cannot_tell_are_unimplemented() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Rs, GUEST);
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::Unimplemented, "{}", told(&error));
    // It closes without a word, and lives.
    shim.behave(Manner::Closes);
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::Unimplemented, "{}", told(&error));
}

#[tokio::test]
async fn an_ok_of_runtime_rs_that_nobody_can_check_is_not_believed() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    let _shim = host.shim("sandbox-1", Dialect::Rs, GROWS);
    host.is_not_grown(64 * MIB, "kata-rs").await;
}

#[tokio::test]
async fn an_ok_after_which_the_guest_sees_no_growth_is_not_believed() {
    let dialects = [Dialect::Go, Dialect::Reference];
    for (dialect, mib) in dialects.into_iter().flat_map(|dialect| [(dialect, 66), (dialect, 256)]) {
        let host = Host::new().handed_over(&["sandbox-1"]);
        let shim = host.shim("sandbox-1", dialect, GROWS);
        File::options().write(true).open(&host.volume.device).unwrap().set_len(mib * MIB).unwrap();
        shim.behave(Manner::Lies);
        host.is_not_grown(mib * MIB, "its guest sees").await;
    }
}

#[tokio::test]
async fn a_shim_that_misbehaves_is_no_source_of_numbers() {
    let cases = [
        (Manner::Half, "broke off"),
        (Manner::Closes, "did not answer"),
        (Manner::Floods, "longer than"),
        (Manner::Babbles, "no HTTP"),
    ];
    let host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Go, GROWS);
    for (manner, text) in cases {
        shim.behave(manner);
        let error = host.runtimes.stats(&host.volume).await.unwrap_err();
        assert_eq!(code(&error), Code::Unavailable, "{manner:?}: {}", told(&error));
        assert!(told(&error).contains(text), "{manner:?}: {}", told(&error));
        host.is_not_grown(64 * MIB, text).await;
    }
    assert_eq!(shim.requests(), [""; 0], "it was asked again");
    shim.behave(Manner::Well);
    assert!(host.runtimes.stats(&host.volume).await.is_ok(), "it was well again");
}

#[tokio::test]
async fn a_shim_that_hangs_is_not_waited_for() {
    let host = Host::with("disk", Duration::from_millis(20)).handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Go, GROWS);
    shim.behave(Manner::Hangs);
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::DeadlineExceeded, "{}", told(&error));
    assert!(told(&error).contains("did not answer within"), "{}", told(&error));
    host.is_not_grown(64 * MIB, "did not answer within").await;
}

#[tokio::test]
async fn what_a_shim_says_of_a_failure_is_passed_on_and_is_no_number() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Reference, GUEST);
    let mut other = host.volume.clone();
    other.device = host.dir.path().join("other");
    File::create(&other.device).unwrap().set_len(MIB).unwrap();
    let error = host.runtimes.stats(&other).await.unwrap_err();
    assert_eq!(code(&error), Code::Internal);
    assert!(told(&error).contains("this sandbox does not have"), "{}", told(&error));
    // Larger than its device: these are another file system's numbers.
    shim.has(host.volume.device.to_str().unwrap(), GuestFileSystem { total: 65 * MIB, ..GUEST });
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::Internal);
    assert!(told(&error).contains("not this volume"), "{}", told(&error));
}

#[tokio::test]
async fn the_live_sandbox_is_found_among_those_that_are_gone() {
    let host = Host::new().handed_over(&["dead-0", "alive-1", "never-2", "dead-3"]);
    drop((host.shim("dead-0", Dialect::Go, GUEST), host.shim("dead-3", Dialect::Rs, GUEST)));
    let _other = host.shim("unrecorded", Dialect::Go, GUEST);
    let VolumeSandbox::Nobody { stale } = host.runtimes.holder(&host.volume).await.unwrap() else {
        panic!("somebody has it")
    };
    assert_eq!(stale.len(), 4);
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::Unavailable, "{}", told(&error));
    let _alive = host.shim("alive-1", Dialect::Go, GUEST);
    let VolumeSandbox::Live { runtime, sandbox } =
        host.runtimes.holder(&host.volume).await.unwrap()
    else {
        panic!("nobody has it")
    };
    assert_eq!((runtime.name(), sandbox.as_str()), ("kata-go", "alive-1"));
    assert!(host.runtimes.stats(&host.volume).await.is_ok());
}

#[tokio::test]
async fn a_volume_that_nobody_was_given_has_no_statistics() {
    let host = Host::new();
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::NotFound, "{}", told(&error));
    let host = host.handed_over(&[]);
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::Unavailable, "{}", told(&error));
}

#[tokio::test]
async fn a_guest_that_can_grow_its_file_system_does() {
    for dialect in [Dialect::Go, Dialect::Reference] {
        let host = Host::new().handed_over(&["sandbox-1"]);
        let shim = host.shim("sandbox-1", dialect, GROWS);
        File::options().write(true).open(&host.volume.device).unwrap().set_len(256 * MIB).unwrap();
        let grown = host.runtimes.expand(&host.volume, 200 * MIB).await;
        assert_eq!(
            grown.map_err(|error| told(&error)),
            Ok(256 * MIB),
            "{dialect:?}: {:?}",
            shim.requests()
        );
        assert_eq!(host.runtimes.stats(&host.volume).await.unwrap().bytes.total, 240 * MIB);
    }
}

#[tokio::test]
async fn what_a_guest_cannot_grow_is_no_reason_to_keep_its_pod_down() {
    for dialect in [Dialect::Go, Dialect::Rs, Dialect::Reference] {
        let host = Host::new().handed_over(&["sandbox-1"]);
        let _shim = host.shim("sandbox-1", dialect, GUEST);
        host.is_not_grown(64 * MIB, "delete the pod: it grows before the next hand-over").await;
    }
    let mut host = Host::new().handed_over(&["sandbox-1"]);
    let _shim = host.shim("sandbox-1", Dialect::Go, GUEST);
    host.volume.fstype = "xfs".into();
    host.is_not_grown(64 * MIB, "in the guest of the next one").await;
    host.volume.kind = DeviceKind::Spdk;
    host.is_not_grown(64 * MIB, "its size is not known here").await;
}

#[tokio::test]
async fn a_runtime_that_has_grown_a_volume_is_asked_again_when_it_fails_once() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Reference, GROWS);
    shim.behave(Manner::Fails);
    host.is_not_grown(64 * MIB, "No space left").await;
    shim.behave(Manner::Well);
    File::options().write(true).open(&host.volume.device).unwrap().set_len(256 * MIB).unwrap();
    host.runtimes.expand(&host.volume, 256 * MIB).await.unwrap();
    File::options().write(true).open(&host.volume.device).unwrap().set_len(320 * MIB).unwrap();
    shim.behave(Manner::Fails);
    let error = host.runtimes.expand(&host.volume, 320 * MIB).await.unwrap_err();
    assert_eq!(code(&error), Code::Unavailable, "{}", told(&error));
    assert!(told(&error).contains("No space left"), "{}", told(&error));
    // One that says that it cannot is not asked for ever, and a shim that is silent may be dead.
    let device = host.volume.device.to_str().unwrap();
    shim.behave(Manner::Well);
    shim.has(device, GUEST);
    host.is_not_grown(320 * MIB, "it cannot grow").await;
    shim.behave(Manner::Closes);
    host.is_not_grown(320 * MIB, "did not answer").await;
}

#[tokio::test]
async fn a_sandbox_without_a_running_container_is_asked_again_for_statistics_only() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Go, GROWS);
    let device = host.volume.device.to_str().unwrap();
    File::options().write(true).open(device).unwrap().set_len(256 * MIB).unwrap();
    host.runtimes.expand(&host.volume, 256 * MIB).await.unwrap();
    shim.has_no_container(device);
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert_eq!(code(&error), Code::Unavailable, "{}", told(&error));
    assert!(told(&error).contains("no running container"), "{}", told(&error));
    host.is_not_grown(256 * MIB, "no running container").await;
    shim.has(device, GUEST);
    assert!(host.runtimes.stats(&host.volume).await.is_ok());
}

#[tokio::test]
async fn a_device_that_the_driver_has_not_grown_is_asked_for_again() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Go, GROWS);
    let error = host.runtimes.expand(&host.volume, 65 * MIB).await.unwrap_err();
    assert_eq!(code(&error), Code::Unavailable, "{}", told(&error));
    assert_eq!(shim.requests(), [""; 0], "the guest was asked for what is not there");
}

#[tokio::test]
async fn what_was_handed_over_is_never_written_to_from_outside() {
    // Also if its entry was removed: that stops no guest.
    for host in [Host::new().handed_over(&["dead-0"]), Host::new().handed_over(&[]), Host::new()] {
        host.mkfs(16 * MIB);
        File::options().write(true).open(&host.volume.device).unwrap().set_len(64 * MIB).unwrap();
        let before = std::fs::read(&host.volume.device).unwrap();
        host.is_not_grown(64 * MIB, "it grows before the next hand-over").await;
        assert!(before == std::fs::read(&host.volume.device).unwrap(), "it was written to");
    }
}

#[tokio::test]
async fn a_file_system_that_fills_its_device_needs_nobody_to_grow() {
    let host = Host::new().handed_over(&["sandbox-1"]);
    host.mkfs(64 * MIB);
    assert_eq!(
        host.runtimes.expand(&host.volume, 64 * MIB).await.unwrap(),
        64 * MIB,
        "the kubelet asks again"
    );
    // Also if it is one whose runtime cannot.
    let shim = host.shim("sandbox-1", Dialect::Rs, GUEST);
    assert_eq!(host.runtimes.expand(&host.volume, 64 * MIB).await.unwrap(), 64 * MIB);
    assert_eq!(shim.requests(), [""; 0]);
}

#[tokio::test]
async fn another_device_of_the_same_name_is_not_the_volumes() {
    let mut host = Host::new().handed_over(&["sandbox-1"]);
    let shim = host.shim("sandbox-1", Dialect::Go, GROWS);
    host.volume.number = 1;
    let error = host.runtimes.stats(&host.volume).await.unwrap_err();
    assert!(matches!(error, Error::AnotherDevice { .. }), "{}", told(&error));
    host.is_not_grown(60 * MIB, "not the device of volume").await;
    assert_eq!(shim.requests(), [""; 0]);
}
