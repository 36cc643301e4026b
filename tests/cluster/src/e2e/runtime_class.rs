//! A class that leaves it to the pods' RuntimeClass whether a volume is handed over directly.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::direct;
use super::direct::{FILL, FILLED};
use super::look::SOON;
use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim_of, pod};
use super::tables;
use super::texts::at;
use super::traces::Traces;
use crate::stand::objects::within;
use guest::wrapper::HANDLER;

const KEY: &str = "edge-csi.io/direct";

/// Two claims of one class: the one is handed over, and the other is mounted. A later pod of the
/// other kind is told why it gets neither.
pub(super) async fn decides(scene: &Scene<'_>) -> anyhow::Result<()> {
    let node = scene.cluster.node("n1")?;
    let claims = ["disk", "data"].map(|name| claim_of(name, "direct-auto", "320Mi", ""));
    scene.apply(&claims.join("---\n")).await?;
    scene.apply(&direct::guest("guest", "n1", FILL, FILLED)).await?;
    scene.apply(&at(&pod("host", "data", WRITE, READ), "n1")).await?;
    scene.ready(&["guest", "host"]).await?;
    let disk = Traces::of(scene, "disk").await?;
    let data = Traces::of(scene, "data").await?;
    ensure!(decided(scene, &disk).await? == "kata", "a guest's volume is not direct");
    ensure!(decided(scene, &data).await? == "none", "a volume of the host is direct");
    direct::within_container(&disk)?;
    ensure!(!data.mounts(node)?.is_empty(), "the host has not mounted its pod's volume");
    within("pod and claim in csi-edge volumes", SOON, || named(scene, &disk)).await?;

    // The other kind comes later, to both.
    scene.delete::<Pod>("guest").await?;
    scene.apply(&at(&pod("late-host", "disk", STAY, READ), "n1")).await?;
    refused(scene, "late-host", "has no RuntimeClass").await?;
    ensure!(tables::namespaces(&disk.handle)?.is_empty(), "somebody has mounted the device");
    let late =
        direct::guest("late-guest", "n1", STAY, READ).replace("claimName: disk", "claimName: data");
    scene.apply(&late).await?;
    refused(scene, "late-guest", &format!("has RuntimeClass {HANDLER}")).await?;
    for pod in ["late-host", "late-guest", "host"] {
        scene.delete::<Pod>(pod).await?;
    }
    for claim in ["disk", "data"] {
        scene.delete::<PersistentVolumeClaim>(claim).await?;
    }
    disk.gone(scene.cluster).await?;
    data.gone(scene.cluster).await?;
    within("end of what the runtime had", SOON, || async {
        direct::nothing_left(scene, node, &disk)
    })
    .await
}

/// What was decided, by the volume's context.
async fn decided(scene: &Scene<'_>, traces: &Traces) -> anyhow::Result<String> {
    let volumes = Api::<PersistentVolume>::all(scene.cluster.client.clone());
    let spec = volumes.get(&traces.name).await?.spec.context("no spec")?;
    let attributes = spec.csi.and_then(|csi| csi.volume_attributes).unwrap_or_default();
    attributes.get(KEY).cloned().context("nothing was decided")
}

/// The node's operator sees whose the volume is.
async fn named(scene: &Scene<'_>, traces: &Traces) -> anyhow::Result<()> {
    let node = scene.cluster.node("n1")?;
    let ground = &scene.cluster.ground;
    let program = ground.program("csi-edge").display().to_string();
    let admin = ground.dir().join(node.name).join("fronts/_admin.sock").display().to_string();
    let said =
        node.worker.space.run(&program, &["volumes", "--admin", &admin, "-o", "json"]).await?;
    let seen: Value = serde_json::from_str(&said)?;
    let ours = seen.as_array().into_iter().flatten();
    let mut ours = ours.filter(|one| one.get("volume") == Some(&Value::from(&*traces.handle)));
    let ours = ours.next().context("csi-edge does not show it")?;
    let of = |key: &str| ours.get(key).and_then(Value::as_str).unwrap_or_default();
    let names = [format!("{}/guest", scene.namespace()), format!("{}/disk", scene.namespace())];
    ensure!([of("pod"), of("claim")] == names, "csi-edge shows {ours}");
    Ok(())
}

/// Waits until an Event tells a pod why it gets no volume.
async fn refused(scene: &Scene<'_>, pod: &str, words: &str) -> anyhow::Result<()> {
    within(words, SOON, || async {
        let params = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        let events = scene.api::<Event>().list(&params).await?.items;
        let notes: Vec<_> = events.into_iter().filter_map(|event| event.message).collect();
        ensure!(notes.iter().any(|note| note.contains(words)), "its Events are {notes:?}");
        Ok(())
    })
    .await
}
