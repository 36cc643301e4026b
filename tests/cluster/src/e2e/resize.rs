//! Growth of volumes with and without a pod, and changes of a volume's attributes class.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::Value;

use super::look;
use super::look::{reads, running, until};
use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod};
use super::texts::{READ_RAW, WRITE_RAW, raw_claim, raw_pod, sized, with};
use super::traces::Traces;
use crate::stand::objects;

/// The size in a claim's status.
pub(super) const SIZE: &str = "/status/capacity/storage";
/// The raw volume has at least 32 MiB.
pub(super) const LARGE: &str =
    "dd if=/dev/disk of=/dev/null bs=1M skip=31 count=1 2>&1 | grep -q \"^1+0 records in\"";

/// A raw volume grows under a pod that runs, and the pod sees it; a mounted one too.
pub(super) async fn online(scene: &Scene<'_>) -> anyhow::Result<()> {
    let claims = [raw_claim("disk", "late"), claim("data", "late")];
    scene.apply(&claims.join("---\n")).await?;
    // The pod becomes ready only after the growth.
    scene.apply(&raw_pod("raw", "disk", WRITE_RAW, LARGE)).await?;
    scene.apply(&pod("mounted", "data", WRITE, READ)).await?;
    running(scene, "raw").await?;
    scene.ready(&["mounted"]).await?;
    for name in ["disk", "data"] {
        reads(scene, look::claim(name), SIZE, "16Mi").await?;
    }
    until(scene, look::Thing("v1", "Pod", "raw"), "/status/containerStatuses/0/ready", |ready| {
        ready == false
    })
    .await?;
    scene.apply(&claims.map(|claim| sized(&claim, "32Mi")).join("---\n")).await?;
    for name in ["disk", "data"] {
        grown(scene, name).await?;
    }
    scene.ready(&["raw"]).await?;
    Ok(())
}

/// Unused volumes grow, and the next pod finds the whole capacity and the old data.
pub(super) async fn offline(scene: &Scene<'_>) -> anyhow::Result<()> {
    let claims = [raw_claim("disk", "now"), claim("data", "late")];
    scene.apply(&claims.join("---\n")).await?;
    scene.apply(&raw_pod("raw", "disk", WRITE_RAW, READ_RAW)).await?;
    scene.apply(&pod("mounted", "data", WRITE, READ)).await?;
    scene.ready(&["raw", "mounted"]).await?;
    for pod in ["raw", "mounted"] {
        scene.delete::<Pod>(pod).await?;
    }
    scene.apply(&claims.map(|claim| sized(&claim, "32Mi")).join("---\n")).await?;
    // The raw one needs its node for the rest: it waits for a pod.
    reads(scene, look::claim("data"), SIZE, "32Mi").await?;
    let volume = scene.bound("disk").await?;
    reads(scene, look::volume(&volume), "/spec/capacity/storage", "32Mi").await?;
    scene
        .apply(&raw_pod(
            "again",
            "disk",
            "exec sleep 2147483647",
            &format!("{READ_RAW} && {LARGE}"),
        ))
        .await?;
    scene.ready(&["again"]).await?;
    grown(scene, "disk").await?;
    grown(scene, "data").await
}

/// The claim, its persistent volume and the driver say 32 MiB.
pub(super) async fn grown(scene: &Scene<'_>, claim: &str) -> anyhow::Result<()> {
    reads(scene, look::claim(claim), SIZE, "32Mi").await?;
    let traces = Traces::of(scene, claim).await?;
    reads(scene, look::volume(&traces.name), "/spec/capacity/storage", "32Mi").await?;
    let has = traces.record(scene.cluster)?;
    ensure!(has.get("capacity") == Some(&Value::from(32 << 20)), "the driver has {has}");
    Ok(())
}

/// A volume is made with the attributes of its class, and gets those of another when its claim
/// names that.
pub(super) async fn attributes(scene: &Scene<'_>) -> anyhow::Result<()> {
    let classes = [attribute_class("silver"), attribute_class("gold")].join("---\n");
    scene.apply(&classes).await?;
    let done = modified(scene).await;
    objects::delete(&scene.cluster.client, "default", &classes).await?;
    done
}

async fn modified(scene: &Scene<'_>) -> anyhow::Result<()> {
    let of = |class: &str| {
        with(&claim("data", "late"), &[&format!("volumeAttributesClassName: {class}")])
    };
    scene.apply(&of("silver")).await?;
    scene.apply(&pod("user", "data", WRITE, READ)).await?;
    scene.ready(&["user"]).await?;
    has_attribute(scene, "silver").await?;
    scene.apply(&of("gold")).await?;
    has_attribute(scene, "gold").await?;
    scene.ready(&["user"]).await?;
    scene.delete::<Pod>("user").await?;
    scene.delete::<PersistentVolumeClaim>("data").await
}

async fn has_attribute(scene: &Scene<'_>, wanted: &str) -> anyhow::Result<()> {
    reads(scene, look::claim("data"), "/status/currentVolumeAttributesClassName", wanted).await?;
    let traces = Traces::of(scene, "data").await?;
    reads(scene, look::volume(&traces.name), "/spec/volumeAttributesClassName", wanted).await?;
    let has = traces.record(scene.cluster)?;
    ensure!(
        has.pointer("/mutable/mutableKey") == Some(&Value::from(wanted)),
        "the driver has {has}"
    );
    Ok(())
}

fn attribute_class(name: &str) -> String {
    format!(
        "apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata:
  name: {name}
driverName: {driver}
parameters:
  {key}: {name}
",
        driver = crate::stand::DRIVER,
        key = drivers::hostdir::MUTABLE_KEY
    )
}
