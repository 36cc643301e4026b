//! A driver at three nodes with external-provisioner, and what callers and the driver say of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::identity_client::IdentityClient;
use harness::process::Process;
use harness::stand::{Cloud, Stand, channel};
use harness::wait::{STOP, until};
use harness::world::section;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::DeleteParams;
use proto::csi::{CreateVolumeRequest, ProbeRequest};
use proto::host::publish::{Existing, publish};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use super::plane::{NODES, Plane, topology_key};
use crate::stand::cloud::{provisioner, sidecar};
use crate::stand::objects::{self, list, within};
use crate::stand::program::Program;

/// The namespace of all claims.
const NAMESPACE: &str = "default";
/// How the scheduler writes the node that it chose for a claim.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// What no state takes.
const LONG: Duration = Duration::from_secs(90);

/// A driver at three nodes, and the way of its claims to it.
pub(super) struct ClaimScene {
    plane: Arc<Plane>,
    stand: Stand,
    /// All objects of the scene begin with it, and its driver's name.
    name: String,
    nodes: Vec<ClaimNode>,
    cloud: Option<Cloud>,
    sidecars: Vec<Program>,
}

/// A node of a scene.
struct ClaimNode {
    name: &'static str,
    driver: Option<Process>,
    edge: Option<Process>,
}

/// A line of the driver's own log.
#[derive(Deserialize)]
struct DriverLine<'a> {
    event: &'a str,
    method: &'a str,
    about: &'a str,
    #[serde(default)]
    code: &'a str,
}

