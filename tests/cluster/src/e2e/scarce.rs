//! Two drivers on two of the nodes; the second has little capacity and takes few volumes at each.
//!
//! These rows would take each other's room, so they take turns.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity};
use kube::Api;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::exam::explains;
use super::look::{SOON, without_node};
use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod, pod_with};
use super::texts::{at, rather, sized};
use super::traces::Traces;
use crate::stand::cloud::NAMESPACE;
use crate::stand::objects::{self, list, within};
use crate::stand::{DRIVER, SECOND};

/// Held by the row whose turn it is.
static TURN: Mutex<()> = Mutex::const_new(());
/// How long claims may take that find a full node first.
const BOUND: Duration = Duration::from_secs(30);
/// The scheduler's message for nodes without capacity.
const NO_ROOM: &str = "did not have enough free storage";

/// A pod has a volume of each of its node's two drivers. A claim for a driver that its node lacks
/// gets a volume at another node only.
pub(super) async fn two(scene: &Scene<'_>) -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    scene
        .apply(
            &[claim("first", "late"), claim("second", "second"), claim("third", "second")]
                .join("---\n"),
        )
        .await?;
    scene.apply(&at(&of_both(), "n1")).await?;
    scene.apply(&at(&pod("stuck", "third", WRITE, READ), "n3")).await?;
    scene.ready(&["both"]).await?;
    for (name, driver) in [("first", DRIVER), ("second", SECOND)] {
        let traces = Traces::of(scene, name).await?;
        let home = traces.home(scene.cluster)?.name;
        ensure!(
            (traces.driver.as_str(), home) == (driver, "n1"),
            "{name} is {} at {home}",
            traces.driver
        );
    }
    without_node(scene, "stuck", NO_ROOM).await?;
    scene.delete::<Pod>("stuck").await?;
    scene.apply(&pod("free", "third", WRITE, READ)).await?;
    let nodes = scene.ready(&["free"]).await?;
    ensure!(nodes != ["n3"], "the pod is where its driver is not");
    Ok(())
}

/// A pod with two claims, which writes to both.
fn of_both() -> String {
    let mounts = "volumeMounts: [{name: one, mountPath: /data}, {name: two, mountPath: /two}]";
    let volumes = "[{name: one, persistentVolumeClaim: {claimName: first}}, \
                    {name: two, persistentVolumeClaim: {claimName: second}}]";
    let write = "echo written > /data/file && cp /data/file /two/file && exec sleep 2147483647";
    pod_with("both", mounts, volumes, write, "cmp /data/file /two/file")
}

/// Kubernetes knows the capacity at each node with the driver. A pod whose volume does not fit at
/// its preferred node goes elsewhere, and waits if it fits nowhere.
pub(super) async fn room(scene: &Scene<'_>) -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    for node in ["n1", "n2"] {
        room_is(scene, node, "256Mi").await?;
    }
    let large = |name: &str| sized(&claim(name, "second"), "200Mi");
    for (name, wanted) in [("one", "n1"), ("two", "n2")] {
        scene.apply(&large(name)).await?;
        scene.apply(&rather(&pod(name, name, WRITE, READ), "n1")).await?;
        let nodes = scene.ready(&[name]).await?;
        ensure!(nodes == [wanted], "there is room at {wanted} for {name}, and it is at {nodes:?}");
        room_is(scene, wanted, "56Mi").await?;
    }
    scene.apply(&large("three")).await?;
    scene.apply(&pod("three", "three", WRITE, READ)).await?;
    without_node(scene, "three", NO_ROOM).await?;
    let waiting = format!("{}/three", scene.namespace());
    explains(scene, &["pod", &waiting], "unschedulable", None).await?;
    // The capacity of a deleted volume serves a waiting pod.
    scene.delete::<Pod>("one").await?;
    scene.delete::<k8s_openapi::api::core::v1::PersistentVolumeClaim>("one").await?;
    let nodes = scene.ready(&["three"]).await?;
    ensure!(nodes == ["n1"], "there is room at n1, and the pod is at {nodes:?}");
    Ok(())
}

/// Waits until Kubernetes knows of so much room at a node.
async fn room_is(scene: &Scene<'_>, node: &str, wanted: &str) -> anyhow::Result<()> {
    let all = Api::<CSIStorageCapacity>::namespaced(scene.cluster.client.clone(), NAMESPACE);
    let asked = || async {
        let of = |one: &CSIStorageCapacity| {
            let labels =
                one.node_topology.as_ref().and_then(|topology| topology.match_labels.as_ref());
            one.storage_class_name == "second"
                && labels.is_some_and(|labels| labels.values().any(|value| value == node))
        };
        let found = list(&all).await?.into_iter().find(of).context("no CSIStorageCapacity")?;
        let room = found.capacity.map(|room| room.0).unwrap_or_default();
        ensure!(room == wanted, "it is {room}");
        Ok(())
    };
    within(&format!("room of {wanted} at {node}"), SOON, asked).await
}

/// Claims that choose no node are bound at once though one of the two nodes is full.
pub(super) async fn full_node(scene: &Scene<'_>) -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    for node in ["n1", "n2"] {
        room_is(scene, node, "256Mi").await?;
    }
    let class = format!(
        "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: second-now
provisioner: {SECOND}
volumeBindingMode: Immediate
"
    );
    scene.apply(&class).await?;
    let done = beside_full(scene).await;
    objects::delete(&scene.cluster.client, "default", &class).await?;
    done
}

async fn beside_full(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&sized(&claim("filler", "second"), "250Mi")).await?;
    scene.apply(&at(&pod("filler", "filler", WRITE, READ), "n1")).await?;
    scene.ready(&["filler"]).await?;
    let names: Vec<_> = (0..6).map(|number| format!("now-{number}")).collect();
    let begun = Instant::now();
    for name in &names {
        scene.apply(&sized(&claim(name, "second-now"), "32Mi")).await?;
    }
    for name in &names {
        let home = Traces::of(scene, name).await?.home(scene.cluster)?.name;
        ensure!(home == "n2", "n1 is full, and {name} is at {home}");
    }
    let took = begun.elapsed();
    ensure!(took <= BOUND, "the claims were bound after {took:?}");
    Ok(())
}

/// CSINode has the driver's limit of volumes. A pod with one more waits until another one is
/// deleted.
pub(super) async fn limits(scene: &Scene<'_>) -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    let node = Api::<CSINode>::all(scene.cluster.client.clone()).get("n2").await?;
    let driver = node.spec.drivers.into_iter().find(|driver| driver.name == SECOND);
    let count = driver.and_then(|driver| driver.allocatable).and_then(|most| most.count);
    ensure!(count == Some(2), "CSINode says {count:?}");
    for name in ["one", "two"] {
        scene.apply(&claim(name, "second")).await?;
        scene.apply(&at(&pod(name, name, WRITE, READ), "n2")).await?;
    }
    scene.ready(&["one", "two"]).await?;
    scene.apply(&claim("three", "second")).await?;
    scene.apply(&at(&pod("three", "three", WRITE, READ), "n2")).await?;
    without_node(scene, "three", "exceed max volume count").await?;
    scene.delete::<Pod>("one").await?;
    scene.ready(&["two", "three"]).await?;
    Ok(())
}
