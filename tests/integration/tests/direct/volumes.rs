//! Direct volumes with the real programs, a real driver of block volumes, and guests in mount namespaces of their own.
//! Root and loop devices: `make direct`, or `cargo test -p tests --test direct -- --ignored`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use guest::contract::Runtime;
use guest::scene::{Scene, Volume, mount};
use guest::stand_in::Guest;
use harness::wait::until;
use proto::csi;
use proto::csi::volume_capability::AccessType;
use proto::csi::volume_capability::access_mode::Mode;
use proto::publish::{Existing, publish};
use tonic::{Code, Status};

const CLASS: [(&str, &str); 1] = [("edge-csi.io/direct", "kata")];

/// A VM that has a device is found in `/proc`, which must be the host's.
#[test]
fn the_daemon_set_with_direct_volumes_sees_all_processes_of_its_host() {
    let patch = include_str!("../../../../deploy/kustomize/components/direct/edge.yaml");
    let (_, after) = patch.split_once("path: /spec/template/spec/hostPID\n").unwrap();
    let value = after.lines().find(|line| !line.trim_start().starts_with('#'));
    assert_eq!(value, Some("  value: true"));
}

/// A volume that is staged.
async fn staged(scene: &Scene, name: &str, fs_type: &str) -> anyhow::Result<Volume> {
    let capability = mount(Mode::SingleNodeSingleWriter, fs_type, "1000");
    let volume =
        until("a volume", || async { Ok(scene.create(name, &CLASS, capability.clone()).await?) })
            .await?;
    scene.stage(&volume).await?;
    Ok(volume)
}

async fn guest(scene: &Scene, runtime: Runtime, target: &Path) -> anyhow::Result<Guest> {
    Guest::start(&scene.stand, runtime, &scene.root(), &target.canonicalize()?).await
}

fn code(outcome: anyhow::Result<()>) -> (Code, String) {
    match outcome.map_err(|error| error.downcast::<Status>()) {
        Ok(()) => (Code::Ok, String::new()),
        Err(Ok(status)) => (status.code(), status.message().to_owned()),
        Err(Err(other)) => (Code::Unknown, other.to_string()),
    }
}

