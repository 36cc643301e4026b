//! `docs/how-to/migrate.md`, step by step: from the sidecars of a driver at its nodes, with
//! `--node-deployment`, to csi-cloud. A pod with a volume runs meanwhile and notices nothing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use super::look;
use super::look::reads;
use super::pods::{READ, STAY, WRITE};
use super::resize::SIZE;
use super::scene::{Scene, claim, pod};
use super::texts::{at, sized};
use super::traces::Traces;
use crate::stand::cloud::NAMESPACE;
use crate::stand::node::Driver;
use crate::stand::objects::{list, within};
use crate::stand::program::{Launch, Program};
use crate::stand::{Cluster, STRAIGHT};

/// The driver that arrives.
const NAME: &str = STRAIGHT[0];
/// Its nodes.
pub(super) const AT: [&str; 2] = ["n1", "n2"];
/// How long a step may take.
const SOON: Duration = Duration::from_secs(90);
/// The operator's own objects of the driver.
const OBJECTS: &str = "---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: straight.edge-csi.io
  labels: {app.kubernetes.io/managed-by: the-vendor}
spec:
  attachRequired: false
  podInfoOnMount: true
  storageCapacity: true
  fsGroupPolicy: File
  volumeLifecycleModes: [Persistent]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: straight
provisioner: straight.edge-csi.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
";

/// The driver as its vendor deploys it, at its nodes.
struct Vendor {
    drivers: Vec<Driver>,
    sidecars: Vec<Program>,
}

impl Vendor {
    async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let ground = &cluster.ground;
        let mut vendor = Self { drivers: Vec::new(), sidecars: Vec::new() };
        for name in AT {
            let driver = cluster.node(name)?.straight(ground, None, NAME).await?;
            for (sidecar, launch) in cluster.cloud.beside(ground, name, NAME, &driver.socket()?) {
                let sidecar = format!("{name}-{sidecar}-{NAME}");
                vendor.sidecars.push(Program::start(&sidecar, &ground.logs(), launch).await?);
            }
            vendor.drivers.push(driver);
        }
        Ok(vendor)
    }

    async fn stop(&self) {
        let drivers = self.drivers.iter().flat_map(|driver| [&driver.registrar, &driver.program]);
        for program in self.sidecars.iter().chain(drivers) {
            let _ = program.stop().await;
        }
    }
}

/// What the cloud has for the driver.
pub(super) struct Arrived {
    relay: Program,
    sidecars: Vec<Program>,
}

impl Arrived {
    /// Ends it.
    ///
    /// # Errors
    /// A program does not end.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        for program in self.sidecars.iter().chain([&self.relay]) {
            program.stop().await?;
        }
        Ok(())
    }
}

/// The row. It ends as it has begun.
pub(super) async fn from_node_deployment(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    scene.apply(OBJECTS).await?;
    let vendor = Vendor::start(cluster).await?;
    let done = arrives(scene, &vendor).await;
    vendor.stop().await;
    done.and(restored(cluster).await)
}

/// Takes back the row's changes.
async fn restored(cluster: &Cluster) -> anyhow::Result<()> {
    forgotten(cluster, NAME).await?;
    let params = DeleteParams::default();
    Api::<StorageClass>::all(cluster.client.clone()).delete("straight", &params).await?;
    Api::<CSIDriver>::all(cluster.client.clone()).delete(NAME, &params).await?;
    Ok(())
}

/// Takes the driver out of the arguments of csi-cloud and csi-edge.
///
/// # Errors
/// One does not start without it.
pub(super) async fn forgotten(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    for node in AT {
        let edge = &cluster.node(node)?.edge;
        edge.reargue(|args| args.retain(|arg| !arg.contains(name))).await?;
        edge.restart().await?;
    }
    cluster.cloud.program.reargue(|args| args.retain(|arg| !arg.contains(name))).await?;
    cluster.cloud.program.restart().await?;
    Ok(())
}

async fn arrives(scene: &Scene<'_>, vendor: &Vendor) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    registered(cluster, NAME).await?;
    let writer = claim("data", "straight") + &at(&pod("writer", "data", WRITE, READ), "n1");
    scene.apply(&writer).await?;
    scene.ready(&["writer"]).await?;
    let began = uid(scene, "writer").await?;
    let traces = Traces::of(scene, "data").await?;
    ensure!(!capacities(cluster, &old(AT[0])).await?.is_empty(), "the vendor's tell no capacity");

    name_driver(cluster, NAME, &vendor.drivers).await?;
    known(cluster, &traces).await?;
    stop_sidecars(cluster, vendor).await?;
    give_front(cluster, NAME, &vendor.drivers).await?;
    let arrived = start_sidecars(cluster, NAME, |_, _| true).await?;
    let used = used(scene, vendor, &traces, &began).await;
    arrived.stop().await?;
    used
}

