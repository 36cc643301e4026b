//! A driver, reached at its own socket or through csi-cloud and csi-edge.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use harness::process::Process;
use harness::stand::{Cloud, Stand, channel};
use harness::wait::until;
use harness::world::section;
use proto::csi;
use proto::csi::{CreateVolumeRequest, VolumeCapability, volume_capability};
use proto::host::backoff::Backoff;
use proto::host::publish::{Existing, publish};
use rustix::process::Signal;
use serde::Deserialize;
use tokio::process::Command;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::sanity::run::Way;

/// The first node, and its node id.
pub(super) const NODE: &str = "n1";
/// The name of the driver.
pub(super) const NAME: &str = "field.edge-csi.io";
/// The driver's setting of how long a node may be away until others get its creates.
const FAILOVER: &str = "failover_s = 1\n";
/// How long a program may take to end.
const STOP: Duration = Duration::from_secs(10);
/// A kubelet's first delay after a failure, and its longest. It has no jitter.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(122);

/// A driver at one or several nodes, and the way to it.
pub(super) struct Scene {
    stand: Stand,
    way: Way,
    program: PathBuf,
    nodes: Vec<SceneNode>,
    cloud: Option<Cloud>,
}

/// A node of a scene.
struct SceneNode {
    name: &'static str,
    /// The driver's processes, the newest last.
    drivers: Vec<Process>,
    edge: Option<Process>,
}

/// A line of the driver's own log.
#[derive(Deserialize)]
pub(super) struct Entry {
    /// Seconds since 1970.
    pub(super) at: f64,
    pub(super) event: String,
    pub(super) method: String,
    pub(super) about: String,
}

impl Scene {
    /// Starts the driver with these flags, and our programs if they are on the way. Does not wait
    /// until calls reach the driver.
    ///
    /// # Errors
    /// Something does not start.
    pub(super) async fn start(
        way: Way,
        go_bin: &Path,
        flags: &[&str],
        names: &[&'static str],
    ) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let program = go_bin.join("fielddriver");
        let mut scene = Self { stand, way, program, nodes: Vec::new(), cloud: None };
        for &name in names {
            let driver = scene.driver(name, flags, 0)?;
            scene.nodes.push(SceneNode { name, drivers: vec![driver], edge: None });
        }
        if let Some(listen) = way.listen(&scene.stand) {
            let config = scene.stand.at("cloud.toml");
            let text = section(NAME, "node") + FAILOVER;
            publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
            let cloud = scene.stand.cloud(&[&listen], &[NAME], &["--config", &config]).await?;
            let url = cloud.urls.first().context("csi-cloud listens nowhere")?.clone();
            scene.cloud = Some(cloud);
            for node in &mut scene.nodes {
                let socket = driver_socket(&scene.stand, node.name);
                node.edge = Some(scene.stand.edge(node.name, &url, &[(NAME, &socket)]).await?);
            }
        }
        Ok(scene)
    }

