//! One node and one volume that is handed over directly: staged, published to pods, found by
//! guests.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use guest::contract::Runtime;
use guest::kubelet::Publication;
use guest::scene::{PodVolume, Scene, mount};
use guest::stand_in::Guest;
use harness::wait::until;
use proto::csi::VolumeCapability;
use proto::csi::volume_capability::access_mode::Mode;
use tonic::Status;

/// The class of a direct volume.
pub(super) const CLASS: [(&str, &str); 1] = [("edge-csi.io/direct", "kata")];

/// A volume that is staged at the node.
pub(super) struct Handover {
    /// The programs.
    pub(super) scene: Scene,
    /// The volume.
    pub(super) volume: PodVolume,
}

impl Handover {
    /// A direct volume of a driver with this scope, `node` or `shared`.
    pub(super) async fn staged(scope: &str, fs_type: &str) -> anyhow::Result<Self> {
        Self::of(scope, mount(Mode::SingleNodeSingleWriter, fs_type, "1000")).await
    }

    /// The same, and what its pod asks for.
    pub(super) async fn of(scope: &str, capability: VolumeCapability) -> anyhow::Result<Self> {
        let this = Self::made(scope, &CLASS, capability).await?;
        this.scene.stage(&this.volume).await?;
        Ok(this)
    }

    /// A volume of a class that is not staged yet.
    pub(super) async fn made(
        scope: &str,
        class: &[(&str, &str)],
        capability: VolumeCapability,
    ) -> anyhow::Result<Self> {
        let scene = Scene::new(scope).await?;
        let create = || async { Ok(scene.create("data", class, capability.clone()).await?) };
        let volume = until("a volume", create).await?;
        Ok(Self { scene, volume })
    }

    /// A direct volume with ext4 that is published to a pod, and the pod's target.
    pub(super) async fn published() -> anyhow::Result<(Self, PathBuf)> {
        let this = Self::staged("node", "ext4").await?;
        let target = this.scene.target("pod-1")?;
        this.publish(&target).await?;
        Ok((this, target))
    }

    /// Publishes the volume to a pod. If the kubelet forgets a refused publication, nothing of it
    /// may be left.
    pub(super) async fn publish(&self, target: &Path) -> anyhow::Result<()> {
        let before = self.entries();
        let published = self.scene.publish(&self.volume, target).await;
        if let Err(error) = &published
            && let Some(status) = error.downcast_ref::<Status>()
            && Publication::after(status.code()) == Publication::NotMounted
        {
            let after = self.entries();
            ensure!(after <= before, "{after} entries, {before} before a final {error:#}");
        }
        published
    }

    /// Unpublishes the volume from a pod.
    pub(super) async fn unpublish(&self, target: &Path) -> anyhow::Result<()> {
        self.scene.unpublish(&self.volume, target).await
    }

    /// Kills csi-edge and starts it again.
    pub(super) async fn restart_edge(&mut self) -> anyhow::Result<()> {
        self.scene.kill_edge().await?;
        self.scene.start_edge().await
    }

    /// A guest that finds what is published at a target.
    pub(super) async fn guest(&self, runtime: Runtime, target: &Path) -> anyhow::Result<Guest> {
        let source = target.canonicalize()?;
        Guest::start(&self.scene.stand, runtime, &self.scene.root(), &source).await
    }

    /// Writes a file in a guest that ends then.
    pub(super) async fn write(
        &self,
        runtime: Runtime,
        target: &Path,
        file: &str,
        text: &str,
    ) -> anyhow::Result<()> {
        let mut guest = self.guest(runtime, target).await?;
        guest.tell(&format!("write {file} {text}")).await?;
        guest.stop().await
    }

    /// Reads a file in a guest that ends then.
    pub(super) async fn read(
        &self,
        runtime: Runtime,
        target: &Path,
        file: &str,
    ) -> anyhow::Result<String> {
        let mut guest = self.guest(runtime, target).await?;
        let text = guest.tell(&format!("read {file}")).await?;
        guest.stop().await?;
        Ok(text)
    }

    /// How many entries runtimes see.
    pub(super) fn entries(&self) -> usize {
        entries(&self.scene)
    }

    /// Deletes the volume, which no pod has, and ends everything in order.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.scene.delete(&self.volume).await?;
        let journals = std::fs::read_dir(self.scene.state().join("volumes"));
        let left = journals.map_or(0, Iterator::count);
        ensure!(left == 0, "{left} journals of a deleted volume are left");
        self.scene.stop().await
    }

    /// The same, when the volume is published to a pod.
    pub(super) async fn end_at(self, target: &Path) -> anyhow::Result<()> {
        self.unpublish(target).await?;
        self.end().await
    }
}

/// How many entries runtimes see.
pub(super) fn entries(scene: &Scene) -> usize {
    std::fs::read_dir(scene.root()).map_or(0, Iterator::count)
}
