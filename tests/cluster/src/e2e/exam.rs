//! An operator's exam: states as users meet them, each explained by `csi-cloud explain`. It must
//! name the cause and the node in its last line.

use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::faults::{at_node, hostdir, told_of};
use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod};
use super::texts::sized;
use crate::stand::DRIVER;
use crate::stand::objects::within;

/// How long a state may take to be seen.
const SOON: Duration = Duration::from_secs(90);

/// A class that names a parameter of ours wrongly.
const MISSPELT: &str = "---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: misspelt
provisioner: hostdir.edge-csi.io
parameters:
  edge-csi.io/direct-knd: block
";

/// Seven states at once: two wrong classes, a pod without a node, and a claim without a pod. One
/// node is away, one driver is dead, and one stands still.
pub(super) async fn states(scene: &Scene<'_>) -> anyhow::Result<()> {
    let stopped = scene.cluster.node("n1")?;
    let dead = scene.cluster.node("n2")?;
    let away = scene.cluster.node("n3")?;
    let examined = async {
        hostdir(stopped)?.signal(Signal::STOP).await?;
        hostdir(dead)?.kill().await?;
        away.relay.cut();
        scene.apply(MISSPELT).await?;
        scene.apply(&claim("class-gone", "no-such-class")).await?;
        scene.apply(&claim("misspelt", "misspelt")).await?;
        scene.apply(&claim("no-pod", "late")).await?;
        for (name, node) in [("stopped", stopped), ("away", away)] {
            scene.apply(&at_node(name, node)).await?;
        }
        let large = sized(&claim("large", "late"), "999Ti");
        scene.apply(&(large + &pod("large", "large", WRITE, READ))).await?;
        told_of(scene, "away", "EdgeAway").await?;
        told_of(scene, "misspelt", "direct-kind").await?;
        told_of(scene, "stopped", "DriverDown").await?;
        for (kind, name, cause, node) in [
            ("pvc", "class-gone", "no-class", None),
            ("pvc", "misspelt", "call-failed", None),
            ("pvc", "no-pod", "no-pod", None),
            ("pod", "large", "unschedulable", None),
            ("pod", "away", "node-away", Some("n3")),
            ("pod", "stopped", "driver-down", Some("n1")),
        ] {
            let subject = format!("{}/{name}", scene.namespace());
            explains(scene, &[kind, &subject], cause, node).await?;
        }
        explains(scene, &["node", "n2"], "driver-down", Some("n2")).await?;
        explains(scene, &["node", "n3"], "node-away", Some("n3")).await?;
        explains(scene, &["driver", DRIVER], "driver-down", Some("n1")).await
    };
    let examined = examined.await;
    // Later rows need them, whatever was found.
    scene.cluster.mend().await?;
    examined?;
    scene.cluster.ready().await?;
    scene.ready(&["stopped", "away"]).await?;
    let subject = format!("{}/away", scene.namespace());
    explains(scene, &["pod", &subject], "fine", None).await
}

/// Waits until `csi-cloud explain` names this cause and this node, in its last line.
pub(super) async fn explains(
    scene: &Scene<'_>,
    subject: &[&str],
    cause: &str,
    node: Option<&str>,
) -> anyhow::Result<()> {
    let cluster = scene.cluster;
    within(&format!("{subject:?}: {cause}"), SOON, || async {
        let asked = [&["explain"], subject].concat();
        let as_json = [&asked[..], &["-o", "json"]].concat();
        let said = cluster.cloud.says(&cluster.ground, &as_json).await?;
        let said: Value = serde_json::from_str(&said)?;
        let verdict = &said["verdict"];
        ensure!(verdict["cause"] == cause && verdict["node"] == json!(node), "{said}");
        let table = cluster.cloud.says(&cluster.ground, &asked).await?;
        let last = table.lines().last().context("it says nothing")?;
        let text = verdict["text"].as_str().context("no text")?;
        ensure!(last.starts_with(text), "{table}");
        ensure!(node.is_none_or(|node| last.contains(&format!("node {node}"))), "{table}");
        Ok(())
    })
    .await
}
