//! Snapshots, restored volumes and clones, which live where their source does; and snapshots of
//! several volumes at once.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, DynamicObject};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::faults::told_of;
use super::look::SOON;
use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, pod};
use super::texts::{at, rather, with};
use super::traces::Traces;
use crate::stand::objects;
use crate::stand::objects::within;
use crate::stand::{NODES, SHARES};

pub(super) const SNAPSHOT: &str = "snapshot.storage.k8s.io/v1";
const GROUP: &str = "groupsnapshot.storage.k8s.io/v1";

/// A snapshot keeps the data of its moment. Volumes made from it live at its home, with immediate
/// or late binding, and outlive it and its source. This holds even if the scheduler prefers another
/// node, because it knows nothing of snapshots.
pub(super) async fn restored(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    scene.apply(&pod("writer", "data", WRITE, READ)).await?;
    let home = scene.ready(&["writer"]).await?;
    let elsewhere = NODES
        .iter()
        .find(|plan| !home.iter().any(|node| node == plan.name))
        .context("one node only")?;
    scene.apply(&snapshot("today", "data")).await?;
    scene.becomes(SNAPSHOT, "VolumeSnapshot", "today", "/status/readyToUse", &json!(true)).await?;
    for class in ["now", "late"] {
        let name = &format!("of-{class}");
        scene.apply(&restore(name, class, "today")).await?;
        scene.apply(&rather(&pod(name, name, STAY, READ), elsewhere.name)).await?;
        let nodes = scene.ready(&[name]).await?;
        ensure!(
            nodes == home,
            "the snapshot is at {home:?}, the pod of what was restored at {nodes:?}"
        );
    }
    told_of(scene, "of-late", "PlacedAtSource").await?;
    // First the snapshot, then the source: what was made of them stays.
    let kept = (of_kind(scene, "snapshot").await?, at_drivers(scene)?);
    ensure!(!kept.0.is_empty() && !kept.1.is_empty(), "store and drivers have {kept:?}");
    forget(scene, SNAPSHOT, "VolumeSnapshot", "today").await?;
    scene.delete::<Pod>("writer").await?;
    scene.delete::<PersistentVolumeClaim>("data").await?;
    scene.ready(&["of-now", "of-late"]).await?;
    no_snapshots(scene).await
}

/// Clones have what their source had, at its node, bound at once or late.
pub(super) async fn cloned(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("data", "late")).await?;
    scene.apply(&pod("writer", "data", WRITE, READ)).await?;
    let home = scene.ready(&["writer"]).await?;
    let elsewhere = NODES
        .iter()
        .find(|plan| !home.iter().any(|node| node == plan.name))
        .context("one node only")?;
    let source = Traces::of(scene, "data").await?;
    let line = ["dataSource: {kind: PersistentVolumeClaim, name: data}"];
    for class in ["now", "late"] {
        scene.apply(&with(&claim(class, class), &line)).await?;
        scene.apply(&rather(&pod(class, class, STAY, READ), elsewhere.name)).await?;
        let nodes = scene.ready(&[class]).await?;
        ensure!(nodes == home, "the source is at {home:?}, the clone's pod at {nodes:?}");
        let copy = Traces::of(scene, class).await?;
        ensure!(source.handle != copy.handle, "the clone is the source");
        let has = copy.record(scene.cluster)?;
        ensure!(
            has.pointer("/source/Volume") == Some(&json!(source.handle)),
            "the driver has {has}"
        );
    }
    Ok(())
}

/// The volumes of a pod are snapshotted together, and one is made of a member.
pub(super) async fn grouped(scene: &Scene<'_>) -> anyhow::Result<()> {
    let class = "apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata:
  name: shops
driver: hostdir.edge-csi.io
deletionPolicy: Delete
";
    scene.apply(class).await?;
    let done = of_shop(scene).await;
    objects::delete(&scene.cluster.client, "default", class).await?;
    done
}

async fn of_shop(scene: &Scene<'_>) -> anyhow::Result<()> {
    for name in ["goods", "orders"] {
        let labelled = format!("  name: {name}\n  labels: {{app: shop}}");
        scene.apply(&claim(name, "late").replace(&format!("  name: {name}"), &labelled)).await?;
        scene.apply(&at(&pod(name, name, WRITE, READ), "n3")).await?;
    }
    scene.ready(&["goods", "orders"]).await?;
    scene
        .apply(
            "apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata:
  name: shop
spec:
  volumeGroupSnapshotClassName: shops
  source:
    selector:
      matchLabels: {app: shop}
",
        )
        .await?;
    scene.becomes(GROUP, "VolumeGroupSnapshot", "shop", "/status/readyToUse", &json!(true)).await?;
    let members = ready_members(scene).await?;
    let member = members.first().context("a group without members")?;
    scene.apply(&restore("again", "now", member)).await?;
    scene.apply(&pod("again", "again", STAY, READ)).await?;
    let nodes = scene.ready(&["again"]).await?;
    ensure!(nodes == ["n3"], "the group is at n3, the pod of what was restored at {nodes:?}");
    let kept = of_kind(scene, "group").await?;
    ensure!(!kept.is_empty(), "our store has no group");
    forget(scene, GROUP, "VolumeGroupSnapshot", "shop").await?;
    no_snapshots(scene).await?;
    let left = of_kind(scene, "group").await?;
    ensure!(left.is_empty(), "our store has the groups {left:?}");
    Ok(())
}

