//! A node's own front answers what a kubelet asks when the node starts, though cloud and driver are
//! away. Where the cloud publishes the node's topology, the front has none.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, Running, TOPOLOGY_KEY, TestDriver, Times};
use harness::hostile_cloud;
use harness::hostile_cloud::HostileCloud;
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS};
use prost::Message as _;
use proto::control::hello::{Hello, Message, Welcome};
use proto::csi;
use proto::csi::{frame, topology};
use proto::host::tasks::Tasks;
use proto::link::Event;
use tonic::Code;

const INFO: &str = "/csi.v1.Node/NodeGetInfo";
const CAPABILITIES: &str = "/csi.v1.Identity/GetPluginCapabilities";

/// A node, and a cloud that says what the test lets it say.
struct Site {
    stand: Stand,
    driver: TestDriver,
    cloud: HostileCloud,
    url: String,
}

impl Site {
    async fn new() -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let (cloud, url) = HostileCloud::listen(&stand, TRANSPORTS[0]).await?;
        Ok(Self { stand, driver: TestDriver::new(DRIVER, NODE), cloud, url })
    }

    fn serve(&self) -> anyhow::Result<Running> {
        let socket = self.stand.at("driver.sock");
        let _ = std::fs::remove_file(&socket);
        Ok(self.driver.serve(Path::new(&socket))?)
    }

    async fn edge(&mut self) -> anyhow::Result<Process> {
        let socket = self.stand.at("driver.sock");
        let state = self.stand.at("state");
        let url = self.url.clone();
        let more = ["--cloud", &url, "--state", &state];
        self.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await
    }

    /// Takes the edge's link and sends these welcomes, each saying whose topology the cloud
    /// publishes. The link ends when the tasks are stopped.
    async fn welcome(&self, says: &[Option<&[&str]>]) -> anyhow::Result<(Tasks, Hello)> {
        let mut link = self.cloud.accept().await?;
        let Event::Message(Message::Hello(hello)) = link.next().await else {
            anyhow::bail!("no hello");
        };
        for publishes in says {
            link.send(&welcome(*publishes)?).await?;
        }
        let tasks = Tasks::default();
        tasks.spawn_until_stop("link", async move {
            while !matches!(link.next().await, Event::Closed(_)) {}
        });
        Ok((tasks, hello))
    }

    /// Asks with a deadline: csi-edge waits half of it for a driver that was never up.
    async fn ask(&self, path: &str) -> anyhow::Result<RawAnswer> {
        let front = RawClient::connect(&self.stand.edge_front(NODE, DRIVER)).await?;
        front.send(path, frame::frame(&[]), &[("grpc-timeout", "2S")]).await
    }

    /// The keys of the topology at the node's front, and whether it has
    /// VOLUME_ACCESSIBILITY_CONSTRAINTS.
    async fn shown(&self) -> anyhow::Result<(Vec<String>, bool)> {
        let info = self.ask(INFO).await?;
        let info =
            csi::NodeGetInfoResponse::decode(info.message().context(info.status().to_string())?)?;
        ensure!(info.node_id == NODE, "{:?} is no id of this node", info.node_id);
        let topology = info.accessible_topology.unwrap_or_default();
        let answer = self.ask(CAPABILITIES).await?;
        let said = answer.message().context(answer.status().to_string())?;
        Ok((topology.segments.into_keys().collect(), topology::constrained(&said)))
    }

    async fn shows(&self, expected: (Vec<String>, bool)) -> anyhow::Result<()> {
        until("the node's front shows the topology so", || async {
            let shown = self.shown().await?;
            ensure!(shown == expected, "{shown:?}");
            Ok(())
        })
        .await
    }
}

fn welcome(publishes: Option<&[&str]>) -> anyhow::Result<Message> {
    let drivers = publishes.map(|drivers| drivers.iter().map(|name| name.parse()).collect());
    let publishes_topology = drivers.transpose()?;
    Ok(Message::Welcome(Welcome { publishes_topology, ..hostile_cloud::welcome("test") }))
}

fn with_topology() -> (Vec<String>, bool) {
    (vec![TOPOLOGY_KEY.to_owned()], true)
}

const WITHOUT: (Vec<String>, bool) = (Vec::new(), false);

