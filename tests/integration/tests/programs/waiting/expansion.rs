//! csi-edge expands volumes on its node, in the place of a kubelet that cannot, and is killed at
//! each step of that.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, Times};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient, connection_broke};
use harness::requests::{capability, controller, create, created};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use prost::Message as _;
use proto::csi;
use proto::host::publish::{Existing, publish};
use tempfile::TempDir;
use tonic::Code;

const SIZE: i64 = 2 << 30;
const STAGING: &str = "/staging";

/// A world whose csi-edge expands volumes.
struct Site {
    world: World,
    volume: String,
    dir: TempDir,
}

/// The arguments of a csi-edge that expands volumes and has its state in this directory.
fn arguments(dir: &Path) -> anyhow::Result<[String; 4]> {
    let config = dir.join("edge.toml");
    let state = dir.join("state");
    publish(&config, b"node_expansion = \"edge\"\n", 0o600, Existing::Replace)?;
    let shown = |path: &Path| path.display().to_string();
    Ok(["--config".into(), shown(&config), "--state".into(), shown(&state)])
}

impl Site {
    async fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let arguments = arguments(dir.path())?;
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let world = World::with(TRANSPORTS[0], &[], &arguments).await?;
        let made = world.front().await?.call(&controller("CreateVolume"), &create("v")).await?;
        let volume = created(&made)?.volume_id;
        Ok(Self { world, volume, dir })
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        self.world.edge.signal(rustix::process::Signal::KILL)?;
        self.world.edge.ended(STOP).await.map(drop)
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        let arguments = arguments(self.dir.path())?;
        let url = self.world.url().to_owned();
        let mut more = vec!["--cloud", url.as_str()];
        more.extend(arguments.iter().map(String::as_str));
        let socket = self.world.stand.at("driver.sock");
        let drivers = [(DRIVER, socket.as_str())];
        let mut edge: Process = self.world.stand.edge_with(NODE, &drivers, &more).await?;
        edge.line_starting("linked ", START).await?;
        self.world.edge = edge;
        Ok(())
    }

    /// Kills csi-edge as soon as its driver has a call, and starts it again.
    async fn killed_at(&mut self, method: &str, calls: usize) -> anyhow::Result<()> {
        self.world.driver.wait_for(method, calls).await?;
        self.kill().await?;
        self.start().await
    }

    async fn stage(&self) -> anyhow::Result<RawAnswer> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: STAGING.into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.node("NodeStageVolume", request).await
    }

    async fn node(&self, method: &str, request: impl prost::Message) -> anyhow::Result<RawAnswer> {
        let front = self.world.node_front().await?;
        front.call(&format!("/csi.v1.Node/{method}"), &request.encode_to_vec()).await
    }

    fn expanding(&self) -> Vec<u8> {
        let range = csi::CapacityRange { required_bytes: SIZE, limit_bytes: 0 };
        csi::ControllerExpandVolumeRequest {
            volume_id: self.volume.clone(),
            capacity_range: Some(range),
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// What csi-edge keeps of the volume: none if nothing.
    fn record(&self) -> anyhow::Result<Option<serde_json::Value>> {
        let records = self.dir.path().join("state/node-volumes");
        let Ok(mut entries) = std::fs::read_dir(records) else { return Ok(None) };
        let Some(entry) = entries.next() else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&std::fs::read(entry?.path())?)?))
    }

    fn expanded(&self) -> usize {
        self.world.driver.calls_of("NodeExpandVolume").len()
    }
}

/// An answer of OK that leaves nothing to a kubelet.
fn is_whole(answer: &RawAnswer) -> anyhow::Result<()> {
    ensure!(answer.code() == Code::Ok, "{}", answer.status());
    let message = answer.message().context("no message")?;
    let answer = csi::ControllerExpandVolumeResponse::decode(message)?;
    ensure!(answer.capacity_bytes == SIZE, "{} bytes", answer.capacity_bytes);
    ensure!(!answer.node_expansion_required, "the node's half was left to the kubelet");
    Ok(())
}

