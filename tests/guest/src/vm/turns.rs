//! Tests with real guests: a volume's life with two guests, growth under the first one, guests that
//! are killed while they write, and second mounts of what a guest has.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use futures_util::future::LocalBoxFuture;
use proto::csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use super::conditions;
use super::machine::Ground;
use super::protocol::GuestRequest;
use super::sandbox::{AT, Sandbox};
use crate::contract::Runtime;
use crate::scene::{PodVolume, Scene, mount};
use harness::leftovers;
use harness::wait::until;

const MIB: u64 = 1 << 20;
/// The first size of a scene's volume, and the size to which it grows, in MiB.
const SIZES: [u64; 2] = [320, 640];
const TEXT: &str = "what the first guest wrote";

/// Something that is tried.
pub struct Turn {
    /// Its name.
    pub name: &'static str,
    run: fn(&Ground) -> LocalBoxFuture<'_, anyhow::Result<()>>,
}

/// All of them.
pub const TURNS: [Turn; 6] = [
    Turn { name: "life-ext4", run: |ground| Box::pin(life(ground, "node", "ext4")) },
    Turn { name: "life-xfs", run: |ground| Box::pin(life(ground, "shared", "xfs")) },
    Turn { name: "killed-ext4", run: |ground| Box::pin(killed(ground, "ext4")) },
    Turn { name: "killed-xfs", run: |ground| Box::pin(killed(ground, "xfs")) },
    Turn { name: "twice-ext4", run: |ground| Box::pin(twice(ground)) },
    Turn { name: "conditions", run: |ground| Box::pin(agents(ground)) },
];

impl Turn {
    /// Does it.
    ///
    /// # Errors
    /// It did not go as it must, or something was left behind.
    pub async fn run(&self, ground: &Ground) -> anyhow::Result<()> {
        (self.run)(ground).await
    }
}

/// A scene with a volume that is published to a pod.
///
/// # Errors
/// A call's.
pub async fn published(
    scope: &str,
    fs_type: &str,
    pod: &str,
) -> anyhow::Result<(Scene, PodVolume)> {
    let scene = Scene::new(scope).await?;
    let capability = mount(Mode::SingleNodeSingleWriter, fs_type, "");
    let class = [("edge-csi.io/direct", "kata")];
    let made = || async { Ok(scene.create("data", &class, capability.clone()).await?) };
    let volume = until("a volume", made).await?;
    scene.stage(&volume).await?;
    scene.publish(&volume, &scene.target(pod)?).await?;
    Ok((scene, volume))
}

/// Ends a scene, and looks for what it has left.
///
/// # Errors
/// Something was.
pub async fn ended(scene: Scene, volume: &PodVolume) -> anyhow::Result<()> {
    let dir = scene.stand.dir().to_owned();
    scene.delete(volume).await?;
    scene.stop().await?;
    let left = leftovers::left(&dir)?;
    ensure!(left.is_empty() && !dir.exists(), "left behind:\n{}", left.join("\n"));
    Ok(())
}

/// What Kata's agent would do with each kind of publication.
async fn agents(ground: &Ground) -> anyhow::Result<()> {
    let (scene, volume) = conditions::all(ground).await?;
    ended(scene, &volume).await
}