/// The entries that runtimes see.
fn entries(scene: &Scene) -> usize {
    std::fs::read_dir(scene.root()).map_or(0, Iterator::count)
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output()?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The whole life of a volume with two pods, one after the other.
async fn life(scope: &str, fs_type: &str) -> anyhow::Result<()> {
    let scene = Scene::new(scope).await?;
    let volume = staged(&scene, "data", fs_type).await?;
    assert_eq!(volume.context["edge-csi.io/direct"], "kata");
    let first = scene.target("pod-1")?;
    scene.publish(&volume, &first).await?;
    scene.publish(&volume, &first).await?;
    let entry = std::fs::read_dir(scene.root())?.next().context("no entry")??.path();
    let text = std::fs::read_to_string(entry.join("mountInfo.json"))?;
    assert!(text.starts_with("{\"volume-type\":\"directvol\",\"device\":\"/dev/loop"), "{text}");
    assert!(
        text.contains("\"fsGroup\":\"1000\"") && text.ends_with("\"options\":[\"noatime\"]}"),
        "{text}"
    );
    assert_eq!(std::fs::read_dir(&first)?.count(), 0);
    assert_ne!(first, first.canonicalize()?, "the test's own symlink");

    let mut vm = guest(&scene, Runtime::Go, &first).await?;
    assert_eq!(vm.found, "direct");
    vm.tell("write hello from the first guest").await?;
    assert_eq!(vm.tell("group").await?, "1000");
    scene.host_has_mounted_none()?;
    // As a kubelet that was restarted asks again.
    scene.publish(&volume, &first).await?;
    vm.stop().await?;
    // What is no VM gets the empty directory of the host, and nothing of the volume.
    let mut runc = guest(&scene, Runtime::Runc, &first).await?;
    assert_eq!(runc.found, "shared");
    assert!(runc.tell("read hello").await.is_err());
    runc.stop().await?;
    scene.unpublish(&volume, &first).await?;
    scene.unpublish(&volume, &first).await?;
    assert_eq!((entries(&scene), first.exists()), (0, false));

    let second = scene.target("pod-2")?;
    scene.publish(&volume, &second).await?;
    let mut vm = guest(&scene, Runtime::Rs, &second).await?;
    assert_eq!(vm.tell("read hello").await?, "from the first guest");
    vm.stop().await?;
    scene.unpublish(&volume, &second).await?;
    scene.delete(&volume).await?;
    scene.stop().await
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
        println!("tier skipped: xfs, direct: mkfs.xfs is not installed; it is in xfsprogs");
        ensure!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "xfsprogs is missing");
        return Ok(());
    }
    life("shared", "xfs").await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn the_controllers_calls_are_a_block_volumes_to_the_driver() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "").await?;
    let request = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.id.clone(),
        volume_context: volume.context.clone(),
        volume_capabilities: vec![volume.capability.clone()],
        ..Default::default()
    };
    let mut controller = scene.controller().await?;
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
    assert!(
        controller.controller_expand_volume(request).await?.into_inner().node_expansion_required
    );
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_volume_that_was_made_by_hand_is_direct_by_its_attributes() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let mut block = mount(Mode::SingleNodeSingleWriter, "", "");
    block.access_type = Some(AccessType::Block(csi::volume_capability::BlockVolume {}));
    let mut volume =
        until("a volume", || async { Ok(scene.create("by-hand", &[], block.clone()).await?) })
            .await?;
    // The PersistentVolume, as its author writes it.
    volume.capability = mount(Mode::SingleNodeSingleWriter, "ext4", "");
    volume.context.extend(CLASS.map(|(key, value)| (key.to_owned(), value.to_owned())));
    scene.stage(&volume).await?;
    let target = scene.target("pod")?;
    scene.publish(&volume, &target).await?;
    let mut vm = guest(&scene, Runtime::Rs, &target).await?;
    vm.tell("write file works").await?;
    vm.stop().await?;
    // Without the attributes it would be mounted on the host besides.
    let mut plain = volume.clone();
    plain.context.clear();
    let (refused, why) = code(scene.publish(&plain, &target).await);
    assert!(
        refused == Code::FailedPrecondition && why.contains("unpublish it first"),
        "{refused:?} {why}"
    );
    scene.unpublish(&volume, &target).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn ordinary_volumes_of_the_same_driver_are_mounted_as_ever() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let capability = mount(Mode::SingleNodeMultiWriter, "", "");
    let volume = until("a volume", || async {
        Ok(scene.create("ordinary", &[], capability.clone()).await?)
    })
    .await?;
    scene.stage(&volume).await?;
    let target = scene.target("pod")?;
    scene.publish(&volume, &target).await?;
    publish(&target.join("file"), b"on the host", 0o600, Existing::Keep)?;
    assert_eq!(entries(&scene), 0);
    scene.unpublish(&volume, &target).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_cannot_be_had_directly_is_refused_with_the_reason() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let once = mount(Mode::SingleNodeMultiWriter, "", "");
    let known = until("a volume", || async { Ok(scene.create("plain", &[], once.clone()).await?) });
    known.await?;
    let refused = |class: Vec<(&'static str, &'static str)>, capability| {
        let scene = &scene;
        async move { scene.create("refused", &class, capability).await.err().unwrap() }
    };
    let rwo = refused(CLASS.to_vec(), once.clone()).await;
    assert_eq!(rwo.code(), Code::InvalidArgument);
    assert!(
        rwo.message().contains("ReadWriteOncePod") && rwo.message().contains("direct-access"),
        "{rwo}"
    );
    let mode = || mount(Mode::SingleNodeSingleWriter, "", "");
    let unknown = refused(vec![("edge-csi.io/direct", "firecracker")], mode()).await;
    assert!(unknown.message().contains("it can be: kata"), "{unknown}");
    let btrfs = refused(CLASS.to_vec(), mount(Mode::SingleNodeSingleWriter, "btrfs", "")).await;
    assert!(btrfs.message().contains("ext4 and xfs"), "{btrfs}");
    // The class may say that ReadWriteOnce is to be had; a second pod is refused when it comes.
    let class = [CLASS[0], ("edge-csi.io/direct-access", "ReadWriteOnce")];
    let volume = scene.create("once", &class, once).await?;
    scene.stage(&volume).await?;
    let (first, second) = (scene.target("pod-1")?, scene.target("pod-2")?);
    scene.publish(&volume, &first).await?;
    let (code, why) = code(scene.publish(&volume, &second).await);
    assert!(code == Code::FailedPrecondition && why.contains("pod-1"), "{code:?} {why}");
    assert_eq!(entries(&scene), 1);
    // What it is published with cannot change under the guest.
    let mut other = volume.clone();
    other.capability = mount(Mode::SingleNodeMultiWriter, "", "7");
    let differs = scene.publish(&other, &first).await.err().context("it was published")?;
    assert_eq!(differs.downcast::<Status>()?.code(), Code::AlreadyExists);
    scene.unpublish(&volume, &first).await?;
    scene.publish(&volume, &second).await?;
    scene.unpublish(&volume, &second).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}

