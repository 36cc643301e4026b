//! Many claims at once.

use anyhow::ensure;

use super::pods::STAY;
use super::scene::{Scene, claim, pod_with};
use crate::stand::NODES;

/// How many claims each node gets at once.
const CLAIMS: usize = 20;

/// 20 claims at each of three nodes at once, all of a node's in one pod.
pub(super) async fn many_at_once(scene: &Scene<'_>) -> anyhow::Result<()> {
    let mut text = String::new();
    for node in &NODES {
        let names: Vec<_> = (0..CLAIMS).map(|number| format!("{}-{number}", node.name)).collect();
        text.extend(names.iter().map(|name| claim(name, "late")));
        let mounts: Vec<_> =
            names.iter().map(|name| format!("{{name: {name}, mountPath: /{name}}}")).collect();
        let volumes = names
            .iter()
            .map(|name| format!("{{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}"));
        let volumes = volumes.collect::<Vec<_>>().join(", ");
        let mounts = format!("volumeMounts: [{}]", mounts.join(", "));
        text += &pod_with(node.name, &mounts, &format!("[{volumes}]"), STAY, "true");
        text += &format!("  nodeSelector:\n    kubernetes.io/hostname: {}\n", node.name);
    }
    scene.apply(&text).await?;
    let names: Vec<_> = NODES.iter().map(|node| node.name).collect();
    let nodes = scene.ready(&names).await?;
    ensure!(nodes == names, "they are at {nodes:?}");
    Ok(())
}
