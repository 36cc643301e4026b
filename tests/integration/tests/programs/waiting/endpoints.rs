//! Several endpoints of the cloud. The next one is used when one fails or swallows bytes, and the
//! preferred one again when it works. A link survives a change of the edge's address.

use std::path::Path;
use std::time::Duration;

use drivers::testdriver::{Fault, Gate, Running, TestDriver, Times};
use harness::process::Process;
use harness::raw::RawClient;
use harness::relay::Relay;
use harness::requests::{controller, create};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, ready};
use proto::host::publish::{Existing, publish};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::Code;

/// A cloud with both transports, a driver, and an edge with these endpoints.
struct Endpoints {
    stand: Stand,
    cloud: Cloud,
    driver: TestDriver,
    serving: Running,
}

impl Endpoints {
    async fn new() -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let serving = driver.serve(Path::new(&stand.at("driver.sock")))?;
        let cloud = stand.cloud(&TRANSPORTS, &[DRIVER], &["--dead-after", "4"]).await?;
        Ok(Self { stand, cloud, driver, serving })
    }

    async fn edge(&mut self, ways: &[&str]) -> anyhow::Result<Process> {
        let config = self.stand.at("edge.toml");
        let socket = self.stand.at("driver.sock");
        let text = format!("cloud = {ways:?}\n[link]\ndead_after_s = 4\nreturn_after_s = 1\n");
        publish(Path::new(&config), text.as_bytes(), 0o600, Existing::Replace)?;
        self.stand.edge_with(NODE, &[(DRIVER, &socket)], &["--config", &config]).await
    }

    async fn front(&self) -> anyhow::Result<RawClient> {
        let front = RawClient::connect(&self.stand.cloud_front(DRIVER)).await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        Ok(front)
    }

    async fn stop(self, edge: Process) -> anyhow::Result<()> {
        edge.stop(START).await?;
        self.cloud.process.stop(START).await?;
        self.serving.stop().await;
        Ok(())
    }
}

#[tokio::test]
async fn a_way_that_swallows_all_is_left_for_the_next_and_taken_again_when_it_works()
-> anyhow::Result<()> {
    let mut world = Endpoints::new().await?;
    let relay = Relay::to(&world.cloud.urls[1]).await?;
    relay.swallow();
    let quic = relay.url();
    let wss = world.cloud.urls[0].clone();
    let begun = Instant::now();
    let mut edge = world.edge(&[quic, &wss]).await?;
    assert!(edge.line_starting("linked ", START).await?.starts_with(&wss));
    assert!(begun.elapsed() < Duration::from_secs(5), "not within 5 s: {:?}", begun.elapsed());
    let front = world.front().await?;
    assert_eq!(front.call(&controller("CreateVolume"), &create("v")).await?.code(), Code::Ok);

    let gate = Gate::new();
    world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
    let path = controller("CreateVolume");
    let request = create("w");
    let moving = async {
        gate.wait_for(1).await?;
        relay.mend();
        let url = edge.line_starting("linked ", START).await?;
        assert!(
            url.starts_with(quic),
            "not the preferred way: {url}\n{}\n{}",
            edge.log_tail(),
            world.cloud.process.log_tail()
        );
        gate.open();
        anyhow::Ok(())
    };
    let (answer, moved) = tokio::join!(front.call(&path, &request), moving);
    moved?;
    // On the older link when it was replaced; sent again on the newer, and joined to the one run.
    assert_eq!(answer?.code(), Code::Ok);
    assert_eq!(world.driver.calls_of("CreateVolume").len(), 2, "it was run twice");

    relay.swallow();
    let begun = Instant::now();
    assert!(edge.line_starting("linked ", START).await?.starts_with(&wss));
    // 6 s until the silence is noticed, and 3 s until the other endpoint has its turn.
    assert!(begun.elapsed() < Duration::from_secs(6 + 6), "{:?}", begun.elapsed());
    assert_eq!(front.call(&controller("CreateVolume"), &create("v")).await?.code(), Code::Ok);
    assert_eq!(world.driver.volumes().len(), 2);
    world.stop(edge).await
}

#[tokio::test]
async fn a_way_on_which_nobody_listens_is_left_at_once() -> anyhow::Result<()> {
    let mut world = Endpoints::new().await?;
    let nobody = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let dead = format!("wss://{nobody}");
    let quic = world.cloud.urls[1].clone();
    let begun = Instant::now();
    let mut edge = world.edge(&[&dead, &quic]).await?;
    assert!(edge.line_starting("linked ", START).await?.starts_with(&quic));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    world.stop(edge).await
}

#[tokio::test]
async fn a_quic_link_and_the_call_on_it_live_on_when_the_edges_address_changes()
-> anyhow::Result<()> {
    let mut world = Endpoints::new().await?;
    let relay = Relay::to(&world.cloud.urls[1]).await?;
    let mut edge = world.edge(&[relay.url()]).await?;
    edge.line_starting("linked ", START).await?;
    let front = world.front().await?;
    let gate = Gate::new();
    world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
    let path = controller("CreateVolume");
    let request = create("v");
    let moved = async {
        gate.wait_for(1).await?;
        for _ in 0..3 {
            // As a NAT that forgets a mapping, or an edge that changes its network.
            relay.move_port();
            let answer = front.call(&controller("GetCapacity"), &[]).await?;
            anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
        }
        gate.open();
        Ok(())
    };
    let (answer, moved) = tokio::join!(front.call(&path, &request), moved);
    moved?;
    assert_eq!(answer?.code(), Code::Ok);
    let logs = [edge.log_tail(), world.cloud.process.log_tail()];
    assert!(
        !logs[0].contains("no link") && !logs[1].contains("unlinked"),
        "it was made again: {logs:?}"
    );
    world.stop(edge).await
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_on_both_sides() -> anyhow::Result<()> {
    let mut world = Endpoints::new().await?;
    let signs = ["no sign of life: 3 pings, one each", "no sign of life from the other side"];
    for (url, sign) in world.cloud.urls.clone().into_iter().zip(signs) {
        let relay = Relay::to(&url).await?;
        let mut edge = world.edge(&[relay.url()]).await?;
        edge.line_starting("linked ", START).await?;
        let front = world.front().await?;
        assert_eq!(front.call(&controller("GetCapacity"), &[]).await?.code(), Code::Ok);
        relay.swallow();
        let begun = Instant::now();
        for (process, log) in [(&world.cloud.process, "unlinked"), (&edge, "no link; dialing")] {
            process.logged(log).await?;
            process.logged(sign).await?;
        }
        assert!(begun.elapsed() < Duration::from_secs(9), "{url}: {:?}", begun.elapsed());
        relay.mend();
        edge.line_starting("linked ", START).await?;
        edge.stop(START).await?;
    }
    world.cloud.process.stop(START).await?;
    world.serving.stop().await;
    Ok(())
}