    /// Starts a process that serves the socket of the first node's driver from now on.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start_driver(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        let number = self.first()?.drivers.len();
        let driver = self.driver(NODE, flags, number)?;
        self.nodes.first_mut().context("there is no node")?.drivers.push(driver);
        Ok(())
    }

    fn driver(&self, node: &str, flags: &[&str], number: usize) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.program);
        command.arg(format!("--endpoint=unix://{}", driver_socket(&self.stand, node)));
        let log = self.stand.at(&format!("{node}.log"));
        command.args([format!("--node-id={node}"), format!("--log={log}")]);
        command.arg(format!("--name={NAME}")).args(flags);
        Process::start(&format!("driver-{node}-{number}"), command, self.stand.dir())
    }

    fn first(&self) -> anyhow::Result<&SceneNode> {
        self.nodes.first().context("there is no node")
    }

    /// Takes a node away: its driver, or its link if our programs are on the way.
    ///
    /// # Errors
    /// There is no such node, or its csi-edge does not end well.
    pub(super) async fn take_away(&mut self, name: &str) -> anyhow::Result<()> {
        let mut nodes = self.nodes.iter_mut();
        let node = nodes.find(|node| node.name == name).context("there is no such node")?;
        match node.edge.take() {
            Some(edge) => edge.stop(STOP).await,
            None => node.drivers.pop().context("there is no driver")?.kill().await,
        }
    }

    /// Stops the driver's process where it is, as the kernel does that waits for a device.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn freeze_driver(&self) -> anyhow::Result<()> {
        self.first()?.drivers.last().context("there is no driver")?.signal(Signal::STOP)
    }

    /// Waits until calls of both services reach the driver.
    ///
    /// # Errors
    /// They do not in time.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            until("the driver", || async {
                // A name at one node is not another one's.
                let name = format!("ready-{}", node.name);
                let requirement = csi::TopologyRequirement {
                    requisite: vec![topology(node.name)],
                    preferred: vec![topology(node.name)],
                };
                let accessibility_requirements = (self.nodes.len() > 1).then_some(requirement);
                let request = CreateVolumeRequest { accessibility_requirements, ..creation(&name) };
                self.controller_of(node.name).await?.create_volume(request).await?;
                let socket = self.node_socket_of(node.name);
                let mut node = NodeClient::new(channel(&socket).await?);
                node.node_get_info(csi::NodeGetInfoRequest {}).await?;
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Makes a volume of this name, which is its id too.
    ///
    /// # Errors
    /// The driver's.
    pub(super) async fn create(&self, name: &str) -> anyhow::Result<()> {
        self.controller().await?.create_volume(creation(name)).await?;
        Ok(())
    }

    /// A new connection to the Node service, as a kubelet dials for each call.
    ///
    /// # Errors
    /// Nobody serves it.
    pub(super) async fn node(&self) -> anyhow::Result<NodeClient<Channel>> {
        Ok(NodeClient::new(channel(&self.node_socket()).await?))
    }

    /// The socket that the first node's kubelet calls.
    pub(super) fn node_socket(&self) -> String {
        self.node_socket_of(NODE)
    }

    fn node_socket_of(&self, node: &str) -> String {
        match self.way {
            Way::Direct => driver_socket(&self.stand, node),
            Way::Ws | Way::Quic => self.stand.edge_front(node, NAME),
        }
    }

    /// A new connection to the Controller service.
    ///
    /// # Errors
    /// Nobody serves it.
    pub(super) async fn controller(&self) -> anyhow::Result<ControllerClient<Channel>> {
        self.controller_of(NODE).await
    }

    /// A new connection to the Controller service for what is at a node: alone it is the driver
    /// there, as for a sidecar with `--node-deployment`.
    ///
    /// # Errors
    /// Nobody serves it.
    pub(super) async fn controller_of(
        &self,
        node: &str,
    ) -> anyhow::Result<ControllerClient<Channel>> {
        let socket = match self.way {
            Way::Direct => driver_socket(&self.stand, node),
            Way::Ws | Way::Quic => self.stand.cloud_front(NAME),
        };
        Ok(ControllerClient::new(channel(&socket).await?))
    }

    /// The nodes whose Controller services have all volumes together.
    pub(super) fn controllers(&self) -> Vec<&'static str> {
        let count = if self.is_behind_us() { 1 } else { self.nodes.len() };
        self.nodes.iter().take(count).map(|node| node.name).collect()
    }

    /// The socket that sidecars call.
    pub(super) fn controller_socket(&self) -> String {
        match self.way {
            Way::Direct => driver_socket(&self.stand, NODE),
            Way::Ws | Way::Quic => self.stand.cloud_front(NAME),
        }
    }

    /// What the first node's driver says that it was asked.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub(super) fn log(&self) -> anyhow::Result<Vec<Entry>> {
        self.log_of(NODE)
    }

    /// What the driver at a node says that it was asked.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub(super) fn log_of(&self, node: &str) -> anyhow::Result<Vec<Entry>> {
        let text = std::fs::read_to_string(self.stand.at(&format!("{node}.log")))?;
        let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        lines.context("the driver's log")
    }

    /// The nodes whose driver got a call of this method about this.
    ///
    /// # Errors
    /// A log cannot be read.
    pub(super) fn who_got(&self, method: &str, about: &str) -> anyhow::Result<Vec<&'static str>> {
        let mut got = Vec::new();
        for node in &self.nodes {
            let log = self.log_of(node.name)?;
            if log.iter().any(|entry| (&*entry.method, &*entry.about) == (method, about)) {
                got.push(node.name);
            }
        }
        Ok(got)
    }

    /// When a call of this method about this began and ended at the driver, in seconds since 1970.
    ///
    /// # Errors
    /// It did not begin, or has not ended.
    pub(super) fn span(&self, method: &str, about: &str) -> anyhow::Result<(f64, f64)> {
        let log = self.log()?;
        let at = |event: &str| {
            let is_it = |entry: &&Entry| {
                (&*entry.event, &*entry.method, &*entry.about) == (event, method, about)
            };
            let found = log.iter().find(is_it).map(|entry| entry.at);
            found.with_context(|| format!("there is no {event} of {method} {about}"))
        };
        Ok((at("begin")?, at("end")?))
    }

    /// Waits until so many calls that hang are at the driver.
    ///
    /// # Errors
    /// They do not come in time.
    pub(super) async fn hung(&self, count: usize) -> anyhow::Result<()> {
        until("hung calls at the driver", || async {
            let log = self.log()?;
            let hangs = |entry: &&Entry| {
                let (method, what) = entry.about.split_once('=').unwrap_or(("", &entry.about));
                let is_of = method.is_empty() || method == entry.method;
                entry.event == "begin" && is_of && what.starts_with("hang")
            };
            let hung = log.iter().filter(hangs).count();
            ensure!(hung >= count, "{hung} of {count}");
            Ok(())
        })
        .await
    }

    /// True if our programs are on the way.
    pub(super) fn is_behind_us(&self) -> bool {
        self.cloud.is_some()
    }

    /// Ends everything.
    ///
    /// # Errors
    /// One of our programs does not end well.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        let mut result = Ok(());
        let (edges, drivers): (Vec<_>, Vec<_>) =
            self.nodes.into_iter().map(|node| (node.edge, node.drivers)).unzip();
        let edges = edges.into_iter().flatten();
        for process in edges.chain(self.cloud.map(|cloud| cloud.process)) {
            result = result.and(process.stop(STOP).await);
        }
        for driver in drivers.into_iter().flatten() {
            // A frozen one handles no other signal.
            result = result.and(driver.kill().await);
        }
        result
    }
}

