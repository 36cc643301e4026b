//! Direct volumes with the real programs, a real driver of block volumes, and guests in mount
//! namespaces of their own. Tests that stage need root and loop devices: `make direct`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use guest::contract::Runtime;
use guest::scene::{Scene, mount, remove_pod};
use harness::tier;
use harness::wait::until;
use proto::csi;
use proto::csi::volume_capability::AccessType;
use proto::csi::volume_capability::access_mode::Mode;
use proto::host::publish::{Existing, publish};
use tonic::{Code, Status};

use super::handover::{CLASS, Handover, entries};
use super::refusal::assert_refused;

/// A VM that has a device is found in `/proc`, which must be the host's.
#[test]
fn the_daemon_set_with_direct_volumes_sees_all_processes_of_its_host() {
    let template = include_str!("../../../../deploy/helm/edge-csi/templates/edge.yaml");
    let (_, after) = template.split_once("      {{- if .Values.direct }}\n").unwrap();
    let line = after.lines().find(|line| !line.trim_start().starts_with('#'));
    assert_eq!(line, Some("      hostPID: true"));
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output()?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_target_outside_of_the_kubelets_directory_is_refused() -> anyhow::Result<()> {
    let at = Handover::staged("node", "ext4").await?;
    let outside = at.scene.stand.dir().join("outside");
    std::fs::create_dir(&outside)?;
    let pods = at.scene.stand.dir().join("pods");
    std::os::unix::fs::symlink(&outside, pods.join("link"))?;
    for (target, code, word) in [
        (outside.join("mount"), Code::FailedPrecondition, "targets"),
        (pods.join("link/mount"), Code::FailedPrecondition, "targets"),
        (pods.join("../outside/mount"), Code::InvalidArgument, "climbs"),
    ] {
        assert_refused(at.publish(&target).await, code, &[word]);
        assert!(!outside.join("mount").exists(), "{}", target.display());
    }
    assert_eq!(at.entries(), 0);
    at.end().await
}

/// The whole life of a volume with two pods, one after the other.
async fn life(scope: &str, fs_type: &str) -> anyhow::Result<()> {
    let at = Handover::staged(scope, fs_type).await?;
    assert_eq!(at.volume.context["edge-csi.io/direct"], "kata");
    let first = at.scene.target("pod-1")?;
    at.publish(&first).await?;
    at.publish(&first).await?;
    has_its_entry(&at, &first)?;

    let mut vm = at.guest(Runtime::Go, &first).await?;
    assert_eq!(vm.found, "direct");
    vm.tell("write hello from the first guest").await?;
    assert_eq!(vm.tell("group").await?, "1000");
    at.scene.host_has_mounted_none()?;
    // As a kubelet that was restarted asks again.
    at.publish(&first).await?;
    vm.stop().await?;
    // A runtime without a VM gets the host's directory, and nothing of the volume.
    let mut runc = at.guest(Runtime::Runc, &first).await?;
    assert_eq!(runc.found, "shared");
    let missing = runc.tell("read hello").await.err().context("it found the volume")?.to_string();
    assert!(missing.contains("No such file"), "{missing}");
    runc.stop().await?;
    at.unpublish(&first).await?;
    at.unpublish(&first).await?;
    assert_eq!((at.entries(), first.exists()), (0, false));

    let second = at.scene.target("pod-2")?;
    at.publish(&second).await?;
    assert_eq!(at.read(Runtime::Rs, &second, "hello").await?, "from the first guest");
    at.end_at(&second).await
}

/// The entry is what runtimes expect, and the target is a directory with the notice alone.
fn has_its_entry(at: &Handover, target: &Path) -> anyhow::Result<()> {
    let entry = std::fs::read_dir(at.scene.root())?.next().context("no entry")??.path();
    let text = std::fs::read_to_string(entry.join("mountInfo.json"))?;
    assert!(text.starts_with("{\"volume-type\":\"directvol\",\"device\":\"/dev/loop"), "{text}");
    assert!(text.contains("\"fsGroup\":\"1000\""), "{text}");
    assert!(text.ends_with("\"options\":[\"noatime\"]}"), "{text}");
    has_the_notice_alone(target)?;
    assert_ne!(target, target.canonicalize()?, "the test's own symlink");
    Ok(())
}

/// The target has nothing but a notice, and is read-only.
pub(super) fn has_the_notice_alone(target: &Path) -> anyhow::Result<()> {
    let names = std::fs::read_dir(target)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    ensure!(names == ["EDGE-CSI-THIS-IS-NOT-YOUR-VOLUME"], "in the target are {names:?}");
    let written = File::create(target.join("file")).err().map(|error| error.kind());
    ensure!(written == Some(std::io::ErrorKind::ReadOnlyFilesystem), "{written:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_guest_finds_its_data_again_ext4_at_its_node() -> anyhow::Result<()> {
    life("node", "ext4").await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_guest_finds_its_data_again_xfs_of_a_shared_driver() -> anyhow::Result<()> {
    if Command::new("mkfs.xfs").arg("-V").output().is_err() {
        return tier::skipped("xfs, direct", "mkfs.xfs is not installed; it is in xfsprogs", false);
    }
    life("shared", "xfs").await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn the_controllers_calls_are_a_block_volumes_to_the_driver() -> anyhow::Result<()> {
    let at = Handover::staged("node", "").await?;
    let volume = &at.volume;
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.id.clone(),
        volume_context: volume.context.clone(),
        volume_capabilities: vec![volume.capability.clone()],
        ..Default::default()
    };
    let mut controller = at.scene.controller().await?;
    let confirmed = controller.validate_volume_capabilities(request).await?.into_inner().confirmed;
    let confirmed = confirmed.context("the driver took it for a volume of files")?;
    assert!(confirmed.volume_capabilities == [volume.capability.clone()]);
    assert_eq!(confirmed.volume_context, volume.context);
    // hostdir refuses a capability that is not the volume's.
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: volume.id.clone(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 400 << 20, limit_bytes: 0 }),
        volume_capability: Some(volume.capability.clone()),
        ..Default::default()
    };
    let grown = controller.controller_expand_volume(request).await?.into_inner();
    assert!(grown.node_expansion_required);
    at.end().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_volume_that_was_made_by_hand_is_direct_by_its_attributes() -> anyhow::Result<()> {
    let mut block = mount(Mode::SingleNodeSingleWriter, "", "");
    block.access_type = Some(AccessType::Block(csi::volume_capability::BlockVolume {}));
    let mut at = Handover::made("node", &[], block).await?;
    // The PersistentVolume, as its author writes it.
    at.volume.capability = mount(Mode::SingleNodeSingleWriter, "ext4", "");
    at.volume.context.extend(CLASS.map(|(key, value)| (key.to_owned(), value.to_owned())));
    at.scene.stage(&at.volume).await?;
    let target = at.scene.target("pod")?;
    at.publish(&target).await?;
    at.write(Runtime::Rs, &target, "file", "works").await?;
    // Without the attributes it would be mounted on the host besides.
    let mut plain = at.volume.clone();
    plain.context.clear();
    let published = at.scene.publish(&plain, &target).await;
    assert_refused(published, Code::FailedPrecondition, &["unpublish it first"]);
    at.end_at(&target).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn ordinary_volumes_of_the_same_driver_are_mounted_as_ever() -> anyhow::Result<()> {
    let at = Handover::made("node", &[], mount(Mode::SingleNodeMultiWriter, "", "")).await?;
    at.scene.stage(&at.volume).await?;
    let target = at.scene.target("pod")?;
    at.publish(&target).await?;
    publish(&target.join("file"), b"on the host", 0o600, Existing::Keep)?;
    assert_eq!(at.entries(), 0);
    at.end_at(&target).await
}

/// Why a volume of this class is not made.
async fn create_refused(
    scene: &Scene,
    class: &[(&str, &str)],
    capability: csi::VolumeCapability,
) -> anyhow::Result<Status> {
    scene.create("refused", class, capability).await.err().context("it was made")
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_cannot_be_had_directly_is_refused_with_the_reason() -> anyhow::Result<()> {
    let once = mount(Mode::SingleNodeMultiWriter, "", "");
    let Handover { scene, .. } = Handover::made("node", &[], once.clone()).await?;
    let rwo = create_refused(&scene, &CLASS, once.clone()).await?;
    assert_eq!(rwo.code(), Code::InvalidArgument);
    let rwo = rwo.message();
    assert!(rwo.contains("ReadWriteOncePod") && rwo.contains("direct-access"), "{rwo}");
    let alone = mount(Mode::SingleNodeSingleWriter, "", "");
    let class = [("edge-csi.io/direct", "firecracker")];
    let unknown = create_refused(&scene, &class, alone).await?;
    assert!(unknown.message().contains("it can be: kata"), "{unknown}");
    let btrfs = mount(Mode::SingleNodeSingleWriter, "btrfs", "");
    let btrfs = create_refused(&scene, &CLASS, btrfs).await?;
    assert!(btrfs.message().contains("ext4 and xfs"), "{btrfs}");
    // A class may offer ReadWriteOnce; a second pod is refused at its publish.
    let class = [CLASS[0], ("edge-csi.io/direct-access", "ReadWriteOnce")];
    let volume = scene.create("once", &class, once).await?;
    scene.stage(&volume).await?;
    given_to_one_pod_at_a_time(Handover { scene, volume }).await
}

async fn given_to_one_pod_at_a_time(at: Handover) -> anyhow::Result<()> {
    let first = at.scene.target("pod-1")?;
    let second = at.scene.target("pod-2")?;
    at.publish(&first).await?;
    assert_refused(at.publish(&second).await, Code::FailedPrecondition, &["pod-1"]);
    assert_eq!(at.entries(), 1);
    // The published entry cannot change under the guest.
    let mut other = at.volume.clone();
    other.capability = mount(Mode::SingleNodeMultiWriter, "", "7");
    assert_refused(at.scene.publish(&other, &first).await, Code::AlreadyExists, &[]);
    at.unpublish(&first).await?;
    at.publish(&second).await?;
    at.end_at(&second).await
}

/// Kills csi-edge when a state is reached, with the call on it or just after it, and starts it
/// again.
async fn killed_during(
    at: &mut Handover,
    call: impl AsyncFnOnce(&Handover) -> anyhow::Result<()>,
    reached: impl Fn(&Scene) -> bool,
) -> anyhow::Result<()> {
    {
        let reached = until("the state", || async {
            ensure!(reached(&at.scene), "not reached");
            Ok(())
        });
        let calling = call(at);
        tokio::pin!(calling);
        tokio::select! { biased; done = reached => done?, _ = &mut calling => {} }
    }
    at.restart_edge().await
}

/// csi-edge is killed while it publishes; what was written before is there afterwards.
async fn killed_when(reached: impl Fn(&Scene) -> bool, written: bool) -> anyhow::Result<()> {
    let mut at = Handover::staged("node", "ext4").await?;
    let target = at.scene.target("pod")?;
    if written {
        at.publish(&target).await?;
        let mut vm = at.guest(Runtime::Go, &target).await?;
        vm.tell("write kept through it all").await?;
        vm.kill().await?;
        at.unpublish(&target).await?;
    }
    killed_during(&mut at, async |at| at.publish(&target).await, reached).await?;
    until("it is published", || at.publish(&target)).await?;
    for runtime in [Runtime::Go, Runtime::Rs] {
        let mut vm = at.guest(runtime, &target).await?;
        assert_eq!(vm.found, "direct");
        if written {
            assert_eq!(vm.tell("read kept").await?, "through it all");
        }
        vm.tell("write more works").await?;
        vm.stop().await?;
    }
    assert_eq!(at.entries(), 1);
    at.scene.host_has_mounted_none()?;
    at.unpublish(&target).await?;
    at.scene.delete(&at.volume).await?;
    let left: Vec<_> = at.scene.state().join("published").read_dir()?.flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    at.scene.stop().await
}

/// Whether csi-edge has no device of a volume on record.
fn has_no_device(scene: &Scene) -> bool {
    !scene.state().join("devices").read_dir().is_ok_and(|mut files| files.next().is_some())
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn killed_while_it_is_taken_back_it_goes_to_the_next_pod_whole() -> anyhow::Result<()> {
    for reached in [
        |scene: &Scene| entries(scene) == 0,
        has_no_device,
        |scene: &Scene| !scene.target("pod-1").is_ok_and(|target| target.exists()),
        |scene: &Scene| !says(scene, "published", "volume_id"),
    ] {
        let (mut at, first) = Handover::published().await?;
        at.write(Runtime::Go, &first, "kept", "through it all").await?;
        killed_during(&mut at, async |at| at.unpublish(&first).await, reached).await?;
        until("it is unpublished", || at.unpublish(&first)).await?;
        assert_eq!((at.entries(), first.exists()), (0, false));
        let second = at.scene.target("pod-2")?;
        at.publish(&second).await?;
        assert_eq!(at.read(Runtime::Rs, &second, "kept").await?, "through it all");
        at.end_at(&second).await?;
    }
    Ok(())
}

/// Whether a file of csi-edge's state has this text.
fn says(scene: &Scene, directory: &str, what: &str) -> bool {
    let files = std::fs::read_dir(scene.state().join(directory)).into_iter().flatten().flatten();
    files
        .into_iter()
        .any(|file| std::fs::read_to_string(file.path()).unwrap_or_default().contains(what))
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn killed_at_any_step_it_is_published_whole_afterwards() -> anyhow::Result<()> {
    killed_when(|scene| says(scene, "published", "begun"), false).await?;
    killed_when(|scene| says(scene, "volumes", "formatting"), false).await?;
    killed_when(|scene| says(scene, "volumes", "ready"), false).await?;
    killed_when(|scene| entries(scene) == 1, false).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn killed_at_any_step_what_was_written_before_is_there() -> anyhow::Result<()> {
    killed_when(|scene| says(scene, "published", "begun"), true).await?;
    killed_when(|scene| says(scene, "published", "\"published\""), true).await?;
    killed_when(|scene| entries(scene) == 1, true).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_the_runtime_is_told_comes_again_and_goes_when_the_device_is_anothers()
-> anyhow::Result<()> {
    let (mut at, target) = Handover::published().await?;
    at.scene.kill_edge().await?;
    std::fs::remove_dir_all(at.scene.root())?;
    at.scene.start_edge().await?;
    assert_eq!(at.entries(), 1, "as it was before");
    // Entries of others stay, whatever happens to ours.
    let theirs = at.scene.root().join("L3RoZWlycw==");
    std::fs::create_dir(&theirs)?;
    publish(&theirs.join("mountInfo.json"), b"{}", 0o600, Existing::Keep)?;

    // The loop device gets another image while csi-edge is away, and keeps its number and name.
    let (device, image) = at.scene.devices()?.pop().context("no loop device")?;
    at.scene.kill_edge().await?;
    let other = at.scene.stand.at("other.img");
    File::create(&other)?.set_len(64 << 20)?;
    run("mkfs.ext4", &["-q", &other])?;
    run("losetup", &["-d", &device])?;
    run("losetup", &[&device, &other])?;
    at.scene.start_edge().await?;
    assert_eq!(at.entries(), 1, "the runtime would have been given another volume");
    assert!(theirs.exists());
    run("losetup", &["-d", &device])?;
    run("losetup", &[&device, image.to_str().context("no text")?])?;
    at.restart_edge().await?;
    assert_eq!(at.entries(), 2);
    at.unpublish(&target).await?;
    assert!(theirs.exists());
    at.end().await
}

/// A mount in a mount namespace of its own. The guests of other tests begin with a copy of this
/// program's mounts, and would keep the device in use after its end here.
struct Mounted(Child);

impl Mounted {
    fn of(device: &str, at: &str) -> anyhow::Result<Self> {
        std::fs::create_dir(at)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount \"$0\" \"$1\" && echo mounted && read _"]);
        let piped = command.args([device, at]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn()?;
        let mut told = String::new();
        BufReader::new(child.stdout.as_mut().context("no output")?).read_line(&mut told)?;
        ensure!(told == "mounted\n", "{device} is not mounted: {told}");
        Ok(Self(child))
    }

    /// Ends the namespace, and its mount with it.
    fn end(mut self) -> anyhow::Result<()> {
        drop(self.0.stdin.take());
        self.0.wait()?;
        Ok(())
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_device_that_somebody_uses_is_not_handed_over() -> anyhow::Result<()> {
    let (at, target) = Handover::published().await?;
    at.unpublish(&target).await?;
    let (device, _) = at.scene.devices()?.pop().context("no loop device")?;
    // A VM that still runs.
    let held = File::open(&device)?;
    assert_refused(at.publish(&target).await, Code::Unavailable, &["is open in process"]);
    drop(held);
    // A loop device, whose losetup has ended.
    let upon = run("losetup", &["--find", "--show", &device])?;
    let refused = at.publish(&target).await;
    run("losetup", &["-d", upon.trim()])?;
    assert_refused(refused, Code::Unavailable, &["is set up upon it"]);
    // A mount that should not exist.
    let mounted = Mounted::of(&device, &at.scene.stand.at("mounted"))?;
    assert_refused(at.publish(&target).await, Code::Unavailable, &["in use on this host"]);
    assert_eq!(at.entries(), 0);
    mounted.end()?;
    at.publish(&target).await?;
    at.end_at(&target).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_a_vm_still_has_goes_to_nobody_else() -> anyhow::Result<()> {
    let at = Handover::staged("node", "ext4").await?;
    let first = at.scene.kubelets_target("pod-1")?;
    let second = at.scene.kubelets_target("pod-2")?;
    at.publish(&first).await?;
    let (device, _) = at.scene.devices()?.pop().context("no loop device")?;
    let vm = File::open(&device)?;
    assert_refused(at.unpublish(&first).await, Code::Unavailable, &["is open in process"]);
    assert_eq!(at.entries(), 0, "no VM that starts now gets it");
    let deleted = at.scene.delete(&at.volume).await;
    assert_refused(deleted, Code::FailedPrecondition, &["unpublish it first"]);
    // Nor by way of a pod that is no more.
    remove_pod(first.ancestors().nth(4).context("no pod")?)?;
    assert_refused(at.publish(&second).await, Code::Unavailable, &["is open in process"]);
    drop(vm);
    at.publish(&second).await?;
    at.end_at(&second).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_pod_that_went_while_its_kubelet_was_away_does_not_keep_the_volume() -> anyhow::Result<()>
{
    let at = Handover::staged("node", "ext4").await?;
    let first = at.scene.kubelets_target("pod-1")?;
    let second = at.scene.kubelets_target("pod-2")?;
    at.publish(&first).await?;
    remove_pod(first.ancestors().nth(4).context("no pod")?)?;
    at.publish(&second).await?;
    assert_eq!(at.entries(), 1);
    at.write(Runtime::Rs, &second, "file", "works").await?;
    at.end_at(&second).await
}
