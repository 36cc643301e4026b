//! The volumes of deploy/examples as users find them there. Three things differ, because nothing
//! else is available: the drivers' names, the network and the image. Pods use their node's network
//! and the stand's image.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::look::{Thing, until};
use super::pods::STAY;
use super::scene::{Scene, pod};
use super::shares;
use crate::stand::image::IMAGE;
use crate::stand::node::Node as StandNode;
use crate::stand::objects;
use crate::stand::{DRIVER, NODES, SHARES};

/// The image in the examples, as a container runtime knows it.
const NAMED: &str = "docker.io/library/busybox:1.37.0";

/// Applies all examples, waits until their pods are ready, and checks the data in them.
pub(super) async fn as_they_stand(scene: &Scene<'_>) -> anyhow::Result<()> {
    let mut texts = Vec::new();
    for name in ["nfs-static", "node-directories", "snapshot", "stateful"] {
        texts
            .push(adapted(&scene.cluster.ground.source(&format!("deploy/examples/{name}.yaml"))?)?);
    }
    for node in &scene.cluster.nodes {
        has_image(scene, node).await?;
    }
    let done = applied(scene, &texts).await;
    for text in texts.iter().rev() {
        objects::delete(&scene.cluster.client, scene.namespace(), text).await?;
    }
    shares::volume_gone(scene.cluster, "site-archive").await?;
    done
}

/// Gives the image at a node the name that the examples have for it.
pub(super) async fn has_image(scene: &Scene<'_>, node: &StandNode) -> anyhow::Result<()> {
    let socket = scene.cluster.ground.at(&format!("{}/containerd.sock", node.name));
    let args = ["--address", &socket, "-n", "k8s.io", "image", "tag", "--force", IMAGE, NAMED];
    node.worker.space.run("ctr", &args).await.map(drop)
}

async fn applied(scene: &Scene<'_>, texts: &[String]) -> anyhow::Result<()> {
    let [archive, directories, snapshot, stateful] = texts else {
        anyhow::bail!("not four examples")
    };
    shares::share(scene.cluster, "srv/archive").await?;
    // The server's site is one node, and the example names it only by its selector.
    labelled(scene, shares::NODE).await?;
    scene.apply(archive).await?;
    scene.ready(&["reader"]).await?;
    shares::unattached(scene.cluster).await?;
    for plan in &NODES {
        labelled(scene, plan.name).await?;
    }
    scene.apply(directories).await?;
    scene.apply(stateful).await?;
    let home = scene.ready(&["writer"]).await?;
    scene.apply(snapshot).await?;
    let taken = Thing("snapshot.storage.k8s.io/v1", "VolumeSnapshot", "notes-of-today");
    until(scene, taken, "/status/readyToUse", |ready| ready == true).await?;
    scene.apply(&pod("again", "notes-again", STAY, "test -s /data/notes")).await?;
    let again = scene.ready(&["again"]).await?;
    ensure!(home == again, "the notes are at {home:?}, what was restored of them at {again:?}");
    let mut nodes = scene.ready(&["ledger-0", "ledger-1", "ledger-2"]).await?;
    nodes.sort();
    ensure!(nodes == NODES.map(|plan| plan.name), "the set is at {nodes:?}");
    Ok(())
}

/// Nodes with csi-edge have a label from the operator.
async fn labelled(scene: &Scene<'_>, node: &str) -> anyhow::Result<()> {
    let labels = json!({"metadata": {"labels": {"edge-csi.io/edge": "true"}}});
    let nodes = Api::<Node>::all(scene.cluster.client.clone());
    let done = nodes.patch_metadata(node, &PatchParams::default(), &Patch::Merge(&labels)).await;
    done.map(drop).with_context(|| format!("cannot label {node}"))
}

/// With this stand's drivers, and pods in their node's network.
pub(super) fn adapted(text: &str) -> anyhow::Result<String> {
    let text = text.replace("hostpath.csi.k8s.io", DRIVER).replace("nfs.csi.k8s.io", SHARES);
    let mut objects = objects::parse(&text)?;
    for object in &mut objects {
        let pod = match object.get("kind").and_then(Value::as_str) {
            Some("Pod") => object.pointer_mut("/spec"),
            _ => object.pointer_mut("/spec/template/spec"),
        };
        if let Some(Value::Object(pod)) = pod {
            pod.insert("hostNetwork".to_owned(), Value::Bool(true));
        }
    }
    Ok(objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n"))
}