/// csi-edge is killed when a state is reached, and started again; what was written before is there afterwards.
async fn killed_when(reached: impl Fn(&Scene) -> bool, written: bool) -> anyhow::Result<()> {
    let mut scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "ext4").await?;
    let target = scene.target("pod")?;
    if written {
        scene.publish(&volume, &target).await?;
        let mut vm = guest(&scene, Runtime::Go, &target).await?;
        vm.tell("write kept through it all").await?;
        vm.kill().await?;
        scene.unpublish(&volume, &target).await?;
    }
    {
        let publishing = scene.publish(&volume, &target);
        let reached = until("the state", || async {
            ensure!(reached(&scene), "not reached");
            Ok(())
        });
        tokio::pin!(publishing);
        // It is killed with the call on it, or just after it.
        tokio::select! { biased; done = reached => done?, _ = &mut publishing => {} }
    }
    scene.kill_edge().await?;
    scene.start_edge().await?;
    until("it is published", || async { scene.publish(&volume, &target).await }).await?;
    for runtime in [Runtime::Go, Runtime::Rs] {
        let mut vm = guest(&scene, runtime, &target).await?;
        assert_eq!(vm.found, "direct");
        if written {
            assert_eq!(vm.tell("read kept").await?, "through it all");
        }
        vm.tell("write more works").await?;
        vm.stop().await?;
    }
    assert_eq!(entries(&scene), 1);
    scene.host_has_mounted_none()?;
    scene.unpublish(&volume, &target).await?;
    scene.delete(&volume).await?;
    let left = |name: &str| {
        scene.state().join("published").read_dir().map(|files| {
            files
                .flatten()
                .map(|file| file.file_name())
                .filter(|file| file.to_string_lossy().ends_with(name))
                .collect::<Vec<_>>()
        })
    };
    assert!(left("")?.is_empty(), "{:?}", left("")?);
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn killed_while_it_is_taken_back_it_goes_to_the_next_pod_whole() -> anyhow::Result<()> {
    let (first, second) = ("pod-1", "pod-2");
    for reached in [
        |scene: &Scene| entries(scene) == 0,
        |scene: &Scene| {
            !scene.state().join("devices").read_dir().is_ok_and(|mut files| files.next().is_some())
        },
        |scene: &Scene| !scene.target("pod-1").is_ok_and(|target| target.exists()),
        |scene: &Scene| !says(scene, "published", "volume_id"),
    ] {
        let mut scene = Scene::new("node").await?;
        let volume = staged(&scene, "data", "ext4").await?;
        let (first, second) = (scene.target(first)?, scene.target(second)?);
        scene.publish(&volume, &first).await?;
        let mut vm = guest(&scene, Runtime::Go, &first).await?;
        vm.tell("write kept through it all").await?;
        vm.stop().await?;
        {
            let unpublishing = scene.unpublish(&volume, &first);
            let reached = until("the state", || async {
                ensure!(reached(&scene), "not reached");
                Ok(())
            });
            tokio::pin!(unpublishing);
            tokio::select! { biased; done = reached => done?, _ = &mut unpublishing => {} }
        }
        scene.kill_edge().await?;
        scene.start_edge().await?;
        until("it is unpublished", || async { scene.unpublish(&volume, &first).await }).await?;
        assert_eq!((entries(&scene), first.exists()), (0, false));
        scene.publish(&volume, &second).await?;
        let mut vm = guest(&scene, Runtime::Rs, &second).await?;
        assert_eq!(vm.tell("read kept").await?, "through it all");
        vm.stop().await?;
        scene.unpublish(&volume, &second).await?;
        scene.delete(&volume).await?;
        scene.stop().await?;
    }
    Ok(())
}