fn driver_socket(stand: &Stand, node: &str) -> String {
    stand.at(&format!("{node}.sock"))
}

/// The topology of a node, with a driver that has one.
pub(super) fn topology(node: &str) -> csi::Topology {
    csi::Topology { segments: [(format!("{NAME}/node"), node.to_owned())].into() }
}

/// The request for a volume of this name.
pub(super) fn creation(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability()],
        ..Default::default()
    }
}

/// A mounted volume.
pub(super) fn capability() -> VolumeCapability {
    let mode = volume_capability::access_mode::Mode::MultiNodeMultiWriter.into();
    let mount = volume_capability::MountVolume::default();
    VolumeCapability {
        access_mode: Some(volume_capability::AccessMode { mode }),
        access_type: Some(volume_capability::AccessType::Mount(mount)),
    }
}

/// A request with a deadline.
pub(super) fn within<T>(deadline: Duration, request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(deadline);
    request
}

/// Repeats a call until it is OK, with a kubelet's delays.
///
/// # Errors
/// It is never OK within this time.
pub(super) async fn repeated<T>(
    limit: Duration,
    mut call: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut delays = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
    let repeat = async {
        loop {
            if let Ok(done) = call().await {
                return done;
            }
            tokio::time::sleep(delays.delay()).await;
        }
    };
    tokio::time::timeout(limit, repeat).await.with_context(|| format!("not OK within {limit:?}"))
}

/// Refuses a call that ended otherwise than a scenario says.
///
/// # Errors
/// It did.
pub(super) fn must_fail<T>(answered: Result<T, Status>) -> anyhow::Result<Status> {
    let status = answered.err().context("it was OK")?;
    ensure!(status.code() != tonic::Code::Unimplemented, "{status}");
    Ok(status)
}
