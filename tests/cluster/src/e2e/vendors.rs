//! A vendor's own driver at two nodes, with external-provisioner in the cloud: where its volumes
//! are made, and what Kubernetes is told of it.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::DeleteParams;
use proto::host::publish::{Existing, publish};
use serde_json::json;

use super::arriving::{AT, forgotten, give_front, name_driver, start_sidecars};
use super::look::SOON;
use super::pods::STAY;
use super::scene::{Scene, claim, pod};
use super::texts::{at, sized};
use super::traces::Traces;
use super::truth::listed;
use crate::stand::Cluster;
use crate::stand::node::Driver;
use crate::stand::objects::{self, list, within};

/// The program, which `make vendors` builds.
const PROGRAM: &str = "gcepd";
/// The driver's name.
const NAME: &str = "pd.csi.storage.gke.io";
/// What docs/how-to/add-driver.md has for a driver of one node with a topology of its own.
const SECTION: &str = "[driver.\"pd.csi.storage.gke.io\"]\nscope = \"node\"\ntopology = { \
                       \"topology.gke.io/zone\" = \"node\" }\n";
const CLASSES: &str = "---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: disk-now
provisioner: pd.csi.storage.gke.io
volumeBindingMode: Immediate
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: disk-late
provisioner: pd.csi.storage.gke.io
volumeBindingMode: WaitForFirstConsumer
";
/// Claims that choose no node.
const CLAIMS: usize = 6;

/// A claim's volume, and the place of the node among those with the driver.
struct Placed {
    traces: Traces,
    place: usize,
}

/// The row. It ends as it has begun.
pub(super) async fn placed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let program = cluster.ground.tool(PROGRAM);
    ensure!(program.exists(), "{} is not there; `make vendors` builds it", program.display());
    let config = cluster.ground.dir().join("cloud.toml");
    let before = std::fs::read_to_string(&config)?;
    publish(&config, (before.clone() + SECTION).as_bytes(), 0o600, Existing::Replace)?;
    scene.apply(CLASSES).await?;

    let mut drivers = Vec::new();
    for node in AT {
        drivers.push(cluster.node(node)?.vendors(&cluster.ground, NAME, PROGRAM).await?);
    }
    let done = behind_us(scene, &drivers).await;
    // A registrar ends when it loses its connection.
    for program in drivers.iter().flat_map(|driver| [&driver.registrar, &driver.program]) {
        let _ = program.stop().await;
    }

    publish(&config, before.as_bytes(), 0o600, Existing::Replace)?;
    done.and(restored(cluster).await)
}

/// Takes back the row's changes.
async fn restored(cluster: &Cluster) -> anyhow::Result<()> {
    forgotten(cluster, NAME).await?;
    let csidrivers = Api::<CSIDriver>::all(cluster.client.clone());
    csidrivers.delete(NAME, &DeleteParams::default()).await?;
    objects::delete(&cluster.client, "default", CLASSES).await
}

async fn behind_us(scene: &Scene<'_>, drivers: &[Driver]) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    name_driver(cluster, NAME, drivers).await?;
    give_front(cluster, NAME, drivers).await?;
    let sidecars = start_sidecars(cluster, NAME, |name, launch| {
        // The driver has no GetCapacity.
        launch.args.retain(|arg| !arg.contains("capacity"));
        ["csi-provisioner", "csi-attacher"].contains(&name)
    });
    let sidecars = sidecars.await?;
    let done = used(scene, drivers).await;
    sidecars.stop().await?;
    done
}

async fn used(scene: &Scene<'_>, drivers: &[Driver]) -> anyhow::Result<()> {
    let mut claims: Vec<_> = (0..CLAIMS).map(|number| format!("now-{number}")).collect();
    for name in &claims {
        scene.apply(&sized(&claim(name, "disk-now"), "1Gi")).await?;
    }
    for node in AT {
        let text =
            sized(&claim(node, "disk-late"), "1Gi") + &at(&pod(node, node, STAY, "true"), node);
        scene.apply(&text).await?;
    }

    ensure!(scene.ready(&AT).await? == AT, "the pods are elsewhere");
    claims.extend(AT.map(str::to_owned));
    let mut all = Vec::new();
    for name in &claims {
        let placed = where_it_says(scene, drivers, name).await?;
        let wanted = AT.iter().position(|node| node == name);
        ensure!(
            wanted.is_none_or(|wanted| wanted == placed.place),
            "{name} has its pod at another node than its volume"
        );
        all.push(placed);
    }
    for (place, node) in AT.iter().enumerate() {
        let now = all.iter().take(CLAIMS).filter(|placed| placed.place == place).count();
        ensure!(now > 0, "of {CLAIMS} claims that choose no node, none is at {node}");
    }

    for node in AT {
        scene.delete::<Pod>(node).await?;
    }
    for (name, placed) in claims.iter().zip(&all) {
        scene.delete::<PersistentVolumeClaim>(name).await?;
        gone(scene.cluster, drivers, placed).await?;
    }
    Ok(())
}

/// Where the volume of a claim is: at the driver of the one node that its PersistentVolume names.
async fn where_it_says(
    scene: &Scene<'_>,
    drivers: &[Driver],
    claim: &str,
) -> anyhow::Result<Placed> {
    let traces = Traces::of(scene, claim).await?;
    let mut has = Vec::new();
    for (place, driver) in drivers.iter().enumerate() {
        if listed(driver).await?.contains(&traces.handle) {
            has.push(place);
        }
    }
    let [place] = has[..] else { anyhow::bail!("{} is at the drivers {has:?}", traces.handle) };
    let node = AT.get(place).context("a driver without a node")?;

    let volume = Api::<PersistentVolume>::all(scene.cluster.client.clone());
    let volume = serde_json::to_value(volume.get(&traces.name).await?)?;
    let terms = volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms");
    let zone = format!("country-region-{node}");
    let zone = json!({ "key": "topology.gke.io/zone", "operator": "In", "values": [zone] });
    let wanted = json!([{ "matchExpressions": [zone] }]);
    ensure!(terms == Some(&wanted), "{claim} is at {node}, and its volume says {terms:?}");
    Ok(Placed { traces, place })
}

/// Waits until a deleted volume is gone in Kubernetes, at its driver and in csi-cloud.
async fn gone(cluster: &Cluster, drivers: &[Driver], placed: &Placed) -> anyhow::Result<()> {
    let Placed { traces, place } = placed;
    let driver = drivers.get(*place).context("no driver")?;
    within("end of the volume", SOON, || async {
        let all = list(&Api::<PersistentVolume>::all(cluster.client.clone())).await?;
        let left = all.iter().any(|one| one.metadata.name.as_deref() == Some(&traces.name));
        ensure!(!left, "the PersistentVolume {} is there", traces.name);
        ensure!(!listed(driver).await?.contains(&traces.handle), "the driver has it");
        let shown = cluster.cloud.shows(&cluster.ground, &["volumes", "--driver", NAME]).await?;
        let left = shown.iter().any(|one| one["id"] == traces.handle.as_str());
        ensure!(!left, "csi-cloud has {}", traces.handle);
        Ok(())
    })
    .await
}