/// Whether a file of csi-edge's state says this.
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
    let mut scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "ext4").await?;
    let target = scene.target("pod")?;
    scene.publish(&volume, &target).await?;
    scene.kill_edge().await?;
    std::fs::remove_dir_all(scene.root())?;
    scene.start_edge().await?;
    assert_eq!(entries(&scene), 1, "as it was before");
    // Others' entries are there to stay, whatever becomes of ours.
    let theirs = scene.root().join("L3RoZWlycw==");
    std::fs::create_dir(&theirs)?;
    publish(&theirs.join("mountInfo.json"), b"{}", 0o600, Existing::Keep)?;

    // The loop device gets another image while csi-edge is away, and keeps its number and name.
    let (device, image) = scene.devices().pop().context("no loop device")?;
    scene.kill_edge().await?;
    let other = scene.stand.at("other.img");
    File::create(&other)?.set_len(64 << 20)?;
    run("mkfs.ext4", &["-q", &other])?;
    run("losetup", &["-d", &device])?;
    run("losetup", &[&device, &other])?;
    scene.start_edge().await?;
    assert_eq!(entries(&scene), 1, "the runtime would have been given another volume");
    assert!(theirs.exists());
    run("losetup", &["-d", &device])?;
    run("losetup", &[&device, image.to_str().context("no text")?])?;
    scene.kill_edge().await?;
    scene.start_edge().await?;
    assert_eq!(entries(&scene), 2);
    scene.unpublish(&volume, &target).await?;
    assert!(theirs.exists());
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_device_that_somebody_uses_is_not_handed_over() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "ext4").await?;
    let target = scene.target("pod")?;
    scene.publish(&volume, &target).await?;
    scene.unpublish(&volume, &target).await?;
    let (device, _) = scene.devices().pop().context("no loop device")?;
    // A VM that has not ended yet.
    let held = File::open(&device)?;
    let (busy, why) = code(scene.publish(&volume, &target).await);
    assert!(busy == Code::Unavailable && why.contains("is open in process"), "{busy:?} {why}");
    drop(held);
    // Somebody mounted it, though nobody should.
    let at = scene.stand.at("mounted");
    std::fs::create_dir(&at)?;
    run("mount", &[&device, &at])?;
    let (busy, why) = code(scene.publish(&volume, &target).await);
    assert!(busy == Code::Unavailable && why.contains("in use on this host"), "{busy:?} {why}");
    assert_eq!(entries(&scene), 0);
    run("umount", &[&at])?;
    scene.publish(&volume, &target).await?;
    scene.unpublish(&volume, &target).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_a_vm_still_has_goes_to_nobody_else() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "ext4").await?;
    let (first, second) = (scene.kubelets_target("pod-1")?, scene.kubelets_target("pod-2")?);
    scene.publish(&volume, &first).await?;
    let (device, _) = scene.devices().pop().context("no loop device")?;
    let vm = File::open(&device)?;
    let (busy, why) = code(scene.unpublish(&volume, &first).await);
    assert!(busy == Code::Unavailable && why.contains("is open in process"), "{busy:?} {why}");
    assert_eq!(entries(&scene), 0, "no VM that starts now gets it");
    let (refused, why) = code(scene.delete(&volume).await);
    assert!(
        refused == Code::FailedPrecondition && why.contains("unpublish it first"),
        "{refused:?} {why}"
    );
    // Nor by way of a pod that is no more.
    std::fs::remove_dir_all(first.ancestors().nth(4).context("no pod")?)?;
    let (busy, why) = code(scene.publish(&volume, &second).await);
    assert!(busy == Code::Unavailable && why.contains("is open in process"), "{busy:?} {why}");
    drop(vm);
    scene.publish(&volume, &second).await?;
    scene.unpublish(&volume, &second).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_pod_that_went_while_its_kubelet_was_away_does_not_keep_the_volume() -> anyhow::Result<()>
{
    let scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "ext4").await?;
    let (first, second) = (scene.kubelets_target("pod-1")?, scene.kubelets_target("pod-2")?);
    scene.publish(&volume, &first).await?;
    std::fs::remove_dir_all(first.ancestors().nth(4).context("no pod")?)?;
    scene.publish(&volume, &second).await?;
    assert_eq!(entries(&scene), 1);
    let mut vm = guest(&scene, Runtime::Rs, &second).await?;
    vm.tell("write file works").await?;
    vm.stop().await?;
    scene.unpublish(&volume, &second).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_a_container_without_a_vm_wrote_is_not_thrown_away() -> anyhow::Result<()> {
    let scene = Scene::new("node").await?;
    let volume = staged(&scene, "data", "ext4").await?;
    let target = scene.target("pod")?;
    scene.publish(&volume, &target).await?;
    let mut runc = guest(&scene, Runtime::Runc, &target).await?;
    runc.tell("write lost on the host").await?;
    runc.stop().await?;
    let (refused, why) = code(scene.unpublish(&volume, &target).await);
    assert!(refused == Code::Unavailable, "{refused:?} {why}");
    assert_eq!(std::fs::read(target.join("lost"))?, b"on the host");
    assert_eq!(entries(&scene), 0);
    std::fs::remove_file(target.join("lost"))?;
    scene.unpublish(&volume, &target).await?;
    scene.delete(&volume).await?;
    scene.stop().await
}
