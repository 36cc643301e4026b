//! A second mount of a volume, as Kata's runtime-rs makes it: by a device of its own upon the same
//! bytes. csi-edge is away. Needs root and loop devices: `make direct`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use anyhow::{Context, ensure};
use guest::contract::Runtime;
use guest::scene::{Scene, mount};
use harness::wait::until;
use proto::csi::volume_capability::access_mode::Mode;
use proto::host::publish::{Existing, publish};
use serde_json::Value;
use tonic::Code;

use super::handover::Handover;
use super::refusal::assert_refused;
use super::runtime::{command, shim};

/// A loop device upon a file, while it lives.
struct Loop(PathBuf);

impl Loop {
    fn upon(file: &Path) -> anyhow::Result<Self> {
        let made = Command::new("losetup").args(["-f", "--show"]).arg(file).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Ok(Self(String::from_utf8(made.stdout)?.trim().into()))
    }

    /// Mounts it in a mount namespace that ends at once.
    fn mount(&self, at: &Path) -> anyhow::Result<Output> {
        let command = "mount \"$0\" \"$1\" && echo second > \"$1/hello\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private", "sh", "-c", command]);
        Ok(unshare.arg(&self.0).arg(at).output()?)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// The file of the loop device in the only entry.
pub(super) fn backing_file(at: &Handover) -> anyhow::Result<PathBuf> {
    let entry = std::fs::read_dir(at.scene.root())?.next().context("no entry")??.path();
    let info: Value = serde_json::from_slice(&std::fs::read(entry.join("mountInfo.json"))?)?;
    let device = Path::new(info["device"].as_str().context("no device")?).file_name();
    let sys = Path::new("/sys/block").join(device.context("no name")?).join("loop/backing_file");
    Ok(std::fs::read_to_string(sys)?.trim().into())
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn the_kernel_of_a_second_guest_refuses_ext4_that_the_first_one_has_mounted()
-> anyhow::Result<()> {
    let (mut at, target) = Handover::published().await?;
    let mut first = at.guest(Runtime::Rs, &target).await?;
    first.tell("write hello from the first guest").await?;
    at.scene.kill_edge().await?;
    let second = Loop::upon(&backing_file(&at)?)?;
    let place = at.scene.stand.dir().join("second");
    std::fs::create_dir(&place)?;
    let refused = second.mount(&place)?;
    let why = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && why.contains("busy"), "it was mounted twice: {why}");
    drop(second);
    assert_eq!(first.tell("read hello").await?, "from the first guest");
    first.stop().await?;
    at.scene.start_edge().await?;
    at.end_at(&target).await
}

/// Installs a runtime at the root that csi-edge looks at, and no other one.
fn install(scene: &Scene, runtime: &str) -> anyhow::Result<()> {
    let kata = scene.stand.dir().join("host/etc/kata-containers");
    if kata.exists() {
        std::fs::remove_dir_all(&kata)?;
    }
    let directory = kata.join(runtime);
    std::fs::create_dir_all(&directory)?;
    let text = b"[hypervisor.qemu]\ndisable_block_device_use = false\n";
    Ok(publish(&directory.join("configuration.toml"), text, 0o600, Existing::Keep)?)
}

/// A volume that is staged at a node whose installed runtimes a test chooses.
async fn staged(fs_type: &str) -> anyhow::Result<Handover> {
    let mut at = Handover::staged("node", fs_type).await?;
    let text = format!("[direct]\nruntime_root = \"{}\"\n", at.scene.stand.at("host"));
    publish(at.scene.stand.at("edge.toml").as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    at.restart_edge().await?;
    Ok(at)
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn an_xfs_is_not_handed_over_where_runtime_rs_may_be_the_pods() -> anyhow::Result<()> {
    let [go, rs] = ["", "runtime-rs"];
    let words = ["runtime-rs is installed here", "Use ext4"];
    let mut at = staged("xfs").await?;
    let target = at.scene.target("pod-1")?;
    install(&at.scene, rs)?;
    assert_refused(at.publish(&target).await, Code::FailedPrecondition, &words);
    assert_eq!(at.entries(), 0);
    install(&at.scene, go)?;
    at.publish(&target).await?;
    at.write(Runtime::Go, &target, "file", "whole").await?;
    // A pod that has its volume already goes on.
    install(&at.scene, rs)?;
    at.publish(&target).await?;
    assert_eq!(at.read(Runtime::Go, &target, "file").await?, "whole");
    at.unpublish(&target).await?;
    let next = at.scene.target("pod-2")?;
    assert_refused(at.publish(&next).await, Code::FailedPrecondition, &words);
    // Only its device says that it is xfs.
    at.volume.capability = mount(Mode::SingleNodeSingleWriter, "", "1000");
    assert_refused(at.publish(&next).await, Code::Unavailable, &words);
    assert_eq!(at.entries(), 0);
    at.end_at(&next).await
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn an_ext4_is_handed_over_whatever_runtime_is_installed() -> anyhow::Result<()> {
    let at = staged("ext4").await?;
    install(&at.scene, "runtime-rs")?;
    let target = at.scene.target("pod-1")?;
    at.publish(&target).await?;
    at.write(Runtime::Rs, &target, "file", "protected").await?;
    at.end_at(&target).await
}

/// A process that has the volume's device open, as a VM has, while it lives.
struct Machine(Child);

impl Machine {
    fn with(device: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("sleep");
        Ok(Self(command.arg("infinity").stdin(File::open(device)?).spawn()?))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "needs root and loop devices"]
async fn a_vm_that_outlives_its_shim_keeps_its_device_from_the_next_one() -> anyhow::Result<()> {
    let (mut at, target) = Handover::published().await?;
    at.write(Runtime::Rs, &target, "file", "whole").await?;
    let shim = shim(&at.scene, &target, false)?;
    let (device, _) = at.scene.devices()?.pop().context("no loop device")?;
    let machine = Machine::with(device.as_ref())?;
    let listed = async |scene: &Scene, standing: &str| {
        let shown = command(scene, &["list"]).await?;
        ensure!(shown[0]["standing"] == standing, "{shown}");
        anyhow::Ok(shown[0]["damage"].as_str().unwrap_or_default().to_owned())
    };
    listed(&at.scene, "published").await?;
    drop(shim);
    let why = until("it is withheld", || listed(&at.scene, "withheld")).await?;
    let id = machine.0.id();
    let named = why.contains(&format!("process {id} (sleep)")) && why.contains("sandbox-1");
    ensure!(named && why.contains(&format!("`kill {id}`")), "{why}");
    // A new sandbox of the same pod, after the kubelet's next call and after a restart.
    for _ in 0..2 {
        at.publish(&target).await?;
        assert_eq!(listed(&at.scene, "withheld").await?, why);
        ensure!(
            at.guest(Runtime::Rs, &target).await?.found.starts_with("fails"),
            "it has a device"
        );
        at.restart_edge().await?;
    }
    drop(machine);
    until("it is handed over again", || listed(&at.scene, "published")).await?;
    assert_eq!(at.read(Runtime::Rs, &target, "file").await?, "whole");
    at.end_at(&target).await
}
