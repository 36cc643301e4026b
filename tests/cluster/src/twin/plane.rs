//! The control plane that all scenes share, and the nodes' objects as kubelets write them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use crate::stand::cloud::snapshot_controller;
use crate::stand::control::Control;
use crate::stand::ground::Ground;
use crate::stand::objects::{self, within};
use crate::stand::program::Program;
use crate::stand::snapshot_kinds;

/// The nodes, each with the driver.
pub(super) const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// How long the first namespace may take.
const READY: Duration = Duration::from_secs(60);

/// A control plane with three nodes.
pub(super) struct Plane {
    pub(super) ground: Ground,
    pub(super) control: Control,
    pub(super) client: Client,
    snapshots: Program,
}

impl Plane {
    /// Starts it. Each of the drivers is at each node.
    ///
    /// # Errors
    /// A component does not get ready, or the API server refuses an object.
    pub(super) async fn start(ground: Ground, drivers: &[String]) -> anyhow::Result<Self> {
        let (control, client) = Control::alone(&ground).await?;
        let namespaces = Api::<Namespace>::all(client.clone());
        let default = || async { Ok(namespaces.get("default").await?) };
        within("the first namespace", READY, default).await?;
        snapshot_kinds(&ground, &client).await?;
        let launch = snapshot_controller(&ground, &control.kubeconfig);
        let snapshots = Program::start("snapshot-controller", &ground.logs(), launch).await?;
        for node in NODES {
            let labels = drivers.iter().map(|driver| (topology_key(driver), json!(node)));
            let labels: Map<String, Value> = labels.collect();
            let metadata = json!({"name": node, "labels": labels});
            let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
            objects::apply(&client, "", &object.to_string()).await?;
            let entries = drivers.iter().map(|driver| {
                json!({"name": driver, "nodeID": node, "topologyKeys": [topology_key(driver)]})
            });
            let object = json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": {"name": node},
                "spec": {"drivers": entries.collect::<Vec<_>>()},
            });
            objects::apply(&client, "", &object.to_string()).await?;
        }
        Ok(Self { ground, control, client, snapshots })
    }

    /// Ends it.
    ///
    /// # Errors
    /// A component had to be killed.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        for program in [&self.snapshots].into_iter().chain(self.control.programs()) {
            program.ended().await?;
        }
        Ok(())
    }
}

/// The driver's own key, by which it tells its nodes apart.
pub(super) fn topology_key(driver: &str) -> String {
    format!("{driver}/node")
}