async fn life(ground: &Ground, scope: &str, fs_type: &str) -> anyhow::Result<()> {
    let (scene, volume) = published(scope, fs_type, "pod-1").await?;
    let first = scene.target("pod-1")?;
    let guest = Sandbox::start(&scene, ground, Runtime::Go, &first).await?;
    ensure!(guest.disk().await?.bytes == SIZES[0] * MIB, "the guest has {:?}", guest.disk().await?);
    let mounts: String =
        guest.ask(&GuestRequest::Read { path: "/proc/self/mounts".into() }).await?;
    let mounted = format!(" {AT} {fs_type} rw,noatime");
    ensure!(
        mounts.contains(&mounted),
        "not as it was published:{mounted}; the guest has:\n{mounts}"
    );
    guest.write("kept", TEXT, 1).await?;
    guest.write("large", &"a page of it ".repeat(315), 16 * 1024).await?;
    mounted_nowhere(&scene)?;
    // As a kubelet asks that was started again.
    scene.publish(&volume, &first).await?;
    let before = shown(&scene, &volume, &first, &guest).await?;
    ensure!(before.1 > 60 * MIB, "{} bytes of some 64 MiB are taken", before.1);

    // Growth in use: the driver grows the device, the machine tells the guest, and the guest grows
    // its file system.
    scene.grow(&volume, 640).await?;
    let grown = scene.grow_at_node(&volume, Some(&first), 640).await?;
    ensure!(grown == 640, "the node says {grown} MiB");
    ensure!(guest.disk().await?.bytes == SIZES[1] * MIB, "the guest has {:?}", guest.disk().await?);
    let after = shown(&scene, &volume, &first, &guest).await?;
    ensure!(after.0 > before.0 + 240 * MIB, "it had {before:?} and has {after:?}");
    ensure!(guest.read("kept").await? == TEXT, "what was written before it grew");
    // More than it had in all.
    guest.write("larger", &"b".repeat(4096), 80 * 1024).await?;
    mounted_nowhere(&scene)?;
    guest.stop().await?;
    let device = scene.devices()?.pop().context("no device")?.0;
    // The guest's data is on the volume's own device.
    run("grep", &["-qaF", "-m1", TEXT, &device])?;
    whole(fs_type, &device)?;
    scene.unpublish(&volume, &first).await?;

    let second = scene.target("pod-2")?;
    scene.publish(&volume, &second).await?;
    let guest = Sandbox::start(&scene, ground, Runtime::Rs, &second).await?;
    ensure!(guest.read("kept").await? == TEXT, "what the first guest wrote");
    let now = shown(&scene, &volume, &second, &guest).await?;
    ensure!(now.0 == after.0 && now.1 > 380 * MIB, "it had {after:?} and has {now:?}");
    guest.stop().await?;
    scene.unpublish(&volume, &second).await?;
    ended(scene, &volume).await
}

async fn killed(ground: &Ground, fs_type: &str) -> anyhow::Result<()> {
    let (scene, volume) = published("node", fs_type, "pod-1").await?;
    let first = scene.target("pod-1")?;
    let guest = Sandbox::start(&scene, ground, Runtime::Go, &first).await?;
    guest.write("kept", TEXT, 1).await?;
    guest.churn().await?;
    guest.kill().await?;
    // The pod's sandbox is made again without any message: the guest's own kernel repairs the file
    // system.
    let guest = Sandbox::start(&scene, ground, Runtime::Rs, &first).await?;
    ensure!(guest.read("kept").await? == TEXT, "what the first guest wrote");
    guest.write("more", TEXT, 1).await?;
    shown(&scene, &volume, &first, &guest).await?;
    guest.churn().await?;

    // The kubelet thinks that it is gone, but it is not.
    let taken =
        scene.unpublish(&volume, &first).await.err().context("a volume was taken from a guest")?;
    let code = taken.downcast::<Status>()?.code();
    ensure!(code == Code::Unavailable, "a volume that a guest has: {code:?}");
    guest.kill().await?;
    let device = scene.devices()?.pop().context("no device")?.0;
    ensure!(fs_type != "ext4" || recovers(&device)?, "nothing was in the journal of {device}");
    scene.unpublish(&volume, &first).await?;

    let second = scene.target("pod-2")?;
    scene.publish(&volume, &second).await?;
    let device = scene.devices()?.pop().context("no device")?.0;
    ensure!(fs_type != "ext4" || !recovers(&device)?, "{device} was handed over with its journal");
    let guest = Sandbox::start(&scene, ground, Runtime::Go, &second).await?;
    for name in ["kept", "more"] {
        ensure!(
            guest.read(name).await? == TEXT,
            "{name}: what was on the disk when the guests were killed"
        );
    }
    mounted_nowhere(&scene)?;
    guest.stop().await?;
    whole(fs_type, &device)?;
    scene.unpublish(&volume, &second).await?;
    ended(scene, &volume).await
}