/// Waits until the kubelets have the driver.
async fn registered(cluster: &Cluster, driver: &str) -> anyhow::Result<()> {
    let nodes = Api::<k8s_openapi::api::storage::v1::CSINode>::all(cluster.client.clone());
    within("the driver at its nodes", SOON, || async {
        for name in AT {
            let has = nodes.get(name).await?.spec.drivers.iter().any(|one| one.name == driver);
            ensure!(has, "{name} has not registered it");
        }
        Ok(())
    })
    .await
}

async fn uid(scene: &Scene<'_>, name: &str) -> anyhow::Result<String> {
    scene.api::<Pod>().get(name).await?.metadata.uid.context("a pod without a UID")
}

/// The label value by which external-provisioner marks its capacities at a node.
fn old(node: &str) -> String {
    format!("external-provisioner-{node}")
}

async fn capacities(cluster: &Cluster, by: &str) -> anyhow::Result<Vec<String>> {
    let all = Api::<CSIStorageCapacity>::namespaced(cluster.client.clone(), NAMESPACE);
    let of = ListParams::default().labels(&format!(
        "csi.storage.k8s.io/drivername={NAME},csi.storage.k8s.io/managed-by={by}"
    ));
    let found = all.list(&of).await?.items;
    Ok(found.into_iter().filter_map(|one| one.metadata.name).collect())
}

/// Step 2: csi-cloud and csi-edge are given the driver, beside the vendor's sidecars.
///
/// # Errors
/// One does not start with it.
pub(super) async fn name_driver(
    cluster: &Cluster,
    name: &str,
    drivers: &[Driver],
) -> anyhow::Result<()> {
    cluster.cloud.program.reargue(|args| args.push(format!("--driver={name}"))).await?;
    cluster.cloud.program.restart().await?;
    for (node, driver) in AT.iter().zip(drivers) {
        let edge = &cluster.node(node)?.edge;
        let socket = driver.socket()?;
        let socket = socket.display();
        edge.reargue(|args| args.push(format!("--driver={name}={socket}"))).await?;
        edge.restart().await?;
    }
    Ok(())
}

/// Step 3: csi-cloud knows each volume and its node, by the nodes' lists.
async fn known(cluster: &Cluster, traces: &Traces) -> anyhow::Result<()> {
    within("the volume in csi-cloud", SOON, || async {
        let all = cluster.cloud.shows(&cluster.ground, &["volumes", "--driver", NAME]).await?;
        let volume = all.iter().find(|one| one["id"] == traces.handle.as_str());
        let volume = volume.with_context(|| format!("it has {all:?}"))?;
        ensure!(volume["node"] == AT[0] && volume["state"] == "ok", "{volume}");
        Ok(())
    })
    .await
}

