//! Several pods and claims at once.

use std::collections::BTreeSet;

use anyhow::ensure;

use super::pods::{READ, STAY, WRITE};
use super::scene::{Scene, claim, pod_spec, pod_with};
use crate::cluster::NODES;

/// How many claims each node gets at once.
const CLAIMS: usize = 20;

/// A StatefulSet of three goes over three nodes, each pod with a volume of its own.
pub(super) async fn three_nodes(scene: &Scene<'_>) -> anyhow::Result<()> {
    let mounts = "volumeMounts: [{name: data, mountPath: /data}]";
    let spec = pod_spec("      ", mounts, "[]", WRITE, READ);
    scene
        .apply(&format!(
            "apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: web
spec:
  replicas: 3
  serviceName: web
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
{spec}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app: web
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: late
        resources:
          requests:
            storage: 16Mi
"
        ))
        .await?;
    let nodes: BTreeSet<_> = scene.ready(&["web-0", "web-1", "web-2"]).await?.into_iter().collect();
    ensure!(nodes.len() == NODES.len(), "they are at {nodes:?}");
    Ok(())
}

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
