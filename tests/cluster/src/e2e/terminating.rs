//! Objects that are being deleted and stay: `csi-cloud explain` names what keeps each.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::look::SOON;
use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod};
use super::snapshots::{SNAPSHOT, restore, snapshot};
use super::texts::at;
use super::traces::Traces;
use crate::stand::objects::{self, within};

/// A finalizer that no controller removes.
const STRAY: &str = "stand.edge-csi.io/stray";

/// A claim in use, its volume, a snapshot of which a claim waits, and an attachment.
pub(super) async fn named(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("held", "late")).await?;
    scene.apply(&at(&pod("holder", "held", WRITE, READ), "n1")).await?;
    scene.ready(&["holder"]).await?;
    scene.apply(&snapshot("today", "held")).await?;
    scene.becomes(SNAPSHOT, "VolumeSnapshot", "today", "/status/readyToUse", &json!(true)).await?;
    scene.apply(&restore("waits", "late", "today")).await?;
    let traces = Traces::of(scene, "held").await?;
    let client = &scene.cluster.client;
    let kind = json!({"apiVersion": SNAPSHOT, "kind": "VolumeSnapshot"});
    let snapshots = objects::api(client, &kind, scene.namespace()).await?;
    let claims = scene.api::<PersistentVolumeClaim>();
    let volumes = Api::<PersistentVolume>::all(client.clone());
    snapshots.delete("today", &DeleteParams::default()).await?;
    claims.delete("held", &DeleteParams::default()).await?;
    volumes.delete(&traces.name, &DeleteParams::default()).await?;
    let in_namespace = |name: &str| format!("{}/{name}", scene.namespace());
    for (kind, name, kept_by) in [
        ("snapshot", in_namespace("today"), "volumesnapshot-as-source-protection"),
        ("pvc", in_namespace("held"), "kubernetes.io/pvc-protection"),
        ("pv", traces.name.clone(), "kubernetes.io/pv-protection"),
    ] {
        explained(scene, &[kind, &name], kept_by).await?;
    }
    detached_with(scene, &traces).await
}

/// The pod ends, and something that no controller removes keeps the attachment.
async fn detached_with(scene: &Scene<'_>, traces: &Traces) -> anyhow::Result<()> {
    let attachments = Api::<VolumeAttachment>::all(scene.cluster.client.clone());
    let attached = traces.attachments(scene.cluster).await?;
    let name = attached.first().context("the volume is not attached")?;
    let mut kept = attachments.get(name).await?.metadata.finalizers.unwrap_or_default();
    kept.push(STRAY.to_owned());
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": kept}}));
    attachments.patch(name, &PatchParams::default(), &finalizers).await?;
    let explained = async {
        scene.delete::<Pod>("holder").await?;
        scene.gone::<PersistentVolumeClaim>("held").await?;
        explained(scene, &["pv", &traces.name], STRAY).await
    };
    let explained = explained.await;
    freed(&attachments, name).await?;
    explained?;
    scene.delete::<PersistentVolumeClaim>("waits").await?;
    traces.gone(scene.cluster).await
}

/// Removes the stray finalizer, and leaves external-attacher its own. The change is for the version
/// that was read: external-attacher may remove its own meanwhile, and nothing may put it back.
async fn freed(attachments: &Api<VolumeAttachment>, name: &str) -> anyhow::Result<()> {
    within("the stray finalizer goes", SOON, || async {
        let read = attachments.get(name).await?.metadata;
        let mut kept = read.finalizers.unwrap_or_default();
        kept.retain(|finalizer| finalizer != STRAY);
        let version = read.resource_version;
        let freed = json!({"metadata": {"finalizers": kept, "resourceVersion": version}});
        attachments.patch(name, &PatchParams::default(), &Patch::Merge(freed)).await?;
        Ok(())
    })
    .await
}

/// Waits until `csi-cloud explain` says that this is being deleted, and names this finalizer.
async fn explained(scene: &Scene<'_>, subject: &[&str], kept_by: &str) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let asked = [&["explain"], subject, &["-o", "json"]].concat();
    within(&format!("{subject:?}: kept by {kept_by}"), SOON, || async {
        let said: Value =
            serde_json::from_str(&cluster.cloud.says(&cluster.ground, &asked).await?)?;
        ensure!(said["verdict"]["cause"] == "terminating", "{said}");
        let steps = said["steps"].as_array().context("no steps")?;
        let found = steps.iter().filter_map(|step| step["found"].as_str());
        let names = |found: &str| found.contains("kept by") && found.contains(kept_by);
        ensure!(found.into_iter().any(names), "{said}");
        Ok(())
    })
    .await
}
