//! The programs that are broken, and how they are made whole again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use drivers::grpc::controller_client::ControllerClient;
use proto::csi;
use tokio::sync::Mutex;
use tonic::transport::Channel;

use drivers::testdriver::{Fault, Running, TestDriver, Times};
use harness::process::Process;
use harness::relay::Relay;
use harness::stand::{Stand, channel};
use harness::wait::{START, STOP};

/// The time in which a test driver publishes. It is longer than a reconnection, so that a call is
/// sent again while its first run goes on.
const WORK: Duration = Duration::from_secs(4);

/// One node.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Its number.
    pub id: usize,
    /// Its name.
    pub node: &'static str,
    /// Its driver's name. Two nodes have each driver, so only csi-cloud's records tell a volume's
    /// home.
    pub driver: &'static str,
    /// Whether it links over QUIC.
    pub quic: bool,
    hostdir: bool,
}

/// The nodes.
pub const SITES: [Plan; 4] = [
    Plan { id: 0, node: "n0", driver: DRIVERS[0], quic: false, hostdir: false },
    Plan { id: 1, node: "n1", driver: DRIVERS[0], quic: true, hostdir: false },
    Plan { id: 2, node: "n2", driver: DRIVERS[1], quic: false, hostdir: true },
    Plan { id: 3, node: "n3", driver: DRIVERS[1], quic: true, hostdir: true },
];

/// The drivers.
pub const DRIVERS: [&str; 2] = ["test.edge-csi.io", "hostdir.edge-csi.io"];

/// csi-cloud.
pub struct CloudSite {
    stand: Arc<Mutex<Stand>>,
    drivers: Vec<&'static str>,
    /// Where it listens, also after a restart.
    pub urls: Vec<String>,
    /// None while it is dead.
    pub process: Option<Process>,
}

impl CloudSite {
    /// Starts it, with both transports.
    ///
    /// # Errors
    /// It does not get ready.
    pub async fn start(stand: Arc<Mutex<Stand>>, drivers: &[&'static str]) -> anyhow::Result<Self> {
        let listen = ["wss://127.0.0.1:0", "quic://127.0.0.1:0"];
        let cloud = stand.lock().await.cloud(&listen, drivers, &[]).await?;
        Ok(Self {
            stand,
            drivers: drivers.to_vec(),
            urls: cloud.urls,
            process: Some(cloud.process),
        })
    }

    /// Its socket for each driver.
    pub async fn fronts(&self) -> Vec<(&'static str, String)> {
        let stand = self.stand.lock().await;
        self.drivers.iter().map(|driver| (*driver, stand.cloud_front(driver))).collect()
    }

    /// Kills it, and starts it again after `down`.
    ///
    /// # Errors
    /// It does not get ready again.
    pub async fn kill(&mut self, down: Duration) -> anyhow::Result<()> {
        if let Some(process) = self.process.take() {
            process.kill().await?;
        }
        tokio::time::sleep(down).await;
        let listen: Vec<_> = self.urls.iter().map(String::as_str).collect();
        let cloud = self.stand.lock().await.cloud(&listen, &self.drivers, &[]).await?;
        self.process = Some(cloud.process);
        Ok(())
    }

    /// Stops it as an operator does, and returns the faults of its store.
    ///
    /// # Errors
    /// It does not end well.
    pub async fn stop(self) -> anyhow::Result<Option<String>> {
        self.process.context("csi-cloud is not there")?.stop(STOP).await?;
        let stand = self.stand.lock().await;
        let store = format!("file:{}", stand.at("cloud.redb"));
        let checked = stand.run("csi-cloud", &["store", "check", "--store", &store]).await;
        Ok(checked.err().map(|error| format!("the store: {error:#}")))
    }
}

enum Driver {
    Test(TestDriver, Option<Running>),
    Host(Option<Box<Process>>),
}

/// One node's programs.
pub struct Site {
    stand: Arc<Mutex<Stand>>,
    /// The driver's name and node.
    pub plan: Plan,
    /// Between its edge and each csi-cloud.
    pub relays: Vec<Relay>,
    /// csi-edge; none while it is dead.
    pub edge: Option<Process>,
    driver: Driver,
    socket: String,
}

impl Site {
    /// Starts a node that links to one of these URLs.
    ///
    /// # Errors
    /// A program does not start.
    pub async fn start(
        stand: Arc<Mutex<Stand>>,
        plan: Plan,
        urls: &[String],
    ) -> anyhow::Result<Self> {
        let mut relays = Vec::new();
        for url in urls {
            relays.push(Relay::to(url).await?);
        }
        let socket = stand.lock().await.at(&format!("{}.sock", plan.node));
        let driver = if plan.hostdir {
            Driver::Host(None)
        } else {
            let driver = TestDriver::new(plan.driver, plan.node);
            driver.count_from(plan.id as u64 * 1_000_000_000);
            driver.inject("ControllerPublishVolume", Fault::Delay(WORK), Times::All);
            Driver::Test(driver, None)
        };
        let mut site = Self { stand, plan, relays, edge: None, driver, socket };
        site.start_driver().await?;
        site.start_edge().await?;
        let edge = site.edge.as_mut().context("csi-edge is not there")?;
        edge.line_starting("linked ", START).await?;
        Ok(site)
    }

