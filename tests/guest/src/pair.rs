//! csi-cloud, one hostdir as shared storage, and two nodes with a csi-edge each, whose links can be
//! cut.
//!
//! Both nodes have the same driver process, so one finds what the other writes, as with a SAN.
//! hostdir makes volumes for several writers, so only our lease keeps the two apart.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use proto::csi;
use serde_json::Value;
use tonic::transport::Channel;

use super::scene::{
    Clean, DRIVER, PodVolume, create_request, loops, publish_request, remove_pod, stage_request,
    staging,
};
use harness::process::Process;
use harness::relay::Relay;
use harness::stand::{Cloud, Stand, channel};
use harness::wait::{START, STOP, until};

/// A class whose volumes a hostdir would give to several pods.
pub const CLASS: [(&str, &str); 2] =
    [("edge-csi.io/direct", "kata"), ("edge-csi.io/direct-access", "ReadWriteOnce")];

const NODES: [&str; 2] = ["n1", "n2"];

/// Everything, up and linked.
pub struct Pair {
    /// The directory of everything.
    pub stand: Stand,
    /// The program.
    pub cloud: Cloud,
    driver: Process,
    edges: Vec<(Process, Relay)>,
    _clean: Clean,
}

impl Pair {
    /// Two nodes of a shared driver.
    ///
    /// # Errors
    /// A program does not start; the error holds its log.
    pub async fn new() -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        say_scope(&stand, "shared")?;
        let cloud = cloud(&stand, "wss://127.0.0.1:0").await?;
        let clean = Clean::of(stand.dir())?;
        let mut command = stand.program("hostdir")?;
        let endpoint = format!("unix://{}", stand.at("driver.sock"));
        command.args([
            "--endpoint",
            &endpoint,
            "--node-id",
            "both",
            "--state",
            &stand.at("hostdir"),
        ]);
        let mut driver = Process::start("hostdir", command, stand.dir())?;
        driver.line_starting("ready", START).await?;
        let mut edges = Vec::new();
        for node in NODES {
            let relay = Relay::to(cloud.urls.first().context("no listener")?).await?;
            let mut edge = edge(&mut stand, node, relay.url()).await?;
            edge.line_starting("linked ", START).await?;
            edges.push((edge, relay));
        }
        Ok(Self { stand, cloud, driver, edges, _clean: clean })
    }

    /// Kills csi-cloud and starts it again.
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart_cloud(&mut self) -> anyhow::Result<()> {
        self.restart_cloud_after(|_| Ok(())).await
    }

    /// The same, and its store is lost.
    ///
    /// # Errors
    /// It does not start.
    pub async fn forget_store(&mut self) -> anyhow::Result<()> {
        self.restart_cloud_after(|stand| Ok(std::fs::remove_file(stand.at("cloud.redb"))?)).await
    }

    /// The same with the operator's scope, `node` or `shared`.
    ///
    /// # Errors
    /// It does not start.
    pub async fn change_scope(&mut self, scope: &str) -> anyhow::Result<()> {
        self.restart_cloud_after(|stand| say_scope(stand, scope)).await
    }

    async fn restart_cloud_after(
        &mut self,
        between: impl FnOnce(&Stand) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let pid = self.cloud.process.pid().context("csi-cloud has ended")?;
        self.cloud.process.signal(rustix::process::Signal::KILL)?;
        self.cloud
            .process
            .ended(STOP)
            .await
            .with_context(|| format!("csi-cloud {pid} was not killed"))?;
        between(&self.stand)?;
        let url = self.cloud.urls.first().context("no listener")?.clone();
        self.cloud = cloud(&self.stand, &url).await?;
        Ok(())
    }

    /// Cuts a node off, and waits until csi-cloud knows.
    ///
    /// # Errors
    /// It does not notice.
    pub async fn cut(&self, node: usize) -> anyhow::Result<()> {
        self.edges[node].1.cut();
        self.is_away(node).await
    }

    /// Waits until csi-cloud knows that a node has no link.
    async fn is_away(&self, node: usize) -> anyhow::Result<()> {
        until("the node is away", || async {
            let nodes = self.json(&["nodes"]).await?;
            let nodes = nodes.as_array().context("no list")?;
            let it = nodes.iter().find(|it| it["name"] == NODES[node]).context("no such node")?;
            ensure!(it["state"] == "away", "{it}");
            Ok(())
        })
        .await
    }

    /// Lets a node link again.
    pub fn mend(&self, node: usize) {
        self.edges[node].1.mend();
    }

    /// Kills a csi-edge and starts it again; it may be cut off.
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart_edge(&mut self, node: usize) -> anyhow::Result<()> {
        self.kill_edge(node).await?;
        self.power_on(node).await
    }

    /// The same, with the state of a csi-edge from before leases.
    ///
    /// # Errors
    /// It does not start.
    pub async fn upgrade_edge(&mut self, node: usize) -> anyhow::Result<()> {
        self.kill_edge(node).await?;
        std::fs::remove_dir_all(self.of(node, "state").join("direct/owners"))?;
        self.power_on(node).await
    }

    async fn kill_edge(&mut self, node: usize) -> anyhow::Result<()> {
        self.edges[node].0.signal(rustix::process::Signal::KILL)?;
        self.edges[node].0.ended(STOP).await.context("csi-edge was not killed")?;
        Ok(())
    }

    /// Kills a csi-edge, and waits until csi-cloud knows.
    ///
    /// # Errors
    /// It does not notice.
    pub async fn power_off(&mut self, node: usize) -> anyhow::Result<()> {
        self.kill_edge(node).await?;
        self.is_away(node).await
    }

    /// Starts a csi-edge that was killed; it may not have linked yet.
    ///
    /// # Errors
    /// It does not start.
    pub async fn power_on(&mut self, node: usize) -> anyhow::Result<()> {
        let url = self.edges[node].1.url().to_owned();
        self.edges[node].0 = edge(&mut self.stand, NODES[node], &url).await?;
        Ok(())
    }

    /// Removes a pod's directory, as a kubelet does that does not know the pod.
    ///
    /// # Errors
    /// The system's.
    pub fn forget_pod(&self, node: usize, pod: &str) -> anyhow::Result<()> {
        remove_pod(&self.of(node, "kubelet").join("pods").join(pod))
    }

    /// The content of a file that csi-edge keeps at a node.
    ///
    /// # Errors
    /// The system's.
    pub fn kept(&self, node: usize, file: &str) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(self.of(node, "state").join(file))?)
    }

    /// The first of a node's direct volumes, as csi-edge shows it.
    ///
    /// # Errors
    /// There is none.
    pub async fn shown(&self, node: usize) -> anyhow::Result<Value> {
        let listed: Value =
            serde_json::from_str(&self.direct(node, &["list", "-o", "json"]).await?)?;
        listed.get(0).cloned().context("no direct volume")
    }

    /// The output of a csi-cloud command.
    ///
    /// # Errors
    /// It fails.
    pub async fn say(&self, command: &[&str]) -> anyhow::Result<String> {
        let admin = self.stand.at("cloud/_admin.sock");
        self.stand.run("csi-cloud", &[command, &["--admin", &admin]].concat()).await
    }

    /// The same as JSON.
    ///
    /// # Errors
    /// It fails.
    pub async fn json(&self, command: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.say(&[command, &["-o", "json"]].concat()).await?)?)
    }

    /// The output of a `csi-edge direct` command at a node.
    ///
    /// # Errors
    /// It fails.
    pub async fn direct(&self, node: usize, command: &[&str]) -> anyhow::Result<String> {
        let state = self.of(node, "state");
        let entries = self.of(node, "entries").display().to_string();
        let at =
            ["--state", &state.display().to_string(), "--entries", &entries].map(str::to_owned);
        let at: Vec<_> = at.iter().map(String::as_str).collect();
        self.stand.run("csi-edge", &[&["direct"], command, &at].concat()).await
    }

    fn of(&self, node: usize, what: &str) -> PathBuf {
        self.stand.dir().join(format!("{}-{what}", NODES[node]))
    }

    /// The block device of the one volume.
    ///
    /// # Errors
    /// There is none.
    pub fn device(&self) -> anyhow::Result<String> {
        let devices = loops(&self.stand.dir().canonicalize()?)?;
        Ok(devices.into_iter().next().context("no device")?.0)
    }

    /// How many entries a node's runtimes see.
    pub fn entries(&self, node: usize) -> usize {
        std::fs::read_dir(self.of(node, "entries")).map_or(0, Iterator::count)
    }

    async fn controller(&self) -> anyhow::Result<ControllerClient<Channel>> {
        Ok(ControllerClient::new(channel(&self.stand.cloud_front(DRIVER)).await?))
    }

    async fn node(&self, node: usize) -> anyhow::Result<NodeClient<Channel>> {
        Ok(NodeClient::new(channel(&self.stand.edge_front(NODES[node], DRIVER)).await?))
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// The call's.
    pub async fn create(
        &self,
        name: &str,
        class: &[(&str, &str)],
        capability: csi::VolumeCapability,
    ) -> anyhow::Result<PodVolume> {
        let request = create_request(name, class, &capability, 64);
        let volume = self.controller().await?.create_volume(request).await?.into_inner().volume;
        let volume = volume.context("no volume")?;
        Ok(PodVolume { id: volume.volume_id, context: volume.volume_context, capability })
    }

    /// Deletes a volume.
    ///
    /// # Errors
    /// The call's.
    pub async fn delete(&self, volume: &PodVolume) -> anyhow::Result<()> {
        let request =
            csi::DeleteVolumeRequest { volume_id: volume.id.clone(), ..Default::default() };
        self.controller().await?.delete_volume(request).await?;
        Ok(())
    }

    /// Stages a volume at a node.
    ///
    /// # Errors
    /// The call's.
    pub async fn stage(&self, node: usize, volume: &PodVolume) -> anyhow::Result<()> {
        let request = stage_request(&self.stand, volume)?;
        self.node(node).await?.node_stage_volume(request).await?;
        Ok(())
    }

    /// The target path of a pod, as its kubelet makes it.
    fn target(&self, node: usize, pod: &str) -> anyhow::Result<String> {
        let parent =
            self.of(node, "kubelet").join("pods").join(pod).join("volumes/kubernetes.io~csi/pv");
        std::fs::create_dir_all(&parent)?;
        Ok(parent.join("mount").display().to_string())
    }

    /// Publishes a volume to a pod of a node.
    ///
    /// # Errors
    /// The call's.
    pub async fn publish(&self, node: usize, volume: &PodVolume, pod: &str) -> anyhow::Result<()> {
        let target = self.target(node, pod)?;
        let request = publish_request(&self.stand, volume, target)?;
        self.node(node).await?.node_publish_volume(request).await?;
        Ok(())
    }

    /// Takes a volume from a pod of a node.
    ///
    /// # Errors
    /// The call's.
    pub async fn unpublish(
        &self,
        node: usize,
        volume: &PodVolume,
        pod: &str,
    ) -> anyhow::Result<()> {
        let volume_id = volume.id.clone();
        let target_path = self.target(node, pod)?;
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        self.node(node).await?.node_unpublish_volume(request).await?;
        Ok(())
    }

    /// Unstages a volume that is unpublished at both, and deletes it.
    ///
    /// # Errors
    /// The first call's that fails.
    pub async fn end(&self, volume: &PodVolume) -> anyhow::Result<()> {
        for node in [0, 1] {
            let volume_id = volume.id.clone();
            let staging_target_path = staging(&self.stand, volume)?;
            let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
            self.node(node).await?.node_unstage_volume(request).await?;
        }
        until("it is deleted", || self.delete(volume)).await
    }

    /// Ends everything in order.
    ///
    /// # Errors
    /// A program does not end well.
    pub async fn stop(self) -> anyhow::Result<()> {
        for (edge, _) in self.edges {
            edge.stop(STOP).await?;
        }
        self.driver.stop(STOP).await?;
        self.cloud.process.stop(STOP).await
    }
}

fn say_scope(stand: &Stand, scope: &str) -> anyhow::Result<()> {
    let text = harness::world::section(DRIVER, scope);
    let config = stand.at("cloud.toml");
    let replace = proto::host::publish::Existing::Replace;
    Ok(proto::host::publish::publish(config.as_ref(), text.as_bytes(), 0o600, replace)?)
}

async fn cloud(stand: &Stand, url: &str) -> anyhow::Result<Cloud> {
    stand.cloud(&[url], &[DRIVER], &["--config", &stand.at("cloud.toml")]).await
}

async fn edge(stand: &mut Stand, node: &str, url: &str) -> anyhow::Result<Process> {
    let [state, entries, sandboxes] =
        ["state", "entries", "sandboxes"].map(|what| stand.at(&format!("{node}-{what}")));
    let socket = stand.at("driver.sock");
    let targets = stand.dir().display().to_string();
    let more = [
        "--cloud",
        url,
        "--state",
        &state,
        "--direct-volumes",
        &entries,
        "--sandboxes",
        &sandboxes,
        "--targets",
        &targets,
    ];
    stand.edge_with(node, &[(DRIVER, &socket)], &more).await
}