#[tokio::test]
async fn a_front_leaves_topology_out_where_the_cloud_publishes_it_also_after_a_restart()
-> anyhow::Result<()> {
    let mut site = Site::new().await?;
    let serving = site.serve()?;
    let edge = site.edge().await?;
    site.shows(with_topology()).await?;
    // A cloud that does not know says no more than before.
    let (link, hello) = site.welcome(&[Some(&[DRIVER]), None]).await?;
    site.shows(WITHOUT).await?;
    // The link has what the driver says, or csi-cloud could not publish it.
    let answers = &hello.drivers.first().context("no driver")?.answers;
    let info = &answers.get("NodeGetInfo").context("no NodeGetInfo")?.0;
    let info = csi::NodeGetInfoResponse::decode(info.clone())?;
    let topology = info.accessible_topology.context("the link has no topology")?;
    assert!(topology.segments.contains_key(TOPOLOGY_KEY), "{:?}", topology.segments);
    let said = &answers.get("GetPluginCapabilities").context("no capabilities")?.0;
    assert!(topology::constrained(said), "the link lacks the capability");

    // A power cut: neither cloud nor driver is there when the node asks.
    edge.kill().await?;
    link.stop();
    drop(serving);
    let edge = site.edge().await?;
    site.shows(WITHOUT).await?;
    let serving = site.serve()?;
    site.shows(WITHOUT).await?;
    // A kubelet has begun to publish the node.
    // What it dialed before was not answered, and is closed by now.
    let other = || site.welcome(&[Some(&["other.example"])]);
    let (link, _) = until("the edge links again", other).await?;
    site.shows(with_topology()).await?;
    edge.kill().await?;
    link.stop();
    drop(serving);
    let edge = site.edge().await?;
    site.shows(with_topology()).await?;
    edge.stop(START).await
}

#[tokio::test]
async fn a_front_answers_for_a_driver_that_is_away_what_it_said_last() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    let edge = site.edge().await?;
    until("the node's front is served", || async { site.ask(INFO).await.map(drop) }).await?;
    // Nobody has said anything yet, and nothing is made up.
    assert_eq!(site.ask(INFO).await?.code(), Code::Unavailable);
    assert_eq!(site.ask("/csi.v1.Identity/Probe").await?.code(), Code::Unavailable);
    let serving = site.serve()?;
    site.shows(with_topology()).await?;
    let ready = async || {
        let answer = site.ask("/csi.v1.Identity/Probe").await?;
        let probe = answer.message().context(answer.status().to_string())?;
        anyhow::Ok(csi::ProbeResponse::decode(probe)?.ready)
    };
    assert_ne!(ready().await?, Some(false));
    let kept = Path::new(&site.stand.at("state")).join("introductions.json");
    until("the file of what it said", || async {
        ensure!(kept.exists(), "{}", kept.display());
        Ok(())
    })
    .await?;
    // The driver is there, and what it asks for its answer is not.
    let message = "the API server is away".to_owned();
    let fault = Fault::Error { code: Code::Unavailable, message };
    site.driver.inject("NodeGetInfo", fault, Times::All);
    site.shows(with_topology()).await?;
    assert!(!site.driver.calls_of("NodeGetInfo").is_empty());
    let refused = Fault::Error { code: Code::FailedPrecondition, message: String::new() };
    site.driver.clear_faults();
    site.driver.inject("NodeGetInfo", refused, Times::All);
    assert_eq!(site.ask(INFO).await?.code(), Code::FailedPrecondition, "it says something else");
    drop(serving);
    until("the driver is away", || async {
        ensure!(ready().await? == Some(false), "it claims to be ready");
        Ok(())
    })
    .await?;
    edge.kill().await?;
    let edge = site.edge().await?;
    site.shows(with_topology()).await?;
    let paths = ["Identity/GetPluginInfo", "Node/NodeGetCapabilities"];
    for path in paths.map(|path| format!("/csi.v1.{path}")) {
        let kept = site.ask(&path).await?;
        assert_eq!(kept.code(), Code::Ok, "{path}: {}", kept.status());
    }
    // What is about volumes is the driver's alone.
    let health = site.ask("/csi.v1.Node/NodeGetStorageHealth").await?;
    assert_eq!(health.code(), Code::Unavailable, "{}", health.status());
    edge.stop(START).await
}