/// Step 4: the sidecars at the nodes end, and their capacities are deleted.
async fn stop_sidecars(cluster: &Cluster, vendor: &Vendor) -> anyhow::Result<()> {
    for sidecar in &vendor.sidecars {
        sidecar.stop().await?;
    }
    let all = Api::<CSIStorageCapacity>::namespaced(cluster.client.clone(), NAMESPACE);
    for node in AT {
        for name in capacities(cluster, &old(node)).await? {
            all.delete(&name, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Step 5: the registrars tell the kubelets of csi-edge's sockets.
///
/// # Errors
/// csi-edge has none in time, or a registrar does not start again.
pub(super) async fn give_front(
    cluster: &Cluster,
    name: &str,
    drivers: &[Driver],
) -> anyhow::Result<()> {
    for (node, driver) in AT.iter().zip(drivers) {
        let front = cluster.ground.dir().join(node).join(format!("fronts/{name}.sock"));
        let there = || async { Ok(tokio::net::UnixStream::connect(&front).await.map(drop)?) };
        within("csi-edge's socket", SOON, there).await?;
        let endpoint = format!("-endpoint={}", front.display());
        let change = |args: &mut Vec<String>| {
            args.retain(|arg| !arg.starts_with("-endpoint="));
            args.push(endpoint);
        };
        driver.registrar.reargue(change).await?;
        driver.registrar.restart().await?;
    }
    registered(cluster, name).await
}

/// Step 6: the sidecars in the cloud, with a socket relay of their own. `is_wanted` may change the
/// arguments of each sidecar, or leave it out.
///
/// # Errors
/// A program does not start.
pub(super) async fn start_sidecars(
    cluster: &Cluster,
    driver: &str,
    is_wanted: impl Fn(&str, &mut Launch) -> bool,
) -> anyhow::Result<Arrived> {
    let ground = &cluster.ground;
    let fronts: PathBuf = ground.dir().join("arrived");
    let args = [
        "front".to_owned(),
        format!("--fronts={}", fronts.display()),
        format!("--to=unix:{}", ground.at(crate::stand::cloud::HOLDERS)),
        format!("--driver={driver}"),
    ];
    let launch = Launch::new(ground.program("csi-cloud"), args);
    let relay = Program::start("arrived-front", &ground.logs(), launch).await?;
    let socket = fronts.join(format!("{driver}.sock"));
    let there = || async { Ok(tokio::net::UnixStream::connect(&socket).await.map(drop)?) };
    relay.until("its socket", SOON, there).await?;
    let mut sidecars = Vec::new();
    for (name, mut launch) in cluster.cloud.central(ground, driver, &socket) {
        if !is_wanted(name, &mut launch) {
            continue;
        }
        let name = format!("arrived-{name}");
        sidecars.push(Program::start(&name, &ground.logs(), launch).await?);
    }
    Ok(Arrived { relay, sidecars })
}

/// Step 7: the pod runs on, and all that a user does with claims works, the old one's too.
async fn used(
    scene: &Scene<'_>,
    vendor: &Vendor,
    traces: &Traces,
    began: &str,
) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let next = claim("next", "straight") + &at(&pod("next", "next", WRITE, READ), "n2");
    scene.apply(&next).await?;
    scene.ready(&["next"]).await?;
    let made = Traces::of(scene, "next").await?;
    let shown = cluster.cloud.shows(&cluster.ground, &["volumes", "--driver", NAME]).await?;
    let shown = shown.iter().find(|one| one["id"] == made.handle.as_str());
    let shown = shown.context("the new volume is not csi-cloud's")?;
    ensure!(shown["claim_name"] == "next" && shown["node"] == "n2", "{shown}");
    for node in AT {
        let left = capacities(cluster, &old(node)).await?;
        ensure!(left.is_empty(), "of the vendor's sidecars there are {left:?}");
    }
    scene.apply(&sized(&claim("data", "straight"), "32Mi")).await?;
    reads(scene, look::claim("data"), SIZE, "32Mi").await?;
    scene.ready(&["writer"]).await?;
    ensure!(scene.restarts("writer").await? == 0, "its container was started again");
    ensure!(uid(scene, "writer").await? == began, "it is another pod");
    scene.delete::<Pod>("writer").await?;
    scene.apply(&at(&pod("reader", "data", STAY, READ), "n1")).await?;
    scene.ready(&["reader"]).await?;
    for (pod, claim, traces, driver) in [("reader", "data", traces, 0), ("next", "next", &made, 1)]
    {
        scene.delete::<Pod>(pod).await?;
        scene.delete::<PersistentVolumeClaim>(claim).await?;
        let driver = vendor.drivers.get(driver).context("no driver")?;
        gone(cluster, traces, driver).await?;
    }
    Ok(())
}

/// Waits until a deleted volume is gone in Kubernetes, at its driver and in csi-cloud.
async fn gone(cluster: &Cluster, traces: &Traces, driver: &Driver) -> anyhow::Result<()> {
    within("end of the volume", SOON, || async {
        let all = list(&Api::<PersistentVolume>::all(cluster.client.clone())).await?;
        let left = all.iter().any(|one| one.metadata.name.as_deref() == Some(&traces.name));
        ensure!(!left, "the PersistentVolume {} is there", traces.name);
        let kept = driver.state.join("volumes").join(&traces.handle);
        ensure!(!kept.exists(), "the driver has {}", kept.display());
        let shown = cluster.cloud.shows(&cluster.ground, &["volumes", "--driver", NAME]).await?;
        let left = shown.iter().any(|one| one["id"] == traces.handle.as_str());
        ensure!(!left, "csi-cloud has {}", traces.handle);
        Ok(())
    })
    .await
}
