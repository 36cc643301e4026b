//! The node that is switched off: csi-edge and a real driver, each with mounts of its own, and a
//! csi-cloud elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::grpc::controller_client::ControllerClient;
use drivers::grpc::node_client::NodeClient;
use harness::leftovers;
use harness::process::Process;
use harness::stand::{Stand, channel};
use harness::wait::{START, STOP, until};
use proto::host::publish::{Existing, publish};
use tonic::transport::Channel;

/// The node's name.
pub const NODE: &str = "n1";
const DRIVER: &str = "hostdir.edge-csi.io";

/// One node, and csi-cloud.
pub struct Machine {
    stand: Stand,
    url: String,
    cloud: Option<Process>,
    edge: Option<Process>,
    driver: Option<Process>,
    boots: u32,
}

impl Machine {
    /// A node that was switched on, with a link to csi-cloud.
    ///
    /// # Errors
    /// A program does not start.
    pub async fn new() -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        stand.log("info");
        let config = stand.at("edge.toml");
        publish(config.as_ref(), b"node_expansion = \"edge\"\n", 0o600, Existing::Keep)?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
        let url = cloud.urls.first().context("no listener")?.clone();
        let cloud = Some(cloud.process);
        let mut machine = Self { stand, url, cloud, edge: None, driver: None, boots: 0 };
        machine.switch_on().await?;
        machine.driver_comes(Duration::ZERO).await?;
        let edge = machine.edge.as_mut().context("it was started")?;
        edge.line_starting("linked ", START).await?;
        Ok(machine)
    }

    /// Boots the node, and starts csi-edge.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn switch_on(&mut self) -> anyhow::Result<()> {
        self.boots += 1;
        let boot = self.stand.at("boot");
        publish(
            boot.as_ref(),
            format!("boot-{}\n", self.boots).as_bytes(),
            0o644,
            Existing::Replace,
        )?;
        let config = self.stand.at("edge.toml");
        let state = self.stand.at("edge-state");
        let socket = self.stand.at("driver.sock");
        let more = ["--cloud", &self.url, "--config", &config, "--state", &state];
        let script = format!("mount --bind {boot} /proc/sys/kernel/random/boot_id");
        let edge = self.stand.edge_in(&script, NODE, &[(DRIVER, &socket)], &more).await?;
        self.edge = Some(edge);
        Ok(())
    }

    /// Starts the driver, so much later.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn driver_comes(&mut self, late: Duration) -> anyhow::Result<()> {
        tokio::time::sleep(late).await;
        let socket = self.stand.at("driver.sock");
        let mut command = self.stand.program("hostdir")?;
        let state = self.stand.at("driver-state");
        command.args(["--endpoint", &socket, "--node-id", NODE, "--state", &state]);
        command.arg("--private-mounts");
        let mut driver = Process::start("hostdir", command, self.stand.dir())?;
        driver.line_starting("ready", START).await?;
        self.driver = Some(driver);
        Ok(())
    }

    /// Kills all programs at once.
    ///
    /// # Errors
    /// One has ended already.
    pub fn kill(&self) -> anyhow::Result<()> {
        for process in [&self.edge, &self.driver, &self.cloud].into_iter().flatten() {
            process.signal(rustix::process::Signal::KILL)?;
        }
        Ok(())
    }

    /// Cuts the power: all programs die at once, and with them the mounts. Loop devices and `/run`
    /// do not survive it either. csi-cloud goes away too.
    ///
    /// # Errors
    /// The system's.
    pub async fn cut(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        let all = [self.edge.take(), self.driver.take(), self.cloud.take()];
        for mut process in all.into_iter().flatten() {
            process.ended(STOP).await?;
        }
        let dir = self.stand.dir();
        // What losetup has attached outlives its caller, unlike a machine's memory.
        until("the loop devices are detached", || async {
            leftovers::remove("no control groups", &leftovers::devices(dir)?)?;
            ensure!(leftovers::devices(dir)?.is_empty(), "a loop device is still in use");
            Ok(())
        })
        .await?;
        for gone in [NODE, "driver.sock"] {
            let path = dir.join(gone);
            let removed = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Brings csi-cloud back, and waits until the node has linked.
    ///
    /// # Errors
    /// It does not get ready, or the node does not link.
    pub async fn cloud_again(&mut self) -> anyhow::Result<()> {
        self.cloud = Some(self.stand.cloud(&[&self.url], &[DRIVER], &[]).await?.process);
        let edge = self.edge.as_mut().context("the node is off")?;
        edge.line_starting("linked ", START).await.map(drop)
    }

    /// Calls by the cloud's front.
    ///
    /// # Errors
    /// Nobody serves it.
    pub async fn controller(&self) -> anyhow::Result<ControllerClient<Channel>> {
        Ok(ControllerClient::new(channel(&self.stand.cloud_front(DRIVER)).await?))
    }

    /// Calls by the node's front, as soon as it is served.
    ///
    /// # Errors
    /// Nobody serves it in time.
    pub async fn node(&self) -> anyhow::Result<NodeClient<Channel>> {
        let front = self.stand.edge_front(NODE, DRIVER);
        until("the node's front", || async { Ok(NodeClient::new(channel(&front).await?)) }).await
    }

    /// The root directory as the driver sees it, in whose mount namespace the volumes are.
    ///
    /// # Errors
    /// The driver has ended.
    pub fn root(&self) -> anyhow::Result<PathBuf> {
        let pid = self.driver.as_ref().and_then(Process::pid).context("the driver has ended")?;
        Ok(PathBuf::from(format!("/proc/{pid}/root")))
    }

    /// The mount points in that namespace.
    ///
    /// # Errors
    /// The driver has ended.
    pub fn mounts(&self) -> anyhow::Result<Vec<String>> {
        let pid = self.driver.as_ref().and_then(Process::pid).context("the driver has ended")?;
        let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
        Ok(table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect())
    }

    /// Where the kubelet has its paths.
    pub fn kubelet(&self) -> PathBuf {
        self.stand.dir().join("kubelet")
    }

    /// What csi-edge keeps of volumes, a line each.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn records(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        let records = self.stand.dir().join("edge-state/node-volumes");
        let Ok(entries) = std::fs::read_dir(records) else { return Ok(Vec::new()) };
        let mut read = Vec::new();
        for entry in entries {
            let path = entry?.path();
            // It may be replaced while csi-edge works.
            let Ok(text) = std::fs::read(&path) else { continue };
            if path.extension().is_some_and(|extension| extension == "json") {
                read.push(serde_json::from_slice(&text)?);
            }
        }
        Ok(read)
    }

    /// When csi-edge changed its records last; none before it has any.
    pub fn changed(&self) -> Option<std::time::SystemTime> {
        let records = self.stand.dir().join("edge-state/node-volumes");
        std::fs::metadata(records).and_then(|meta| meta.modified()).ok()
    }

    /// The loop devices of the driver.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn devices(&self) -> anyhow::Result<Vec<String>> {
        leftovers::devices(self.stand.dir())
    }

    /// What csi-edge logged last.
    pub fn log(&self) -> String {
        self.edge.as_ref().map(Process::log_tail).unwrap_or_default()
    }

    /// Ends everything in order.
    ///
    /// # Errors
    /// A program does not end well.
    pub async fn stop(self) -> anyhow::Result<()> {
        for process in [self.edge, self.driver, self.cloud].into_iter().flatten() {
            process.stop(STOP).await?;
        }
        Ok(())
    }
}
