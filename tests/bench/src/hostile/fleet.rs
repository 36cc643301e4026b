//! A csi-cloud with a section for its driver, and csi-edges whose drivers are in this process.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{Outcome, Running, TOPOLOGY_KEY, TestDriver};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{create, created};
use harness::stand::Stand;
use harness::wait::{STOP, until};
use harness::world::ready;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::host::publish::{Existing, publish};
use serde_json::Value;
use tokio::time::sleep;

use super::memory;
use super::world::{DRIVER, World};

/// The secret in requests, which no driver may get but the one that they are for.
pub(super) const SECRET: &str = "marked-secret";

/// Such a csi-cloud, and its nodes.
pub(super) struct Fleet {
    pub(super) world: World,
    pub(super) front: RawClient,
    pub(super) nodes: Vec<Node>,
}

/// A node.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) driver: TestDriver,
    serving: Running,
    pub(super) edge: Process,
}

impl Fleet {
    /// A csi-cloud with this section for the driver, and no node yet.
    pub(super) async fn new(transport: &str, section: &str) -> anyhow::Result<Self> {
        Self::on(World::stand().await?, transport, section, &[]).await
    }

    /// The same on this stand, with further arguments.
    pub(super) async fn on(
        stand: Stand,
        transport: &str,
        section: &str,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let config = stand.at("fleet.toml");
        let text = format!("[driver.\"{DRIVER}\"]\n{section}\n");
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let more = [&["--config", &config], more].concat();
        let world = World::on(stand, transport, &more).await?;
        let front = RawClient::connect(&world.stand.cloud_front(DRIVER)).await?;
        Ok(Self { world, front, nodes: Vec::new() })
    }

    /// A node with this driver links.
    pub(super) async fn join(
        &mut self,
        name: &'static str,
        driver: TestDriver,
    ) -> anyhow::Result<()> {
        let socket = self.socket(name);
        let serving = driver.serve(socket.as_ref())?;
        let url = self.world.url().to_owned();
        let edge = self.world.stand.edge(name, &url, &[(DRIVER, &socket)]).await?;
        self.nodes.push(Node { name, driver, serving, edge });
        Ok(())
    }

    /// Several nodes link, whose drivers have no id in common.
    pub(super) async fn join_all(&mut self, names: &[&'static str]) -> anyhow::Result<()> {
        for (at, name) in (1..).zip(names) {
            let driver = TestDriver::new(DRIVER, *name);
            driver.count_from(at * 100_000);
            self.join(name, driver).await?;
        }
        self.ready().await
    }

    /// The socket of a node's driver.
    pub(super) fn socket(&self, name: &str) -> String {
        self.world.stand.at(&format!("{name}.sock"))
    }

    /// A connection to a node's driver, past csi-cloud.
    pub(super) async fn direct(&self, name: &str) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.socket(name)).await
    }

    /// Waits until csi-cloud knows what the driver can do.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        until("csi-cloud learns of the driver", || ready(&self.front)).await
    }

    /// Waits until these nodes have been listed.
    pub(super) async fn listed(&self, names: &[&str]) -> anyhow::Result<()> {
        let is_named = |node: &&Node| names.contains(&node.name);
        until("the nodes are listed", || async {
            self.front.call(Method::ListVolumes.path(), &[]).await?;
            self.nodes.iter().filter(is_named).try_for_each(Node::listed)
        })
        .await?;
        self.forget();
        Ok(())
    }

    /// Forgets the calls that drivers got.
    pub(super) fn forget(&self) {
        self.nodes.iter().for_each(|node| node.driver.forget_calls());
    }

    /// The node of this name.
    pub(super) fn node(&self, name: &str) -> anyhow::Result<&Node> {
        self.nodes.iter().find(|node| node.name == name).context("no such node")
    }

    /// Calls the front.
    pub(super) async fn call(
        &self,
        method: Method,
        request: &impl Message,
    ) -> anyhow::Result<RawAnswer> {
        self.front.call(method.path(), &request.encode_to_vec()).await
    }

    /// The nodes whose driver got this text since calls were forgotten.
    pub(super) fn who_got(&self, text: &str) -> Vec<&'static str> {
        let got = |node: &&Node| has_got(&node.driver, text);
        self.nodes.iter().filter(got).map(|node| node.name).collect()
    }

    /// What a command of csi-cloud prints as JSON.
    pub(super) async fn shown(&self, command: &[&str]) -> anyhow::Result<Value> {
        let text = self.world.admin(&[command, &["-o", "json"]].concat()).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Waits until a node is set apart, for at most this long. Returns the kinds of reasons.
    pub(super) async fn set_apart(
        &self,
        node: &str,
        limit: Duration,
    ) -> anyhow::Result<Vec<String>> {
        let mut left = limit;
        loop {
            let reasons = reasons(&self.shown(&["nodes"]).await?, node);
            if !reasons.is_empty() || left.is_zero() {
                return Ok(reasons);
            }
            let pause = Duration::from_millis(200).min(left);
            sleep(pause).await;
            left -= pause;
        }
    }

    /// Kills csi-cloud and starts it again with the same store, at the same address.
    pub(super) async fn restarted(self, transport: &str) -> anyhow::Result<Self> {
        let Self { world, nodes, .. } = self;
        let port = world.addr()?.port();
        let stand = world.killed().await?;
        let config = stand.at("fleet.toml");
        let listen = format!("{transport}://127.0.0.1:{port}");
        let cloud = stand.cloud(&[&listen], &[DRIVER], &["--config", &config]).await?;
        let cloud = memory::hold(cloud)?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        let fleet = Self { world: World { stand, cloud }, front, nodes };
        fleet.ready().await?;
        Ok(fleet)
    }

    /// Ends all programs.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        for node in self.nodes {
            node.stop().await?;
        }
        self.world.stop().await
    }
}

