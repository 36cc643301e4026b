//! Placement: sets over all nodes, classes with immediate and late binding, classes of some nodes
//! only.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use serde_json::json;

use super::faults::hostdir;
use super::look::{Thing, claim as claim_named, until};
use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, pod};
use super::texts::at;
use super::traces::Traces;
use crate::stand::NODES;
use crate::stand::objects;

/// The drivers' flag by which they answer with what the caller prefers.
const ECHO: &str = "--echo-preferred";
/// The first values of a term of a node affinity.
const EXPRESSIONS: &str = "matchExpressions/0/values";
/// The pods of the set.
const MEMBERS: [&str; 3] = ["member-0", "member-1", "member-2"];

/// A StatefulSet has a pod and a volume at each node; all of them are there again after it was
/// scaled to none.
pub(super) async fn spread(scene: &Scene<'_>) -> anyhow::Result<()> {
    let script = "test -e /data/file || hostname > /data/file; exec sleep 2147483647";
    scene.apply(&set(3, script)).await?;
    let nodes = scene.ready(&MEMBERS).await?;
    let all: BTreeSet<_> = nodes.iter().map(String::as_str).collect();
    ensure!(all.len() == NODES.len(), "the pods are at {nodes:?}");
    for (member, node) in MEMBERS.iter().zip(&nodes) {
        let traces = Traces::of(scene, &format!("data-{member}")).await?;
        let home = traces.home(scene.cluster)?.name;
        ensure!(home == node, "{member} is at {node}, its volume at {home}");
    }
    scene.apply(&set(0, script)).await?;
    for member in MEMBERS {
        scene.gone::<Pod>(member).await?;
    }
    // Nobody writes now: what is there was.
    scene.apply(&set(3, STAY)).await?;
    let again = scene.ready(&MEMBERS).await?;
    ensure!(nodes == again, "the volumes are at {nodes:?}, the pods at {again:?}");
    scene.delete::<StatefulSet>("member").await
}

fn set(replicas: u8, script: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: member
spec:
  serviceName: member
  replicas: {replicas}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{app: member}}
  template:
    metadata:
      labels: {{app: member}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: DoNotSchedule
          labelSelector:
            matchLabels: {{app: member}}
      containers:
        - name: box
          image: {image}
          imagePullPolicy: Never
          command: [sh, -c, '{script}']
          readinessProbe:
            exec:
              command: [test, -s, /data/file]
            periodSeconds: 1
          volumeMounts:
            - name: data
              mountPath: /data
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOncePod]
        storageClassName: late
        resources:
          requests:
            storage: 16Mi
",
        image = crate::stand::image::IMAGE
    )
}

/// A class with immediate binding makes the volume first, and the pod follows it. A claim of a
/// class with late binding waits for its pod.
pub(super) async fn binding(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.apply(&claim("late", "late")).await?;
    scene.apply(&claim("now", "now")).await?;
    let traces = Traces::of(scene, "now").await?;
    let late = scene.api::<PersistentVolumeClaim>().get("late").await?;
    let phase = late.status.and_then(|status| status.phase);
    ensure!(phase.as_deref() == Some("Pending"), "a claim without a pod is {phase:?}");
    scene.apply(&pod("follower", "now", WRITE, READ)).await?;
    scene.apply(&at(&pod("leader", "late", WRITE, READ), "n2")).await?;
    let nodes = scene.ready(&["follower", "leader"]).await?;
    let home = traces.home(scene.cluster)?.name;
    ensure!(nodes == [home, "n2"], "the volumes are at {home} and n2, the pods at {nodes:?}");
    Ok(())
}

/// Volumes of a class with allowedTopologies are at its nodes only, whether it binds at once or
/// late.
pub(super) async fn allowed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let classes =
        [class("only-n3-now", "Immediate"), class("only-n3-late", "WaitForFirstConsumer")]
            .join("---\n");
    scene.apply(&classes).await?;
    let done = at_allowed(scene).await;
    objects::delete(&scene.cluster.client, "default", &classes).await?;
    done
}

async fn at_allowed(scene: &Scene<'_>) -> anyhow::Result<()> {
    for binding in ["now", "late"] {
        let name = &format!("only-{binding}");
        scene.apply(&claim(name, &format!("only-n3-{binding}"))).await?;
        scene.apply(&pod(name, name, WRITE, READ)).await?;
        let nodes = scene.ready(&[name]).await?;
        ensure!(nodes == ["n3"], "the class is for n3, the pod is at {nodes:?}");
        let home = Traces::of(scene, name).await?.home(scene.cluster)?.name;
        ensure!(home == "n3", "the class is for n3, the volume is at {home}");
    }
    // The scheduler knows of no such node either.
    scene.apply(&claim("elsewhere", "only-n3-late")).await?;
    scene.apply(&at(&pod("elsewhere", "elsewhere", WRITE, READ), "n1")).await?;
    super::look::without_node(scene, "elsewhere", "available").await?;
    until(scene, claim_named("elsewhere"), "/spec/volumeName", serde_json::Value::is_null).await?;
    until(scene, Thing("v1", "Pod", "elsewhere"), "/spec/nodeName", serde_json::Value::is_null)
        .await
        .map(drop)
}

/// The drivers answer a create with the first node that external-provisioner prefers, wherever they
/// are. With a node away, each PersistentVolume names the node that has the volume.
pub(super) async fn first_away(scene: &Scene<'_>) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    let echo = |args: &mut Vec<String>| args.push(ECHO.to_owned());
    let truthful = |args: &mut Vec<String>| args.retain(|arg| arg != ECHO);
    for node in &cluster.nodes {
        hostdir(node)?.reargue(echo).await?;
        hostdir(node)?.restart().await?;
    }
    let placed = async {
        cluster.node("n2")?.relay.cut();
        placed_truly(scene).await
    };
    let placed = placed.await;
    // Later rows need them as they were, whatever was found.
    cluster.node("n2")?.relay.mend();
    for node in &cluster.nodes {
        hostdir(node)?.reargue(truthful).await?;
        hostdir(node)?.restart().await?;
    }
    placed
}

async fn placed_truly(scene: &Scene<'_>) -> anyhow::Result<()> {
    let names: Vec<_> = (0..6).map(|number| format!("now-{number}")).collect();
    for name in &names {
        scene.apply(&claim(name, "now")).await?;
    }
    let volumes = Api::<PersistentVolume>::all(scene.cluster.client.clone());
    let affinity = format!("/spec/nodeAffinity/required/nodeSelectorTerms/0/{EXPRESSIONS}");
    for name in &names {
        let traces = Traces::of(scene, name).await?;
        let home = traces.home(scene.cluster)?.name;
        let volume = serde_json::to_value(volumes.get(&traces.name).await?)?;
        let said = volume.pointer(&affinity).context("a volume for any node")?;
        ensure!(home != "n2" && *said == json!([home]), "{name} is at {home}, said is {said}");
    }
    Ok(())
}

fn class(name: &str, binding: &str) -> String {
    format!(
        "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: {name}
provisioner: {driver}
volumeBindingMode: {binding}
allowedTopologies:
  - matchLabelExpressions:
      - key: {key}
        values: [n3]
",
        driver = crate::stand::DRIVER,
        key = drivers::hostdir::TOPOLOGY_KEY
    )
}