    async fn start_driver(&mut self) -> anyhow::Result<()> {
        match &mut self.driver {
            Driver::Test(driver, running) => *running = Some(driver.serve(self.socket.as_ref())?),
            Driver::Host(process) => {
                let stand = self.stand.lock().await;
                let mut command = stand.program("hostdir")?;
                let state = PathBuf::from(stand.at(&format!("{}.state", self.plan.node)));
                command.args(["--endpoint", &self.socket, "--node-id", self.plan.node]);
                command.args(["--name", self.plan.driver, "--state"]).arg(state);
                let name = format!("hostdir-{}", self.plan.node);
                let mut started = Process::start(&name, command, stand.dir())?;
                started.line_starting("ready", START).await?;
                *process = Some(Box::new(started));
            }
        }
        Ok(())
    }

    async fn start_edge(&mut self) -> anyhow::Result<()> {
        let drivers = [(self.plan.driver, self.socket.as_str())];
        let mut stand = self.stand.lock().await;
        let mut more: Vec<_> =
            self.relays.iter().flat_map(|relay| ["--cloud", relay.url()]).collect();
        let state = stand.at(&format!("{}.edge", self.plan.node));
        if self.relays.len() > 1 {
            // It outlives csi-edge, and has the epoch of the leader.
            more.extend(["--state", &state]);
        }
        self.edge = Some(stand.edge_with(self.plan.node, &drivers, &more).await?);
        Ok(())
    }

    /// Kills csi-edge, and starts it again after `down`.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn kill_edge(&mut self, down: Duration) -> anyhow::Result<()> {
        if let Some(edge) = self.edge.take() {
            edge.kill().await?;
        }
        tokio::time::sleep(down).await;
        self.start_edge().await
    }

    /// Kills the driver, and starts it again after `down`. Its state stays.
    ///
    /// # Errors
    /// It does not get ready again.
    pub async fn kill_driver(&mut self, down: Duration) -> anyhow::Result<()> {
        match &mut self.driver {
            Driver::Test(_, running) => {
                if let Some(running) = running.take() {
                    running.stop().await;
                }
            }
            Driver::Host(process) => {
                if let Some(process) = process.take() {
                    process.kill().await?;
                }
            }
        }
        tokio::time::sleep(down).await;
        self.start_driver().await
    }

    /// The volumes of the node's driver, and the driver's violations.
    ///
    /// # Errors
    /// The driver does not say what it holds.
    pub async fn holds(&self) -> anyhow::Result<(BTreeSet<String>, Vec<String>)> {
        let name = self.plan.driver;
        let node = self.plan.node;
        let mut client = ControllerClient::new(channel(&self.socket).await?);
        let volumes = volumes(&mut client).await?;
        let listed =
            client.list_snapshots(csi::ListSnapshotsRequest::default()).await?.into_inner();
        let snapshots = listed.entries.into_iter().filter_map(|entry| entry.snapshot);
        let leaked =
            |s: csi::Snapshot| format!("{name} at {node}: snapshot {} was leaked", s.snapshot_id);
        let mut wrong: Vec<_> = snapshots.map(leaked).collect();
        if let Driver::Test(driver, _) = &self.driver {
            wrong.extend(
                driver.overlaps().into_iter().map(|overlap| format!("{name} at {node}: {overlap}")),
            );
        }
        Ok((volumes, wrong))
    }

    /// Stops the node's programs as an operator does.
    ///
    /// # Errors
    /// One does not end well.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.edge.context("csi-edge is not there")?.stop(STOP).await?;
        match self.driver {
            Driver::Test(_, Some(running)) => running.stop().await,
            Driver::Host(Some(process)) => process.stop(STOP).await?,
            _ => {}
        }
        Ok(())
    }
}

/// The volumes that a driver or a front lists.
///
/// # Errors
/// It does not say, or only a part.
pub async fn volumes(client: &mut ControllerClient<Channel>) -> anyhow::Result<BTreeSet<String>> {
    let listed = client.list_volumes(csi::ListVolumesRequest::default()).await?.into_inner();
    anyhow::ensure!(listed.next_token.is_empty(), "it lists in pages");
    let volumes = listed.entries.into_iter().filter_map(|entry| entry.volume);
    Ok(volumes.map(|volume| volume.volume_id).collect())
}
