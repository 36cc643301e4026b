//! A runtime that does not take a direct volume as a device, such as a stock Go runtime of Kata.
//! Its pod cannot write to the node's disk, and the operator and the pod are told. `make direct`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use guest::contract::Runtime;
use guest::scene::Scene;
use harness::wait::until;
use proto::host::publish::{Existing, publish};
use rustix::mount::{UnmountFlags, unmount};
use tonic::Code;

use super::handover::Handover;
use super::refusal::assert_refused;
use super::runtime::command;
use super::volumes::has_the_notice_alone;

/// The files of a stock Go runtime, below the root of the runtimes' files.
const CONFIGURATION: &str = "host/etc/kata-containers/configuration.toml";

fn configure(scene: &Scene, disabled: bool) -> anyhow::Result<()> {
    let path = scene.stand.dir().join(CONFIGURATION);
    std::fs::create_dir_all(path.parent().context("no directory")?)?;
    let text = format!("[hypervisor.qemu]\ndisable_block_device_use = {disabled}\n");
    Ok(publish(&path, text.as_bytes(), 0o600, Existing::Replace)?)
}

/// Waits until csi-cloud has heard how many volumes of the node were not taken.
async fn reported(scene: &Scene, expected: u64) -> anyhow::Result<()> {
    until("csi-cloud hears of what was not taken", || async {
        let node = scene.node_view().await?;
        ensure!(node["not_taken"] == expected, "{node}");
        Ok(())
    })
    .await
}

async fn standing(scene: &Scene) -> anyhow::Result<String> {
    let listed = command(scene, &["list"]).await?;
    Ok(listed[0]["standing"].as_str().context("no volume")?.to_owned())
}

/// The result of `csi-edge direct check` on the configuration, and what it said.
async fn checked(scene: &Scene) -> anyhow::Result<(bool, String)> {
    let mut command = scene.stand.program("csi-edge")?;
    command.args(["direct", "check", "--root"]).arg(scene.stand.dir().join("host"));
    let output = command.output().await?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_runtime_that_shares_the_directory_writes_nothing_to_the_node() -> anyhow::Result<()> {
    let (at, target) = Handover::published().await?;
    configure(&at.scene, true)?;
    assert_eq!(standing(&at.scene).await?, "published");
    // A stock Go runtime shares the directory, as a runtime without a VM does.
    let mut pod = at.guest(Runtime::Runc, &target).await?;
    assert_eq!(pod.found, "shared");
    let refused = pod.tell("write lost x").await.unwrap_err().to_string();
    assert!(refused.contains("Read-only file system"), "{refused}");
    let notice = pod.tell("read EDGE-CSI-THIS-IS-NOT-YOUR-VOLUME").await?;
    assert!(notice.contains("not your volume"), "{notice}");
    assert_eq!(standing(&at.scene).await?, "not taken");
    let stats = at.scene.stats(&at.volume, &target).await.unwrap_err();
    assert!(stats.message().contains("did not take"), "{stats}");
    // A sandbox that somebody else recorded is no evidence that the device was taken.
    let entry = std::fs::read_dir(at.scene.root())?.next().context("no entry")??.path();
    std::fs::File::create(entry.join("sandbox-1"))?;
    assert_eq!(standing(&at.scene).await?, "not taken");
    let (good, said) = checked(&at.scene).await?;
    assert!(!good && said.contains("set it to false"), "{said}");
    reported(&at.scene, 1).await?;
    pod.stop().await?;
    at.unpublish(&target).await?;
    ensure!(!target.exists(), "the target is left");

    configure(&at.scene, false)?;
    assert!(checked(&at.scene).await?.0);
    let second = at.scene.target("pod-2")?;
    at.publish(&second).await?;
    at.write(Runtime::Go, &second, "file", "works").await?;
    assert_eq!(at.read(Runtime::Rs, &second, "file").await?, "works");
    assert_eq!(standing(&at.scene).await?, "published");
    reported(&at.scene, 0).await?;
    at.end_at(&second).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_node_that_fails_its_check_is_given_nothing_where_that_is_required() -> anyhow::Result<()>
{
    let mut at = Handover::staged("node", "ext4").await?;
    let root = at.scene.stand.at("host");
    let text = format!("[direct]\nrequire_runtime_check = true\nruntime_root = \"{root}\"\n");
    publish(at.scene.stand.at("edge.toml").as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    at.restart_edge().await?;
    let target = at.scene.target("pod")?;
    let refused = at.publish(&target).await;
    assert_refused(refused, Code::FailedPrecondition, &["the host's files cannot be read"]);
    std::fs::create_dir(&root)?;
    let refused = at.publish(&target).await;
    assert_refused(refused, Code::FailedPrecondition, &["no configuration"]);
    configure(&at.scene, true)?;
    let words = ["direct check", "disable_block_device_use", "configuration.toml"];
    assert_refused(at.publish(&target).await, Code::FailedPrecondition, &words);
    assert_eq!(at.entries(), 0);
    configure(&at.scene, false)?;
    at.publish(&target).await?;
    at.end_at(&target).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_cover_is_there_once_and_again_and_goes_however_often_it_is_there() -> anyhow::Result<()>
{
    let (mut at, target) = Handover::published().await?;
    // The entry is found by its name, whatever is mounted there.
    for runtime in [Runtime::Go, Runtime::Rs] {
        let guest = at.guest(runtime, &target).await?;
        assert_eq!(guest.found, "direct");
        guest.stop().await?;
    }
    at.publish(&target).await?;
    unmount(target.canonicalize()?, UnmountFlags::empty())?;
    ensure!(std::fs::read_dir(&target)?.next().is_none(), "it was covered twice");
    at.publish(&target).await?;
    has_the_notice_alone(&target)?;
    // As after a crash or a reboot.
    unmount(target.canonicalize()?, UnmountFlags::empty())?;
    at.restart_edge().await?;
    has_the_notice_alone(&target)?;
    // As a mount that was made twice.
    let source = target.canonicalize()?;
    rustix::mount::mount_bind(&source, &source)?;
    at.unpublish(&target).await?;
    ensure!(!target.exists(), "the target is left");
    at.end().await
}

/// The data that pods left, in the place to which it was moved.
fn left(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let left = std::fs::read_dir(directory.join("left-by-pods"))?;
    Ok(left.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?)
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn what_a_container_without_a_vm_wrote_is_not_thrown_away() -> anyhow::Result<()> {
    let (at, target) = Handover::published().await?;
    // As an older csi-edge has published it.
    unmount(target.canonicalize()?, UnmountFlags::empty())?;
    at.write(Runtime::Runc, &target, "lost", "on the host").await?;
    assert_eq!(std::fs::read(target.join("lost"))?, b"on the host");
    at.unpublish(&target).await?;
    assert_eq!((at.entries(), target.exists()), (0, false));
    let kept = left(&at.scene.state())?;
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::read(kept[0].join("lost"))?, b"on the host");
    // The next pod has the volume, and nothing of that.
    let second = at.scene.target("pod-2")?;
    at.publish(&second).await?;
    let missing = at.read(Runtime::Go, &second, "lost").await.unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
    at.end_at(&second).await
}