/// A second disk in one guest, and a second guest, as Kata's runtime-rs makes them without a word
/// to csi-edge. The guests' kernels refuse both.
async fn twice(ground: &Ground) -> anyhow::Result<()> {
    let (scene, volume) = published("node", "ext4", "pod-1").await?;
    let first = scene.target("pod-1")?;
    let guest = Sandbox::start(&scene, ground, Runtime::Rs, &first).await?;
    guest.write("kept", TEXT, 1).await?;
    guest.churn().await?;
    refused(guest.attach_again().await)?;
    let second = Sandbox::start(&scene, ground, Runtime::Rs, &first).await;
    refused(second.map(drop))?;
    ensure!(guest.read("kept").await? == TEXT, "what the guest wrote");
    guest.write("more", TEXT, 1).await?;
    // Both machines had the device open for longer than a moment.
    let is_withheld = || async {
        let entries: Vec<_> = std::fs::read_dir(scene.root())?.collect::<std::io::Result<_>>()?;
        let text = std::fs::read_to_string(entries[0].path().join("mountInfo.json"))?;
        ensure!(text.contains("have its device open at once"), "not withheld: {text}");
        Ok(())
    };
    until("the volume is withheld", is_withheld).await?;
    guest.kill().await?;
    scene.unpublish(&volume, &first).await?;

    let next = scene.target("pod-2")?;
    scene.publish(&volume, &next).await?;
    let device = scene.devices()?.pop().context("no device")?.0;
    whole("ext4", &device)?;
    let guest = Sandbox::start(&scene, ground, Runtime::Rs, &next).await?;
    for name in ["kept", "more"] {
        ensure!(guest.read(name).await? == TEXT, "{name}: what the first guest wrote");
    }
    guest.stop().await?;
    scene.unpublish(&volume, &next).await?;
    ended(scene, &volume).await
}

/// Fails unless a guest's kernel has refused a mount because the file system is mounted already.
fn refused(mounted: anyhow::Result<()>) -> anyhow::Result<()> {
    let why = mounted.err().context("one file system was mounted twice")?;
    let why = format!("{why:#}");
    ensure!(why.contains("busy"), "it failed otherwise: {why}");
    Ok(())
}

/// The kubelet's numbers for the volume's bytes, total and used. They must be the guest's.
async fn shown(
    scene: &Scene,
    volume: &PodVolume,
    target: &Path,
    guest: &Sandbox,
) -> anyhow::Result<(u64, u64)> {
    let (total, used) = scene.stats(volume, target).await?;
    let total = u64::try_from(total)?;
    let used = u64::try_from(used)?;
    let said = guest.usage().await?;
    // A file system may settle in between.
    let near = (said.total - said.free).abs_diff(used) < 4 * MIB;
    ensure!(
        said.total == total && near,
        "the kubelet is told {used} of {total}, the guest has {said:?}"
    );
    Ok((total, used))
}

/// Fails if a process of this machine has mounted a file system of the driver's devices, in any
/// namespace.
fn mounted_nowhere(scene: &Scene) -> anyhow::Result<()> {
    scene.host_has_mounted_none()?;
    for (device, _) in scene.devices()? {
        let number = std::fs::metadata(&device)?.rdev();
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let mut read = 0;
        for process in std::fs::read_dir("/proc")?.filter_map(Result::ok) {
            // A process that has ended has none.
            let table =
                std::fs::read_to_string(process.path().join("mountinfo")).unwrap_or_default();
            read += usize::from(!table.is_empty());
            let there = table.lines().find(|line| line.split(' ').nth(2) == Some(&number));
            ensure!(
                there.is_none(),
                "{device} is mounted in {}: {there:?}",
                process.path().display()
            );
        }
        ensure!(read > 0, "no process has a mount table");
    }
    Ok(())
}

/// Whether ext4's journal has blocks to replay.
fn recovers(device: &str) -> anyhow::Result<bool> {
    Ok(run("dumpe2fs", &["-h", device])?.contains("needs_recovery"))
}

/// Fails if the file system has faults; it is not written to.
fn whole(fs_type: &str, device: &str) -> anyhow::Result<()> {
    match fs_type {
        "ext4" => run("e2fsck", &["-fn", device]).map(drop),
        _ => run("xfs_repair", &["-n", device]).map(drop),
    }
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {error}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