impl ClaimScene {
    /// Starts the drivers, the provisioners and, with a scheme, our programs between them. Returns
    /// when a claim of each node is bound.
    ///
    /// # Errors
    /// Something does not start, or a claim is not bound in time.
    pub(super) async fn start(
        plane: Arc<Plane>,
        name: String,
        scheme: Option<&str>,
    ) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let (nodes, sidecars) = (Vec::new(), Vec::new());
        let mut scene = Self { plane, stand, name, nodes, cloud: None, sidecars };
        for name in NODES {
            let driver = Some(scene.start_driver(name)?);
            scene.nodes.push(ClaimNode { name, driver, edge: None });
        }
        if let Some(scheme) = scheme {
            scene.link(scheme).await?;
        }
        scene.provision().await?;
        for class in [scene.class("now", "Immediate"), scene.class("late", "WaitForFirstConsumer")]
        {
            scene.apply(&class).await?;
        }
        for node in NODES {
            scene.claim(node, Some(node)).await?;
        }
        scene.bound(&NODES).await.with_context(|| scene.log_tails())?;
        Ok(scene)
    }

    fn start_driver(&self, node: &str) -> anyhow::Result<Process> {
        let mut command = Command::new(self.plane.ground.tool("fielddriver"));
        command.arg(format!("--endpoint=unix://{}", self.driver_socket(node)));
        let log = self.stand.at(&format!("{node}.log"));
        command.args([format!("--node-id={node}"), format!("--log={log}")]);
        command.arg(format!("--name={}", self.driver())).args(["--topology", "--snapshots"]);
        Process::start(&format!("driver-{node}"), command, self.stand.dir())
    }

    /// Starts csi-cloud, and csi-edge at each node.
    async fn link(&mut self, scheme: &str) -> anyhow::Result<()> {
        let driver = self.driver();
        let config = self.stand.at("cloud.toml");
        let key = topology_key(&driver);
        let topology = format!("topology = {{ \"{key}\" = \"node\" }}\nfailover_s = 1\n");
        let text = section(&driver, "node") + &topology;
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let listen = format!("{scheme}://{}:0", self.stand.host());
        let kubernetes = format!("--kubernetes={}", self.plane.control.kubeconfig.display());
        let more = ["--config", &config, &kubernetes, "--publish-csinode=off"];
        let cloud = self.stand.cloud(&[&listen], &[&driver], &more).await?;
        let url = cloud.urls.first().context("csi-cloud listens nowhere")?.clone();
        self.cloud = Some(cloud);
        for node in &mut self.nodes {
            let socket = self.stand.at(&format!("{}.sock", node.name));
            node.edge = Some(self.stand.edge(node.name, &url, &[(&driver, &socket)]).await?);
        }
        Ok(())
    }

    /// Starts external-provisioner where the controllers are, once they are ready.
    async fn provision(&mut self) -> anyhow::Result<()> {
        let controllers: Vec<_> = match self.cloud {
            Some(_) => vec![(None, self.stand.cloud_front(&self.driver()))],
            None => NODES.iter().map(|node| (Some(*node), self.driver_socket(node))).collect(),
        };
        let Plane { ground, control, .. } = &*self.plane;
        for (node, socket) in controllers {
            until("the driver is ready", || async {
                let mut identity = IdentityClient::new(channel(&socket).await?);
                let probed = identity.probe(ProbeRequest {}).await?.into_inner();
                ensure!(probed.ready != Some(false), "it is not ready");
                Ok(())
            })
            .await?;
            let launch = provisioner(ground, &control.kubeconfig, Path::new(&socket), node);
            let name = format!("provisioner-{}-{}", self.name, node.unwrap_or("cloud"));
            self.sidecars.push(Program::start(&name, &ground.logs(), launch).await?);
        }
        Ok(())
    }

    /// Starts one more sidecar, by its program: in the cloud, or without us next to the driver of a
    /// node, which then is the only one with it.
    ///
    /// # Errors
    /// It does not start.
    pub(super) async fn add_sidecar(&mut self, program: &str, node: &str) -> anyhow::Result<()> {
        let socket = match self.cloud {
            Some(_) => self.stand.cloud_front(&self.driver()),
            None => self.driver_socket(node),
        };
        let Plane { ground, control, .. } = &*self.plane;
        let launch = sidecar(ground, &control.kubeconfig, Path::new(&socket), program)?;
        let name = format!("{program}-{}", self.name);
        self.sidecars.push(Program::start(&name, &ground.logs(), launch).await?);
        Ok(())
    }

    /// True if our programs are on the way.
    pub(super) fn is_behind_us(&self) -> bool {
        self.cloud.is_some()
    }

    /// Makes a claim, of the class that binds late if a node is chosen for it.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) async fn claim(&self, name: &str, node: Option<&str>) -> anyhow::Result<()> {
        self.apply(&self.claim_object(name, node)).await
    }

    /// Makes a claim that restores a snapshot, at the chosen node.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) async fn restore(
        &self,
        name: &str,
        node: &str,
        snapshot: &str,
    ) -> anyhow::Result<()> {
        let mut claim = self.claim_object(name, Some(node));
        let group = "snapshot.storage.k8s.io";
        let source = json!({"apiGroup": group, "kind": "VolumeSnapshot", "name": snapshot});
        claim["spec"]["dataSource"] = source;
        self.apply(&claim).await
    }

    fn claim_object(&self, name: &str, node: Option<&str>) -> Value {
        let (class, annotations) = match node {
            Some(node) => ("late", json!({SELECTED_NODE: node})),
            None => ("now", json!({})),
        };
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": self.object(name), "annotations": annotations},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.object(class),
                "resources": {"requests": {"storage": "1Mi"}},
            },
        })
    }

    /// Writes an object as a user does.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) async fn apply(&self, object: &Value) -> anyhow::Result<()> {
        objects::apply(&self.plane.client, NAMESPACE, &object.to_string()).await
    }

    /// Deletes an object as a user does.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) async fn remove(&self, object: &Value) -> anyhow::Result<()> {
        objects::delete(&self.plane.client, NAMESPACE, &object.to_string()).await
    }

    /// Waits until an object, as it is now, is as wanted; it may be gone.
    ///
    /// # Errors
    /// It is not in time.
    pub(super) async fn until(
        &self,
        object: &Value,
        what: &str,
        is_wanted: impl Fn(Option<&Value>) -> bool,
    ) -> anyhow::Result<()> {
        let api = objects::api(&self.plane.client, object, NAMESPACE).await?;
        let name = objects::name(object)?;
        within(what, LONG, || async {
            let found = api.get_opt(name).await?.map(|found| found.data);
            ensure!(is_wanted(found.as_ref()), "it is {found:?}");
            Ok(())
        })
        .await
    }

    /// Waits until claims are bound, and returns their volumes.
    ///
    /// # Errors
    /// They are not in time.
    pub(super) async fn bound(&self, names: &[&str]) -> anyhow::Result<Vec<PersistentVolume>> {
        let claims = self.claims();
        let volumes = self.volumes();
        within("bound claims", LONG, || async {
            let mut bound = Vec::new();
            for name in names {
                let claim = claims.get(&self.object(name)).await?;
                let phase = claim.status.and_then(|status| status.phase);
                ensure!(phase.as_deref() == Some("Bound"), "{name} is {phase:?}");
                let volume = claim.spec.and_then(|spec| spec.volume_name);
                bound.push(volumes.get(&volume.context("bound to nothing")?).await?);
            }
            Ok(bound)
        })
        .await
    }

    /// Deletes a claim.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.claims().delete(&self.object(name), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until a PersistentVolume is gone.
    ///
    /// # Errors
    /// It is not in time.
    pub(super) async fn gone(&self, volume: &str) -> anyhow::Result<()> {
        let volumes = self.volumes();
        within(&format!("end of {volume}"), LONG, || async {
            let found = volumes.get_opt(volume).await?;
            ensure!(found.is_none(), "its status is {:?}", found.and_then(|found| found.status));
            Ok(())
        })
        .await
    }

    /// Writes a PersistentVolume of a node by hand, and returns its name. With the policy Delete
    /// its claim is gone, so that Kubernetes deletes it.
    ///
    /// # Errors
    /// The API server refuses it.
    pub(super) async fn write_volume(
        &self,
        handle: &str,
        node: &str,
        policy: &str,
    ) -> anyhow::Result<String> {
        let name = self.object(&format!("by-hand-{node}"));
        let mut object = self.volume_object(&name, handle, policy);
        let annotations = json!({"pv.kubernetes.io/provisioned-by": self.driver()});
        object["metadata"]["annotations"] = annotations;
        let affinity = json!({"required": {"nodeSelectorTerms": self.terms(node)}});
        object["spec"]["nodeAffinity"] = affinity;
        if policy == "Delete" {
            let uid = "00000000-0000-0000-0000-000000000000";
            let claim = json!({"namespace": NAMESPACE, "name": "gone", "uid": uid});
            object["spec"]["claimRef"] = claim;
        }
        self.apply(&object).await?;
        Ok(name)
    }

    /// A PersistentVolume that names no node.
    pub(super) fn volume_object(&self, name: &str, handle: &str, policy: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Mi"},
                "persistentVolumeReclaimPolicy": policy,
                "csi": {"driver": self.driver(), "volumeHandle": handle},
            },
        })
    }

    /// Waits until Kubernetes tells that a PersistentVolume could not be deleted.
    ///
    /// # Errors
    /// It does not in time.
    pub(super) async fn delete_failed(&self, volume: &str) -> anyhow::Result<()> {
        let events = Api::<Event>::all(self.plane.client.clone());
        within(&format!("Event of {volume}"), LONG, || async {
            let is_told = list(&events).await?.iter().any(|event| {
                event.reason.as_deref() == Some("VolumeFailedDelete")
                    && event.involved_object.name.as_deref() == Some(volume)
            });
            ensure!(is_told, "there is none");
            Ok(())
        })
        .await
    }

    /// Tells csi-cloud which node has a volume, as an operator does.
    ///
    /// # Errors
    /// It refuses that.
    pub(super) async fn adopt(&self, handle: &str, node: &str) -> anyhow::Result<()> {
        let admin = self.stand.at("cloud/_admin.sock");
        let driver = self.driver();
        let args = ["volume", "adopt", &driver, handle, "--node", node, "--admin", &admin];
        self.stand.run("csi-cloud", &args).await.map(drop)
    }

    /// The nodes whose driver answered OK to a call of this method about this.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(super) fn who_did(&self, method: &str, about: &str) -> anyhow::Result<Vec<&'static str>> {
        let mut did = Vec::new();
        for node in NODES {
            let text = std::fs::read_to_string(self.stand.at(&format!("{node}.log")))?;
            for line in text.lines() {
                let DriverLine { event, method: of, about: what, code } =
                    serde_json::from_str(line).context("the driver's log")?;
                if (event, of, what, code) == ("end", method, about, "OK") {
                    did.push(node);
                    break;
                }
            }
        }
        Ok(did)
    }

    /// The volumes that are not at exactly the one node that their PersistentVolume names.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(super) fn misplaced(&self, volumes: &[PersistentVolume]) -> anyhow::Result<Vec<String>> {
        let mut misplaced = Vec::new();
        for volume in volumes {
            let volume = serde_json::to_value(volume)?;
            let terms = volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms");
            let made = self.who_did("CreateVolume", handle(&volume)?)?;
            let is_true = matches!(made[..], [node] if terms == Some(&self.terms(node)));
            if !is_true {
                misplaced.push(format!("made at {made:?}, said is {terms:?}"));
            }
        }
        Ok(misplaced)
    }

    /// Takes all the room that a node has.
    ///
    /// # Errors
    /// Its driver does not answer.
    pub(super) async fn fill(&self, node: &str) -> anyhow::Result<()> {
        let mut controller = ControllerClient::new(channel(&self.driver_socket(node)).await?);
        let request = CreateVolumeRequest { name: "fill".into(), ..Default::default() };
        controller.create_volume(request).await?;
        Ok(())
    }

    /// Takes a node away: its driver, or its link if our programs are on the way.
    ///
    /// # Errors
    /// No node has this name, or its csi-edge does not end well.
    pub(super) async fn take_away(&mut self, name: &str) -> anyhow::Result<()> {
        let mut nodes = self.nodes.iter_mut();
        let node = nodes.find(|node| node.name == name).context("no node has this name")?;
        match node.edge.take() {
            Some(edge) => edge.stop(STOP).await,
            None => node.driver.take().context("its driver was taken away before")?.kill().await,
        }
    }

    /// The ends of the logs.
    pub(super) fn log_tails(&self) -> String {
        let sidecars = self.sidecars.iter();
        let logs = sidecars.map(|program| (program.name(), program.log_tail()));
        let logs = logs.chain(self.cloud.iter().map(|cloud| ("cloud", cloud.process.log_tail())));
        logs.map(|(name, log)| format!("--- {name}\n{log}")).collect::<Vec<_>>().join("\n")
    }

    /// Ends everything.
    ///
    /// # Errors
    /// A program does not end well.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        for sidecar in &self.sidecars {
            sidecar.ended().await?;
        }
        let (edges, drivers): (Vec<_>, Vec<_>) =
            self.nodes.into_iter().map(|node| (node.edge, node.driver)).unzip();
        for process in edges.into_iter().flatten().chain(self.cloud.map(|cloud| cloud.process)) {
            process.stop(STOP).await?;
        }
        for driver in drivers.into_iter().flatten() {
            driver.kill().await?;
        }
        Ok(())
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.plane.client.clone(), NAMESPACE)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.plane.client.clone())
    }

    /// The name of its driver.
    pub(super) fn driver(&self) -> String {
        driver_of(&self.name)
    }

    fn driver_socket(&self, node: &str) -> String {
        self.stand.at(&format!("{node}.sock"))
    }

    /// The name of an object of this scene.
    pub(super) fn object(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    fn class(&self, name: &str, binding: &str) -> Value {
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": self.object(name)},
            "provisioner": self.driver(),
            "volumeBindingMode": binding,
        })
    }

    /// The node affinity of a volume at a node.
    fn terms(&self, node: &str) -> Value {
        let key = topology_key(&self.driver());
        json!([{"matchExpressions": [{"key": key, "operator": "In", "values": [node]}]}])
    }
}

/// The id by which the driver knows a PersistentVolume.
fn handle(volume: &Value) -> anyhow::Result<&str> {
    let handle = volume.pointer("/spec/csi/volumeHandle");
    handle.and_then(Value::as_str).context("a volume without a handle")
}

/// The driver of a scene.
pub(super) fn driver_of(scene: &str) -> String {
    format!("{scene}.edge-csi.io")
}
