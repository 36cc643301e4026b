//! What Kata's agent would do with each kind of publication, in a guest's own kernel. The kinds are
//! read-only with and without fsGroup, each mount option that csi-edge lets pass, and mixed
//! `readOnly`.
//!
//! One guest for all. It mounts what the entries say, and what they would say by mistake.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use proto::csi;
use proto::csi::direct::{FileSystem, options};
use proto::csi::volume_capability::AccessType;
use proto::csi::volume_capability::access_mode::Mode;
use serde_json::Value;
use tonic::{Code, Status};

use super::machine::{Ground, Machine};
use super::protocol::{GuestRequest, Owner};
use crate::agent::Group;
use crate::contract::{Found, Info, OciMount, Runtime, detect};
use crate::scene::{PodVolume, Scene, mount};
use harness::wait::until;

const AT: &str = "/run/volume";
/// Where a second container of a pod would have it.
const BESIDE: &str = "/run/beside";
/// Only a file system that mkfs has aligned takes these.
const ALIGNED: [&str; 2] = ["sunit=1", "swidth=1"];
const GROUP: &str = "1000";
const TEXT: &str = "what the first pod wrote";

/// What is done with one file system in the guest.
struct Turn<'a> {
    scene: &'a Scene,
    machine: Machine,
    file_system: FileSystem,
    volume: PodVolume,
}

/// Runs all of it; the scene with its last volume, which is left to end.
pub(super) async fn all(ground: &Ground) -> anyhow::Result<(Scene, PodVolume)> {
    let scene = Scene::new("node").await?;
    let mut machine = Machine::start(ground, scene.stand.dir(), &[]).await?;
    let mut last = None;
    for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
        let name = file_system.as_str();
        let class = [("edge-csi.io/direct", "kata")];
        let asked = capability(file_system, &[], GROUP);
        let made = || async { Ok(scene.create(name, &class, asked.clone()).await?) };
        let volume = until("a volume", made).await?;
        scene.stage(&volume).await?;
        let mut turn = Turn { scene: &scene, machine, file_system, volume };
        turn.run().await.with_context(|| name)?;
        machine = turn.machine;
        if let Some(before) = last.replace(turn.volume) {
            scene.delete(&before).await?;
        }
    }
    machine.stop().await?;
    Ok((scene, last.context("no volume")?))
}

fn capability(file_system: FileSystem, flags: &[&str], group: &str) -> csi::VolumeCapability {
    let mut capability = mount(Mode::SingleNodeSingleWriter, file_system.as_str(), group);
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    capability
}

