//! Three csi-clouds, their etcd on the disk, an edge with a driver, and the socket relay.

use std::path::Path;

use anyhow::ensure;
use harness::etcd_server::EtcdServer;
use harness::process::Process;
use harness::raw::RawClient;
use harness::replicas;
use harness::replicas::Replica;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::{START, STOP, until};
use harness::world::ready;
use proto::csi::frame;
use tempfile::TempDir;
use tonic::Code;

use crate::durable::{DRIVER, NODE};

/// The members of etcd.
pub(super) const MEMBERS: usize = 3;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// All of it.
pub(super) struct World {
    pub(super) stand: Stand,
    pub(super) replicas: Vec<Replica>,
    pub(super) front: RawClient,
    etcd: EtcdServer,
    relay: Process,
    edge: Process,
    driver: Process,
    _data: TempDir,
}

/// csi-clouds with an etcd whose data is below `dir`.
pub(super) async fn replicas(
    stand: &Stand,
    dir: &Path,
    driver: &str,
) -> anyhow::Result<(Vec<Replica>, EtcdServer, TempDir)> {
    let data = tempfile::tempdir_in(dir)?;
    let etcd = EtcdServer::start(&std::path::absolute(data.path())?, MEMBERS).await?;
    let mut replicas = Vec::new();
    for name in NAMES {
        let replica = Replica::new(name, &["wss"], &etcd.url("edge-csi"), &[driver])?;
        let mut replica = replica.with(&["--http", "127.0.0.1:0"]);
        replica.start(stand).await?;
        replicas.push(replica);
    }
    Ok((replicas, etcd, data))
}

impl World {
    /// Starts it, and waits until calls are answered.
    pub(super) async fn new(dir: &Path) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let (replicas, etcd, data) = replicas(&stand, dir, DRIVER).await?;
        let socket = stand.at("driver.sock");
        let mut command = stand.program("testdriver")?;
        command.args(["--endpoint", &format!("unix://{socket}"), "--node-id", NODE]);
        command.args(["--name", DRIVER]);
        let mut driver = Process::start("driver", command, stand.dir())?;
        driver.line_starting("ready", START).await?;
        let edge = replicas::edge(&mut stand, &replicas, NODE, (DRIVER, &socket)).await?;
        let relay = replicas::relay(&stand, &replicas, &[DRIVER]).await?;
        let front = RawClient::connect(&replicas::held(&stand, DRIVER)).await?;
        until("the leader knows the driver", || ready(&front)).await?;
        Ok(Self { stand, replicas, front, etcd, relay, edge, driver, _data: data })
    }

    /// Makes a volume as a sidecar does.
    pub(super) async fn create(&self, name: &str) -> anyhow::Result<()> {
        let path = controller("CreateVolume");
        let body = frame::frame(&create(name));
        let answer = self.front.send(&path, body, &[("grpc-timeout", "60S")]).await?;
        ensure!(answer.code() == Code::Ok, "{name}: {}", answer.status());
        Ok(())
    }

    /// Ends it.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.relay.stop(STOP).await?;
        self.edge.stop(STOP).await?;
        self.driver.stop(STOP).await?;
        replicas::end(&mut self.replicas, &mut self.etcd).await
    }
}
