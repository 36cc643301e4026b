//! A PersistentVolume that a user writes, for a driver without a controller and with attachRequired
//! false. Kubernetes calls nothing in the cloud, and makes no VolumeAttachment.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;

use super::look::SOON;
use super::scene::{Scene, claim, pod};
use super::texts::{at, with};
use super::traces::Traces;
use crate::stand::objects;
use crate::stand::objects::{list, within};
use crate::stand::{Cluster, SHARES};

/// The node with the driver.
pub(super) const NODE: &str = "n3";

/// A pod has the data of a share, and its writes stay there after claim and volume are deleted.
pub(super) async fn by_hand(scene: &Scene<'_>) -> anyhow::Result<()> {
    let share = share(scene.cluster, "srv/by-hand").await?;
    let volume = volume();
    scene.apply(&volume).await?;
    let bound = claim("archive", "\"\"").replace("ReadWriteOnce", "ReadWriteMany");
    scene.apply(&with(&bound, &["volumeName: by-hand"])).await?;
    let script = "cat /data/kept > /data/copied && exec sleep 2147483647";
    scene.apply(&at(&pod("reader", "archive", script, "grep -q kept /data/copied"), NODE)).await?;
    scene.ready(&["reader"]).await?;
    let traces = Traces::of(scene, "archive").await?;
    unattached(scene.cluster).await?;
    let node = scene.cluster.node(NODE)?;
    ensure!(traces.mounts(node)?.len() == 1, "it is not mounted once");
    scene.delete::<Pod>("reader").await?;
    scene.delete::<PersistentVolumeClaim>("archive").await?;
    objects::delete(&scene.cluster.client, "default", &volume).await?;
    traces.gone(scene.cluster).await?;
    ensure!(share.join("copied").exists(), "what the pod wrote is gone");
    Ok(())
}

/// Puts a file `kept` on a share of the node with the driver, which is there from now on.
pub(super) async fn share(cluster: &Cluster, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let drivers = &cluster.node(NODE)?.drivers;
    let driver =
        drivers.iter().find(|driver| driver.name == SHARES).context("the driver is not there")?;
    let share = driver.state.join(name);
    tokio::fs::create_dir_all(&share).await?;
    tokio::fs::write(share.join("kept"), "kept\n").await?;
    Ok(share)
}

/// No volume of the driver is attached, as its CSIDriver says.
pub(super) async fn unattached(cluster: &Cluster) -> anyhow::Result<()> {
    let all = list(&Api::<VolumeAttachment>::all(cluster.client.clone())).await?;
    let attached: Vec<_> = all.iter().filter(|one| one.spec.attacher == SHARES).collect();
    ensure!(attached.is_empty(), "there are attachments: {attached:?}");
    Ok(())
}

/// Waits for the deletion of a persistent volume.
pub(super) async fn volume_gone(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let volumes = Api::<PersistentVolume>::all(cluster.client.clone());
    let gone = || async {
        ensure!(volumes.get_opt(name).await?.is_none(), "it is there");
        Ok(())
    };
    within(&format!("end of {name}"), SOON, gone).await
}

fn volume() -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata:
  name: by-hand
spec:
  capacity:
    storage: 16Mi
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: \"\"
  mountOptions: [nfsvers=4.1]
  csi:
    driver: {SHARES}
    volumeHandle: site-1.example/srv/by-hand
    volumeAttributes:
      server: site-1.example
      share: /srv/by-hand
"
    )
}