impl Turn<'_> {
    async fn run(&mut self) -> anyhow::Result<()> {
        self.refused_options().await?;
        self.written_by_its_group().await?;
        for group in [GROUP, ""] {
            self.read_only(group).await.with_context(|| format!("read-only, fsGroup {group:?}"))?;
        }
        Ok(())
    }

    /// Options that would mount something else get no further than the request.
    async fn refused_options(&mut self) -> anyhow::Result<()> {
        let name = self.file_system.as_str();
        let class = [("edge-csi.io/direct", "kata")];
        let target = self.scene.target(&format!("{name}-refused"))?;
        ensure!(options::refused().next().is_some(), "csi-edge refuses no option by its name");
        for option in options::refused().chain(["nosuch"]) {
            let capability = capability(self.file_system, &[option], "");
            let made = self.scene.create("refused", &class, capability.clone()).await;
            is_invalid(made.map(drop), option)?;
            self.volume.capability = capability;
            let published = self.scene.publish(&self.volume, &target).await;
            is_invalid(published.map_err(|error| error.downcast().unwrap_or_else(other)), option)?;
        }
        let entries = std::fs::read_dir(self.scene.root());
        ensure!(entries.map_or(0, Iterator::count) == 0, "a runtime was told of a refused option");
        Ok(())
    }

    /// A volume that its group may write; each option; and a second container with `ro`.
    async fn written_by_its_group(&mut self) -> anyhow::Result<()> {
        let (target, info, device) = self.handed_over("first", &[], GROUP).await?;
        let group = Group::of(&info.metadata)?;
        ensure!(group.is_some_and(|group| group.id == 1000), "the entry has {:?}", info.metadata);
        self.mount(&device, &info.options, group, AT).await?;
        let file = PathBuf::from(AT).join("file");
        let write = GuestRequest::Write { path: file, text: TEXT.into(), times: 1 };
        let _: Value = self.machine.ask(&write).await?;
        let owner: Owner = self.machine.ask(&GuestRequest::Owner { path: AT.into() }).await?;
        ensure!(
            owner.group == 1000 && owner.mode & 0o2770 == 0o2770,
            "the agent has left the root as {owner:?}"
        );
        // runtime-rs mounts the device a second time, with `ro`, for a container with readOnly.
        let second = self.mount(&device, &["ro".to_owned()], None, BESIDE).await;
        refused(second, "busy").context("mixed readOnly on runtime-rs")?;
        self.unmount(AT).await?;
        self.each_option(&device).await?;
        self.taken_back(&target).await
    }

    /// Each option that csi-edge lets pass, alone or with what it needs.
    async fn each_option(&mut self, device: &str) -> anyhow::Result<()> {
        let mut failed = Vec::new();
        let examples = options::examples(self.file_system);
        ensure!(!examples.is_empty(), "csi-edge lets no option pass");
        for option in examples {
            let words = together(&option);
            let passed = options::for_guest(&words, self.file_system, false)?.options;
            ensure!(passed == words, "csi-edge makes {passed:?} of {words:?}");
            let mounted = self.mount(device, &words, None, AT).await;
            if ALIGNED.contains(&option.as_str()) {
                refused(mounted, "Invalid argument").with_context(|| option)?;
                continue;
            }
            match mounted {
                Ok(()) => self.unmount(AT).await?,
                Err(error) => failed.push(format!("{words:?}: {error:#}")),
            }
        }
        ensure!(failed.is_empty(), "the guest's kernel refuses:\n{}", failed.join("\n"));
        for option in ["X-mount.mkdir", "user", "nosymfollow", "nosuch"] {
            let mounted = self.mount(device, &[option.to_owned()], None, AT).await;
            refused(mounted, "Invalid argument").with_context(|| option)?;
        }
        Ok(())
    }

    /// A pod that reads only: the volume is mounted and read, whatever its group.
    async fn read_only(&mut self, group: &str) -> anyhow::Result<()> {
        let pod = format!("reader{group}");
        let (target, info, device) = self.handed_over(&pod, &["ro"], group).await?;
        ensure!(info.options == ["ro"], "the entry has {:?}", info.options);
        self.mount(&device, &info.options, Group::of(&info.metadata)?, AT).await?;
        let file = PathBuf::from(AT).join("file");
        let text: String = self.machine.ask(&GuestRequest::Read { path: file.clone() }).await?;
        ensure!(text == TEXT, "it reads {text:?}");
        let write = GuestRequest::Write { path: file, text: "x".into(), times: 1 };
        refused(self.machine.ask::<Value>(&write).await.map(drop), "Read-only file system")?;
        self.unmount(AT).await?;
        // What csi-edge does not write: the agent changes the group of what it cannot write.
        let same = Group { id: 1000, on_root_mismatch: true };
        self.mount(&device, &info.options, Some(same), AT).await.context("its root's own group")?;
        self.unmount(AT).await?;
        for group in [Group { on_root_mismatch: false, ..same }, Group { id: 1001, ..same }] {
            let mounted = self.mount(&device, &info.options, Some(group), AT).await;
            refused(mounted, "Read-only file system").with_context(|| format!("{group:?}"))?;
        }
        self.taken_back(&target).await
    }

    /// Publishes the volume and plugs it in; its target, its entry, and its device in the guest.
    async fn handed_over(
        &mut self,
        pod: &str,
        flags: &[&str],
        group: &str,
    ) -> anyhow::Result<(PathBuf, Info, String)> {
        let name = self.file_system.as_str();
        let target = self.scene.target(&format!("{name}-{pod}"))?;
        self.volume.capability = capability(self.file_system, flags, group);
        self.scene.publish(&self.volume, &target).await?;
        let mount = OciMount {
            destination: "/data".into(),
            kind: Some("bind".into()),
            source: target.canonicalize()?,
            options: ["rbind", "rprivate", "rw"].map(str::to_owned).to_vec(),
        };
        let info = match detect(Runtime::Go, &self.scene.root(), &mount) {
            Found::Direct(info) => info,
            other => bail!("{} is no direct volume: {other:?}", target.display()),
        };
        let device = info.device.clone().context("no device")?;
        let disk = self.machine.plug(Path::new(&device), name).await?;
        Ok((target, info, disk.path.display().to_string()))
    }

    async fn taken_back(&mut self, target: &Path) -> anyhow::Result<()> {
        self.machine.unplug(self.file_system.as_str()).await?;
        self.scene.unpublish(&self.volume, target).await
    }

    async fn mount(
        &mut self,
        source: &str,
        options: &[String],
        group: Option<Group>,
        at: &str,
    ) -> anyhow::Result<()> {
        let mounting = GuestRequest::Mount {
            source: source.into(),
            kind: self.file_system.as_str().into(),
            options: options.to_vec(),
            group,
            at: at.into(),
        };
        self.machine.ask::<Value>(&mounting).await.map(drop)
    }

    async fn unmount(&mut self, at: &str) -> anyhow::Result<()> {
        self.machine.ask::<Value>(&GuestRequest::Unmount { at: at.into() }).await.map(drop)
    }
}

/// An option with what its kernel wants besides.
fn together(option: &str) -> Vec<String> {
    let words: &[&str] = match option {
        "journal_async_commit" => &["journal_async_commit", "data=writeback"],
        other => &[other],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn other(error: anyhow::Error) -> Status {
    Status::unknown(format!("{error:#}"))
}

/// Fails unless a call was refused for this option.
fn is_invalid(outcome: Result<(), Status>, option: &str) -> anyhow::Result<()> {
    let refused = outcome.err().with_context(|| format!("{option} was not refused"))?;
    let is_it = refused.code() == Code::InvalidArgument && refused.message().contains(option);
    ensure!(is_it, "{option} was refused otherwise: {refused}");
    Ok(())
}

/// Fails unless the guest has refused something with this word.
fn refused(outcome: anyhow::Result<()>, word: &str) -> anyhow::Result<()> {
    match outcome {
        Ok(()) => bail!("the guest has done it"),
        Err(error) => {
            let why = format!("{error:#}");
            ensure!(why.contains(word), "it was refused otherwise: {why}");
            Ok(())
        }
    }
}