impl Node {
    /// Succeeds when the node has been listed.
    fn listed(&self) -> anyhow::Result<()> {
        let calls = self.driver.calls_of(Method::ListVolumes.name());
        let is_listed = calls.iter().any(|call| call.outcome == Outcome::Finished);
        ensure!(is_listed, "{} was not listed", self.name);
        Ok(())
    }

    /// Ends csi-edge and the driver.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.edge.stop(STOP).await?;
        self.serving.stop().await;
        Ok(())
    }
}

/// Whether a driver got this text since calls were forgotten.
pub(super) fn has_got(driver: &TestDriver, text: &str) -> bool {
    let has = |message: &[u8]| message.windows(text.len()).any(|part| part == text.as_bytes());
    driver.calls().iter().any(|call| has(&call.message))
}

/// A create at the place of this node, by the driver's own key or ours.
pub(super) fn create_at(
    name: &str,
    key: &str,
    node: &str,
) -> anyhow::Result<csi::CreateVolumeRequest> {
    let segments = [(key.to_owned(), node.to_owned())].into();
    let here = vec![csi::Topology { segments }];
    let requirement = csi::TopologyRequirement { requisite: here.clone(), preferred: here };
    Ok(csi::CreateVolumeRequest {
        accessibility_requirements: Some(requirement),
        secrets: secrets(),
        ..csi::CreateVolumeRequest::decode(create(name).as_slice())?
    })
}

/// Makes a volume at a node by way of csi-cloud, and returns its id.
pub(super) async fn made_at(fleet: &Fleet, name: &str, node: &str) -> anyhow::Result<String> {
    let request = create_at(name, TOPOLOGY_KEY, node)?;
    let answer = fleet.call(Method::CreateVolume, &request).await?;
    let volume = created(&answer)?;
    ensure!(!volume.volume_id.is_empty(), "a volume without an id");
    Ok(volume.volume_id)
}

/// Secrets as a sidecar sends them.
pub(super) fn secrets() -> HashMap<String, String> {
    [("key".to_owned(), SECRET.to_owned())].into()
}

/// The kinds of reasons for which a node is set apart, in what `csi-cloud nodes` shows.
fn reasons(nodes: &Value, node: &str) -> Vec<String> {
    let nodes = nodes.as_array().into_iter().flatten();
    let of_node = nodes.filter(|item| item["name"] == node);
    let apart = of_node.filter_map(|item| item["set_apart"].as_array()).flatten();
    apart.filter_map(|apart| Some(apart["reason"].as_str()?.to_owned())).collect()
}