/// The ids of what our store has of a kind.
async fn of_kind(scene: &Scene<'_>, kind: &str) -> anyhow::Result<Vec<String>> {
    let stored = scene.cluster.cloud.shows(&scene.cluster.ground, &["volumes", "--all"]).await?;
    let of_it = stored.iter().filter(|one| one.get("kind") == Some(&json!(kind)));
    let id = |one: &Value| one.get("id")?.as_str().map(str::to_owned);
    of_it.map(|one| id(one).with_context(|| format!("no id in {one}"))).collect()
}

/// The names of the snapshots that drivers have in their files.
fn at_drivers(scene: &Scene<'_>) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let drivers = scene.cluster.nodes.iter().flat_map(|node| &node.drivers);
    // One without a controller has none.
    for driver in drivers.filter(|driver| driver.name != SHARES) {
        let entries = std::fs::read_dir(driver.state.join("snapshots"));
        for entry in entries.into_iter().flatten() {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// The snapshots of the group's two members, when all are ready.
async fn ready_members(scene: &Scene<'_>) -> anyhow::Result<Vec<String>> {
    let api = kinds(scene, SNAPSHOT, "VolumeSnapshot").await?;
    let asked = || async {
        let found = objects::list(&api).await?;
        let ready = |one: &&DynamicObject| {
            one.data.pointer("/status/readyToUse") == Some(&Value::Bool(true))
        };
        let names: Vec<_> = found.iter().filter(ready).map(ResourceExt::name_any).collect();
        ensure!(names.len() == 2, "of {} snapshots, {names:?} are ready", found.len());
        Ok(names)
    };
    within("the snapshots of a group", SOON, asked).await
}

async fn kinds(scene: &Scene<'_>, version: &str, kind: &str) -> anyhow::Result<Api<DynamicObject>> {
    let object = json!({"apiVersion": version, "kind": kind});
    objects::api(&scene.cluster.client, &object, scene.namespace()).await
}

/// Deletes an object of a kind without a type, and waits for its deletion.
pub(super) async fn forget(
    scene: &Scene<'_>,
    version: &str,
    kind: &str,
    name: &str,
) -> anyhow::Result<()> {
    let api = kinds(scene, version, kind).await?;
    api.delete(name, &DeleteParams::default()).await?;
    let gone = || async {
        ensure!(api.get_opt(name).await?.is_none(), "it is there");
        Ok(())
    };
    within(&format!("end of {kind} {name}"), SOON, gone).await
}

/// Waits until nothing is left of the namespace's snapshots, neither in Kubernetes nor at the
/// drivers or in our store.
async fn no_snapshots(scene: &Scene<'_>) -> anyhow::Result<()> {
    let contents = kinds(scene, SNAPSHOT, "VolumeSnapshotContent").await?;
    let gone = || async {
        let left = objects::list(&contents).await?;
        let ours = |one: &&DynamicObject| {
            one.data.pointer("/spec/volumeSnapshotRef/namespace") == Some(&json!(scene.namespace()))
        };
        ensure!(!left.iter().any(|one| ours(&one)), "there are contents");
        let handles: Vec<_> = left
            .iter()
            .filter_map(|one| one.data.pointer("/status/snapshotHandle")?.as_str())
            .collect();
        for id in of_kind(scene, "snapshot").await? {
            ensure!(handles.contains(&id.as_str()), "our store has the snapshot {id}");
        }
        for name in at_drivers(scene)? {
            ensure!(handles.contains(&name.as_str()), "a driver has the snapshot {name}");
        }
        Ok(())
    };
    within("end of all snapshots", SOON, gone).await
}

pub(super) fn snapshot(name: &str, claim: &str) -> String {
    format!(
        "apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: {name}
spec:
  volumeSnapshotClassName: snapshots
  source:
    persistentVolumeClaimName: {claim}
"
    )
}

pub(super) fn restore(name: &str, class: &str, snapshot: &str) -> String {
    let source = format!(
        "dataSource: {{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: {snapshot}}}"
    );
    with(&claim(name, class), &[&source])
}