/// The faults with which the driver is caught before and after its work.
fn faults() -> [Fault; 2] {
    [Fault::Hang, Fault::Late(START)]
}

#[tokio::test]
async fn an_edge_that_is_killed_at_any_step_grows_a_staged_volume() -> anyhow::Result<()> {
    for method in ["ControllerExpandVolume", "NodeExpandVolume"] {
        for fault in faults() {
            let mut site = Site::new().await?;
            ensure!(site.stage().await?.code() == Code::Ok);
            site.world.driver.inject(method, fault, Times::Next(1));
            let front = site.world.front().await?;
            let request = site.expanding();
            let path = controller("ControllerExpandVolume");
            let expanding = front.call(&path, &request);
            let (answer, killed) = tokio::join!(expanding, site.killed_at(method, 1));
            killed?;
            // The cloud held the call, and sent it again on the next link.
            is_whole(&answer?)?;
            ensure!(site.expanded() >= 1, "the node's half was left out");
            let record = site.record()?.context("it is staged")?;
            ensure!(record["growth"].is_null(), "{record}");
            site.world.driver.release();
            site.world.stop().await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_is_owed_survives_a_kill_and_is_done_when_it_is_staged() -> anyhow::Result<()> {
    for fault in faults() {
        let mut site = Site::new().await?;
        let front = site.world.front().await?;
        let path = controller("ControllerExpandVolume");
        is_whole(&front.call(&path, &site.expanding()).await?)?;
        ensure!(site.expanded() == 0, "it is not staged");
        site.kill().await?;
        site.start().await?;
        site.world.edge.logged("has grown, but not on this node").await?;
        // The kubelet's call is lost with csi-edge, and is made again.
        site.world.driver.inject("NodeExpandVolume", fault, Times::Next(1));
        let front = site.world.node_front().await?;
        let request = csi::NodeStageVolumeRequest {
            volume_id: site.volume.clone(),
            staging_target_path: STAGING.into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let request = request.encode_to_vec();
        let staging = front.call("/csi.v1.Node/NodeStageVolume", &request);
        let (answer, killed) = tokio::join!(staging, site.killed_at("NodeExpandVolume", 1));
        killed?;
        let error = answer.err().context("it was answered before the volume had grown")?;
        ensure!(connection_broke(&error), "{error:#}");
        site.world.driver.release();
        ensure!(site.stage().await?.code() == Code::Ok);
        ensure!(site.expanded() == 2, "{} calls", site.expanded());
        let record = site.record()?.context("it is staged")?;
        ensure!(record["growth"].is_null(), "{record}");
        let unstage = csi::NodeUnstageVolumeRequest {
            volume_id: site.volume.clone(),
            staging_target_path: STAGING.into(),
        };
        ensure!(site.node("NodeUnstageVolume", unstage).await?.code() == Code::Ok);
        ensure!(site.record()?.is_none(), "a record was left");
        site.world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_driver_that_dies_between_the_halves_is_waited_for() -> anyhow::Result<()> {
    let site = Site::new().await?;
    ensure!(site.stage().await?.code() == Code::Ok);
    site.world.driver.inject("NodeExpandVolume", Fault::DieAfterWork, Times::Next(1));
    let front: RawClient = site.world.front().await?;
    let path = controller("ControllerExpandVolume");
    let answer = front.call(&path, &site.expanding()).await?;
    ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
    ensure!(answer.status().message().contains("not on this node"), "{}", answer.status());
    let record = site.record()?.context("it is owed")?;
    ensure!(record["growth"]["state"] == "due", "{record}");
    until("the sidecar's next attempt", || async {
        is_whole(&front.call(&path, &site.expanding()).await?)
    })
    .await?;
    site.world.stop().await
}
