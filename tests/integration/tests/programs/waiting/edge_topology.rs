//! A driver without topology of its own has ours at its node's front, so that the kubelet there
//! publishes it.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, Running, TOPOLOGY_KEY, TestDriver, Times};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE};
use prost::Message;
use proto::csi;
use proto::csi::topology;
use proto::csi::topology::NODE_SEGMENT;
use proto::host::publish::{Existing, publish};
use tonic::Code;

const INFO: &str = "/csi.v1.Node/NodeGetInfo";
const CAPABILITIES: &str = "/csi.v1.Identity/GetPluginCapabilities";

/// A node whose cloud comes and goes.
struct Site {
    stand: Stand,
    driver: TestDriver,
    _serving: Running,
    url: String,
}

impl Site {
    async fn new() -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let serving = driver.serve(Path::new(&stand.at("driver.sock")))?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
        let url = cloud.urls.first().context("no listener")?.clone();
        // Its address is fixed now. The test starts it again later, with an empty store.
        cloud.process.kill().await?;
        std::fs::remove_file(stand.at("cloud.redb"))?;
        Ok(Self { stand, driver, _serving: serving, url })
    }

    /// The driver reports no accessible topology.
    fn without_topology(&self) {
        let info = csi::NodeGetInfoResponse { node_id: "its-own-id".into(), ..Default::default() };
        self.driver.inject("NodeGetInfo", Fault::raw(info.encode_to_vec()), Times::All);
        self.driver.inject("GetPluginCapabilities", Fault::raw(Vec::new()), Times::All);
    }

    async fn cloud(&self, scope: &str) -> anyhow::Result<Cloud> {
        let config = self.stand.at("scope.toml");
        let text = harness::world::section(DRIVER, scope);
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Replace)?;
        self.stand.cloud(&[&self.url], &[DRIVER], &["--config", &config]).await
    }

    async fn edge(&mut self) -> anyhow::Result<Process> {
        let socket = self.stand.at("driver.sock");
        let state = self.stand.at("state");
        let url = self.url.clone();
        let more = ["--cloud", &url, "--state", &state];
        let edge = self.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        // Its log still has the lines of the process before it, so they are no state to wait for.
        until("the node's front reaches the driver", || async {
            let info = self.ask("/csi.v1.Identity/GetPluginInfo", &[]).await?;
            ensure!(info.code() == Code::Ok, "{}", info.status());
            Ok(())
        })
        .await?;
        Ok(edge)
    }

    async fn ask(&self, path: &str, request: &[u8]) -> anyhow::Result<RawAnswer> {
        RawClient::connect(&self.stand.edge_front(NODE, DRIVER)).await?.call(path, request).await
    }

    /// The segments at the node's front, and whether it has VOLUME_ACCESSIBILITY_CONSTRAINTS.
    async fn shown(&self) -> anyhow::Result<(Vec<(String, String)>, bool)> {
        let info = self.ask(INFO, &[]).await?;
        let info =
            csi::NodeGetInfoResponse::decode(info.message().context(info.status().to_string())?)?;
        let segments = info.accessible_topology.unwrap_or_default().segments.into_iter().collect();
        let answer = self.ask(CAPABILITIES, &[]).await?;
        let said = answer.message().context(answer.status().to_string())?;
        Ok((segments, topology::constrained(&said)))
    }
}

fn our_topology() -> (Vec<(String, String)>, bool) {
    (vec![(NODE_SEGMENT.to_owned(), NODE.to_owned())], true)
}

#[tokio::test]
async fn the_kubelet_sees_our_topology_after_a_restart_without_the_cloud() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.without_topology();
    let edge = site.edge().await?;
    for path in [INFO, CAPABILITIES] {
        let status = site.ask(path, &[]).await?.status();
        assert_eq!(status.code(), Code::Unavailable, "{path}: {status}");
        assert!(status.message().contains("(scope)"), "{status}");
    }
    let cloud = site.cloud("node").await?;
    until("the edge is told the scope", || async {
        ensure!(site.shown().await? == our_topology(), "not yet");
        Ok(())
    })
    .await?;
    // The cloud learns the driver's own topology, without our edits.
    cloud.process.kill().await?;
    edge.kill().await?;
    let edge = site.edge().await?;
    assert_eq!(site.shown().await?, our_topology(), "it was forgotten");

    site.driver.forget_calls();
    let mut request = csi::CreateVolumeRequest::decode(create("v").as_slice())?;
    let segments = [(NODE_SEGMENT.to_owned(), NODE.to_owned())].into();
    let requisite = vec![csi::Topology { segments }];
    request.accessibility_requirements =
        Some(csi::TopologyRequirement { requisite, preferred: vec![] });
    let made = csi::Volume { volume_id: "v-1".into(), ..Default::default() };
    let made = csi::CreateVolumeResponse { volume: Some(made) }.encode_to_vec();
    site.driver.inject("CreateVolume", Fault::raw(made), Times::Next(1));
    let answer = site.ask(&controller("CreateVolume"), &request.encode_to_vec()).await?;
    let at = created(&answer)?.accessible_topology;
    assert_eq!(at.len(), 1);
    assert_eq!(at[0].segments.get(NODE_SEGMENT).map(String::as_str), Some(NODE));
    let got = site.driver.calls_of("CreateVolume");
    let got = csi::CreateVolumeRequest::decode(got.first().context("no call")?.message.clone())?;
    assert!(got.accessibility_requirements.is_none(), "the driver saw our segment");

    // The operator changes the word.
    let cloud = site.cloud("shared").await?;
    until("the edge is told the other scope", || async {
        ensure!(site.shown().await? == (Vec::new(), false), "not yet");
        Ok(())
    })
    .await?;
    edge.stop(START).await?;
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_driver_with_topology_of_its_own_shows_that_and_waits_for_no_cloud() -> anyhow::Result<()>
{
    let mut site = Site::new().await?;
    let edge = site.edge().await?;
    let own = (vec![(TOPOLOGY_KEY.to_owned(), NODE.to_owned())], true);
    assert_eq!(site.shown().await?, own);
    let cloud = site.cloud("node").await?;
    edge.logged("the cloud says how far").await?;
    assert_eq!(site.shown().await?, own);
    edge.stop(START).await?;
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_driver_that_is_just_starting_is_asked_again_what_it_can() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    let starting = Fault::error(Code::Unavailable, "it is starting");
    site.driver.inject("ControllerGetCapabilities", starting, Times::Next(1));
    let edge = site.edge().await?;
    let cloud = site.cloud("node").await?;
    let path = controller("ControllerGetCapabilities");
    let own = RawClient::connect(&site.stand.at("driver.sock")).await?.call(&path, &[]).await?;
    let own = own.message().context("the driver says nothing")?;
    until("the cloud knows what the driver can", || async {
        let front = RawClient::connect(&site.stand.cloud_front(DRIVER)).await?;
        let said = front.call(&path, &[]).await?;
        ensure!(said.message().is_some_and(|said| said == own), "{}", said.status());
        Ok(())
    })
    .await?;
    edge.stop(START).await?;
    cloud.process.stop(START).await
}
