//! The traces of a volume in Kubernetes, at drivers, in our store and in the nodes' mount tables.
//! Tests check that a deleted volume left none.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use serde_json::Value;

use super::look::SOON;
use super::scene::Scene;
use crate::stand::Cluster;
use crate::stand::node::{Driver, Node};
use crate::stand::objects::{list, within};

/// A volume by all its names.
pub(super) struct Traces {
    /// The persistent volume's name.
    pub(super) name: String,
    /// The driver's.
    pub(super) driver: String,
    /// The driver's id of it.
    pub(super) handle: String,
}

impl Traces {
    /// Of a claim, when it is bound.
    ///
    /// # Errors
    /// It is not bound in time, or not to a CSI volume.
    pub(super) async fn of(scene: &Scene<'_>, claim: &str) -> anyhow::Result<Self> {
        let name = scene.bound(claim).await?;
        let volume = Api::<PersistentVolume>::all(scene.cluster.client.clone()).get(&name).await?;
        Self::of_volume(&volume).with_context(|| format!("{name} is no CSI volume"))
    }

    /// Of a persistent volume; none if it is no CSI volume.
    pub(super) fn of_volume(volume: &PersistentVolume) -> Option<Self> {
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        let driver = csi.driver.clone();
        let handle = csi.volume_handle.clone();
        Some(Self { name: volume.metadata.name.clone()?, driver, handle })
    }

    /// The node at which the driver has it, as the driver's own files say.
    ///
    /// # Errors
    /// None has it.
    pub(super) fn home<'a>(&self, cluster: &'a Cluster) -> anyhow::Result<&'a Node> {
        let has = |node: &&Node| node.drivers.iter().any(|driver| self.kept(driver).is_some());
        cluster
            .nodes
            .iter()
            .find(has)
            .with_context(|| format!("no node has the volume {}", self.handle))
    }

    /// The driver's record of the volume.
    ///
    /// # Errors
    /// It has nothing.
    pub(super) fn record(&self, cluster: &Cluster) -> anyhow::Result<Value> {
        let drivers = cluster.nodes.iter().flat_map(|node| &node.drivers);
        let kept = drivers.filter_map(|driver| self.kept(driver)).next();
        kept.with_context(|| format!("no driver has the volume {}", self.handle))
    }

    fn kept(&self, driver: &Driver) -> Option<Value> {
        let path = driver.state.join("volumes").join(&self.handle).join("record.json");
        let ours = driver.name == self.driver;
        let bytes = ours.then(|| std::fs::read(path).ok()).flatten()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Waits until the volume has left no trace.
    ///
    /// # Errors
    /// It has in time; the error says where.
    pub(super) async fn gone(&self, cluster: &Cluster) -> anyhow::Result<()> {
        within(&format!("end of all traces of {}", self.name), SOON, || self.is_gone(cluster)).await
    }

    async fn is_gone(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
        ensure!(volumes.get_opt(&self.name).await?.is_none(), "the persistent volume is there");
        let attached = self.attachments(cluster).await?;
        ensure!(attached.is_empty(), "the attachments {attached:?} are there");
        ensure!(self.home(cluster).is_err(), "its driver has it");
        for stored in cluster.cloud.shows(&cluster.ground, &["volumes"]).await? {
            ensure!(
                stored.get("id") != Some(&Value::from(self.handle.as_str())),
                "our store has {stored}"
            );
        }
        for node in &cluster.nodes {
            let mounts = self.mounts(node)?;
            ensure!(mounts.is_empty(), "at {}: {}", node.name, mounts.join("; "));
        }
        Ok(())
    }

    /// The names of its attachments.
    ///
    /// # Errors
    /// The API server does not say.
    pub(super) async fn attachments(&self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let all = list(&Api::<VolumeAttachment>::all(cluster.client.clone())).await?;
        let of = |one: &VolumeAttachment| {
            one.spec.source.persistent_volume_name.as_deref() == Some(self.name.as_str())
        };
        Ok(all.into_iter().filter(of).filter_map(|one| one.metadata.name).collect())
    }

    /// The lines of a node's mount table that are about it.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn mounts(&self, node: &Node) -> anyhow::Result<Vec<String>> {
        mounted(node, |line| line.contains(&self.handle) || line.contains(&self.name))
    }
}

fn mounted(node: &Node, about: impl Fn(&str) -> bool) -> anyhow::Result<Vec<String>> {
    let mut mounts = node.worker.space.mounts()?;
    mounts.retain(|line| about(line));
    Ok(mounts)
}

/// The lines of a node's mount table that are about volumes of drivers.
///
/// # Errors
/// The kernel does not say.
pub(super) fn of_volumes(node: &Node) -> anyhow::Result<Vec<String>> {
    let dirs = ["kubernetes.io~csi", "kubernetes.io/csi"];
    mounted(node, |line| dirs.iter().any(|dir| line.contains(dir)))
}

/// Waits until no volume of any driver is attached or mounted, when there is none any more.
///
/// # Errors
/// One is; the error says where.
pub(super) async fn none(cluster: &Cluster) -> anyhow::Result<()> {
    let none = || async {
        let attached = list(&Api::<VolumeAttachment>::all(cluster.client.clone())).await?;
        let attached: Vec<_> = attached.into_iter().filter_map(|one| one.metadata.name).collect();
        ensure!(attached.is_empty(), "the attachments {attached:?} are there");
        for node in &cluster.nodes {
            let mounts = of_volumes(node)?;
            ensure!(mounts.is_empty(), "at {}: {}", node.name, mounts.join("; "));
        }
        Ok(())
    };
    within("end of all attachments and mounts", SOON, none).await
}
