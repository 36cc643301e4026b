//! An operator's exam: states as users meet them, each explained by `csi-cloud explain`. It must
//! name the cause and the node in its last line, and the object that users look at must have an
//! Event. The catalogue says what is expected of each state.

mod catalogue;
mod check;
pub(super) mod links;
pub(super) mod nodes;
pub(super) mod volumes;

use rustix::process::Signal;

pub(super) use self::check::{explains, shows, told};
use super::faults::{at_node, hostdir, told_of};
use super::pods::{READ, WRITE};
use super::scene::{Scene, claim, pod};
use super::texts::sized;
use crate::stand::DRIVER;

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
        // The user reads which key is wrong.
        told_of(scene, "misspelt", "direct-kind").await?;
        for (state, kind, name, node) in [
            ("class-missing", "pvc", "class-gone", None),
            ("class-misspelt", "pvc", "misspelt", None),
            ("pod-missing", "pvc", "no-pod", None),
            ("no-capacity", "pod", "large", None),
            ("node-away", "pod", "away", Some("n3")),
            ("driver-silent", "pod", "stopped", Some("n1")),
        ] {
            let subject = format!("{}/{name}", scene.namespace());
            shows(scene, state, &[kind, &subject], node).await?;
        }
        shows(scene, "driver-dead", &["node", "n2"], Some("n2")).await?;
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
