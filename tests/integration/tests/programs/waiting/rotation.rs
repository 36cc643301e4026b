//! Another CA takes over: nobody is locked out, no call is lost, and a restart changes nothing.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use drivers::testdriver::{Running, TestDriver};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS};
use proto::host::tasks::Tasks;
use proto::link::tls::Role;
use tonic::Code;

use super::trust::Issuing;

const OTHER: &str = "n2";
/// A tenth of it is the longest time until an edge renews.
const LIFE: &str = "node_life = \"10m\"\n";

static DRIVERS: AtomicU64 = AtomicU64::new(1);

/// A node with an identity of its own.
struct Member {
    edge: Process,
    _driver: TestDriver,
    _serving: Running,
}

impl Issuing {
    /// A node joins with a token, and links.
    async fn member(&self, node: &str) -> anyhow::Result<Member> {
        self.join(&self.token_of(node).await?, node).await?;
        self.start(node).await
    }

    /// csi-edge starts with an identity that is there.
    async fn start(&self, node: &str) -> anyhow::Result<Member> {
        let stand = &self.world.stand;
        let driver = TestDriver::new(DRIVER, node);
        // No two drivers give one id.
        driver.count_from(DRIVERS.fetch_add(1, Ordering::Relaxed) * 10_000);
        let socket = stand.at(&format!("{node}.sock"));
        let serving = driver.serve(socket.as_ref())?;
        let mut command = stand.program("csi-edge")?;
        command.args(["serve", "--fronts", &stand.at(&format!("fronts-{node}"))]);
        command.args(["--identity", &stand.at(node), "--cloud", self.world.url()]);
        command.arg(format!("--driver={DRIVER}={socket}"));
        let mut edge = Process::start(&format!("member-{node}"), command, stand.dir())?;
        edge.line_starting("linked ", START).await?;
        Ok(Member { edge, _driver: driver, _serving: serving })
    }

    /// The CA of a node, as an operator sees it.
    async fn ca(&self, node: &str) -> anyhow::Result<String> {
        let status = self.json(&["ca", "rotate", "status"]).await?;
        let nodes = status["nodes"].as_array().context("no nodes")?;
        let node = nodes.iter().find(|one| one["node"] == node).context("it is not shown")?;
        Ok(node["ca"].as_str().context("no CA")?.to_owned())
    }

    async fn has_new_ca(&self, node: &str) -> anyhow::Result<()> {
        until("the node has the new CA", || async {
            let ca = self.ca(node).await?;
            ensure!(ca == "current", "{node} has the CA {ca}");
            Ok(())
        })
        .await
    }
}

/// Creates volumes one after another until it is stopped.
fn caller(front: RawClient, tasks: &Tasks) {
    let stopped = tasks.clone();
    tasks.spawn("caller", async move {
        for number in 0.. {
            let request = create(&format!("v{number}"));
            let answer = front.call(&controller("CreateVolume"), &request).await;
            let answer = answer.unwrap();
            assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
            if stopped.is_stopped() {
                return;
            }
        }
    });
}

async fn another_ca_takes_over(transport: &str) -> anyhow::Result<()> {
    let mut issuing = Issuing::new(transport, LIFE).await?;
    let world = &mut issuing.world;
    world.edge.signal(rustix::process::Signal::TERM)?;
    world.edge.ended(START).await?;
    let linked = issuing.member(NODE).await?;
    let away = issuing.member(OTHER).await?;
    issuing.has_new_ca(NODE).await?;
    away.edge.stop(START).await?;

    let new = issuing.world.stand.at("new");
    issuing.world.stand.run("csi-cloud", &["ca", "init", "--dir", &new]).await?;
    let tasks = Tasks::default();
    let front = issuing.world.stand.cloud_front(DRIVER);
    caller(RawClient::connect(&front).await?, &tasks);
    let cert = format!("{new}/ca.crt");
    let key = format!("{new}/ca.key");
    issuing.say(&["ca", "rotate", "start", "--cert", &cert, "--key", &key]).await?;
    assert_eq!(issuing.ca(NODE).await?, "old");
    issuing.has_new_ca(NODE).await?;
    tasks.stop();
    tasks.ended().await;
    let again = issuing.say(&["ca", "rotate", "start", "--cert", &cert, "--key", &key]).await;
    let again = again.err().context("it was begun twice")?;
    assert!(format!("{again:#}").contains("taking over already"), "{again:#}");

    // What it knows of nodes that are away is lost, and counts as the old CA.
    let urls = issuing.world.cloud.urls.clone();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let stand = &issuing.world.stand;
    issuing.world.cloud.process.signal(rustix::process::Signal::KILL)?;
    issuing.world.cloud.process.ended(START).await?;
    let config = issuing.config.clone();
    issuing.world.cloud = stand.cloud(&urls, &[DRIVER], &["--config", &config]).await?;
    issuing.has_new_ca(NODE).await?;
    let early = issuing.say(&["ca", "rotate", "finish"]).await.err().context("it is finished")?;
    let early = format!("{early:#}");
    assert!(early.contains(OTHER) && early.contains("locked out"), "{early}");

    let back = issuing.start(OTHER).await?;
    issuing.has_new_ca(OTHER).await?;
    issuing.say(&["ca", "rotate", "finish"]).await?;
    // Only the new CA is trusted now: what the old one issued is refused, and both edges link.
    let old = issuing.world.stand.credentials(NODE, Role::Node).err().context("it still fits")?;
    assert!(format!("{old:#}").contains("was not issued by the CA"), "{old:#}");
    linked.edge.stop(START).await?;
    let linked = issuing.start(NODE).await?;
    let front = RawClient::connect(&front).await?;
    let answer = front.call(&controller("CreateVolume"), &create("after")).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    for member in [linked, back] {
        member.edge.stop(START).await?;
    }
    issuing.world.cloud.process.stop(START).await
}

#[tokio::test]
async fn another_ca_takes_over_and_locks_nobody_out_over_websocket() -> anyhow::Result<()> {
    another_ca_takes_over(TRANSPORTS[0]).await
}

#[tokio::test]
async fn another_ca_takes_over_and_locks_nobody_out_over_quic() -> anyhow::Result<()> {
    another_ca_takes_over(TRANSPORTS[1]).await
}
