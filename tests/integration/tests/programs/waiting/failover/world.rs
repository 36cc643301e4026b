//! Three csi-clouds with a real etcd, an edge, and the socket relay that sidecars have.

use std::path::Path;

use drivers::testdriver::{Running, TestDriver};
use harness::etcd_server::{EtcdServer, is_installed};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::replicas;
use harness::replicas::Replica;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, ready};
use proto::csi::frame;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Everything, with the socket that sidecars have.
pub(super) struct World {
    pub(super) stand: Stand,
    pub(super) etcd: EtcdServer,
    pub(super) replicas: Vec<Replica>,
    pub(super) front: RawClient,
    pub(super) driver: TestDriver,
    relay: Process,
    edge: Process,
    _serving: Running,
}

impl World {
    /// With an etcd of this many members; none if it is not installed.
    pub(super) async fn new(members: usize) -> anyhow::Result<Option<Self>> {
        if !is_installed("several csi-clouds")? {
            return Ok(None);
        }
        let mut stand = Stand::new().await?;
        let etcd = EtcdServer::start(stand.dir(), members).await?;
        let mut replicas = Vec::new();
        for name in NAMES {
            let mut replica = Replica::new(name, &["wss"], &etcd.url("edge-csi"), &[DRIVER])?;
            replica.start(&stand).await?;
            replicas.push(replica);
        }
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("driver.sock");
        let serving = driver.serve(Path::new(&socket))?;
        let relay = replicas::relay(&stand, &replicas, &[DRIVER]).await?;
        let edge = replicas::edge(&mut stand, &replicas, NODE, (DRIVER, &socket)).await?;
        let front = RawClient::connect(&replicas::held(&stand, DRIVER)).await?;
        until("the leader knows the driver", || ready(&front)).await?;
        Ok(Some(Self { stand, etcd, replicas, front, driver, relay, edge, _serving: serving }))
    }

    /// The one that leads.
    pub(super) async fn leader(&self) -> anyhow::Result<usize> {
        replicas::leader(&self.replicas, &[]).await
    }

    /// Makes a volume through the socket relay, as a sidecar does.
    pub(super) async fn create(&self, name: &str) -> anyhow::Result<RawAnswer> {
        self.create_within(name, "60S").await
    }

    /// The same with a deadline of its own.
    pub(super) async fn create_within(
        &self,
        name: &str,
        deadline: &str,
    ) -> anyhow::Result<RawAnswer> {
        let deadline = [("grpc-timeout", deadline)];
        self.front.send(&controller("CreateVolume"), frame::frame(&create(name)), &deadline).await
    }

    /// The names of the driver's volumes.
    pub(super) fn volumes(&self) -> Vec<String> {
        self.driver.named_volumes().into_iter().map(|(name, ..)| name).collect()
    }

    /// Stops everything as an operator does.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.edge.stop(START).await?;
        self.relay.stop(START).await?;
        for replica in &mut self.replicas {
            if let Ok(process) = replica.take() {
                process.stop(START).await?;
            }
        }
        for place in 0..self.etcd.members() {
            // A test may have killed it.
            let _ = self.etcd.kill(place).await;
        }
        Ok(())
    }
}
