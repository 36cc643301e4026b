//! Peers with a valid certificate that break the rules on purpose.

use std::time::Duration;

use drivers::testdriver::TestDriver;
use harness::hostile_cloud::{HostileCloud, caller};
use harness::no_credit::{AFTER_WELCOME, AT_WELCOME, NoCredit};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::START;
use harness::world::{DRIVER, NODE, TRANSPORTS, World, hello};
use proto::control::hello::Message;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::Tasks;
use proto::link::tls::Role;
use proto::link::{Event, HANDSHAKE};
use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::Code;

struct Edge {
    process: Process,
    driver: TestDriver,
    _serving: drivers::testdriver::Running,
}

async fn edge(stand: &mut Stand, url: &str, more: &[&str]) -> anyhow::Result<Edge> {
    let driver = TestDriver::new(DRIVER, NODE);
    let socket = stand.at("driver.sock");
    let serving = driver.serve(socket.as_ref())?;
    let more = [&["--cloud", url], more].concat();
    let process = stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
    Ok(Edge { process, driver, _serving: serving })
}

#[tokio::test]
async fn a_cloud_gets_what_csi_cloud_sends_and_nothing_else_to_a_driver() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut stand = Stand::new().await?;
        let (cloud, url) = HostileCloud::listen(&stand, transport).await?;
        let edge = edge(&mut stand, &url, &[]).await?;
        let tasks = Tasks::default();
        let client = caller(cloud.welcome().await?, DRIVER, &tasks).await?;
        let mut climbing = vec![];
        prost::Message::encode(
            &proto::csi::NodePublishVolumeRequest {
                volume_id: "v".into(),
                target_path: "/etc/cron.d/../../root/.ssh".into(),
                ..Default::default()
            },
            &mut climbing,
        )?;
        let all = proto::csi::Method::ALL.iter().filter(|method| !method.sent());
        let paths = all.map(|method| method.path());
        let unknown = ["/csi.v1.Node/NodeFormat", "/csi.v1.Controller/Format", "/x.y/Z"];
        for path in paths.chain(unknown) {
            let answer = client.call(path, &climbing).await?;
            assert_eq!(answer.code(), Code::Unimplemented, "{path}: {}", answer.status());
            edge.process.logged(path).await?;
        }
        let reached = edge.driver.calls().into_iter().find(|call| call.message == climbing);
        assert!(reached.is_none(), "one reached the driver");
        let answer = client.call(&controller("CreateVolume"), &create("v")).await?;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        tasks.stop();
        edge.process.stop(START).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_the_node_denies_reaches_no_driver_and_changes_no_capability() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("deny.toml");
    let text = b"deny = [\"ControllerExpandVolume\"]\n";
    publish(config.as_ref(), text, 0o600, Existing::Keep)?;
    let (cloud, url) = HostileCloud::listen(&stand, TRANSPORTS[0]).await?;
    let edge = edge(&mut stand, &url, &["--config", &config]).await?;
    let tasks = Tasks::default();
    let client = caller(cloud.welcome().await?, DRIVER, &tasks).await?;
    let request =
        proto::csi::ControllerExpandVolumeRequest { volume_id: "v".into(), ..Default::default() };
    let request = prost::Message::encode_to_vec(&request);
    let expand = controller("ControllerExpandVolume");
    let answer = client.call(&expand, &request).await?;
    // Not final: an earlier csi-edge, which did not deny it, may have begun a run.
    assert_eq!(answer.code(), Code::Unavailable, "{}", answer.status());
    assert!(answer.status().message().contains("is denied at this node"), "{}", answer.status());
    edge.process.logged("is denied at this node").await?;
    assert!(edge.driver.calls_of("ControllerExpandVolume").is_empty());
    // The node's own callers see the capability, and their calls reach the driver.
    let front = RawClient::connect(&stand.edge_front(NODE, DRIVER)).await?;
    let capabilities = controller("ControllerGetCapabilities");
    let of_driver = RawClient::connect(&stand.at("driver.sock")).await?;
    assert_eq!(
        front.call(&capabilities, &[]).await?.body,
        of_driver.call(&capabilities, &[]).await?.body
    );
    let _ = front.call(&expand, &request).await?;
    assert_eq!(edge.driver.calls_of("ControllerExpandVolume").len(), 1);
    tasks.stop();
    edge.process.stop(START).await
}

#[tokio::test]
async fn a_cloud_that_deletes_everything_is_stopped_where_the_node_says_so() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("deny.toml");
    publish(config.as_ref(), b"deny = [\"many-deletes\"]\n", 0o600, Existing::Keep)?;
    let (cloud, url) = HostileCloud::listen(&stand, TRANSPORTS[0]).await?;
    let edge = edge(&mut stand, &url, &["--config", &config]).await?;
    let tasks = Tasks::default();
    let client = caller(cloud.welcome().await?, DRIVER, &tasks).await?;
    let delete = |number: usize| {
        let volume_id = format!("v{number}");
        let request = proto::csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        let request = prost::Message::encode_to_vec(&request);
        let client = &client;
        async move { client.call(&controller("DeleteVolume"), &request).await }
    };
    // A refill of one comes in three minutes.
    for number in 0..200 {
        let answer = delete(number).await?;
        assert_eq!(answer.code(), Code::Ok, "{number}: {}", answer.status());
    }
    let mut refused = 0;
    for number in 200..300 {
        let answer = delete(number).await?;
        if answer.code() != Code::Ok {
            let status = answer.status();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains("many-deletes"), "{status}");
            refused += 1;
        }
    }
    assert!(refused > 90, "{refused}");
    assert_eq!(edge.driver.calls_of("DeleteVolume").len(), 300 - refused);
    assert_eq!(delete(0).await?.code(), Code::Ok, "it was counted before");
    edge.process.logged("many-deletes").await?;
    tasks.stop();
    edge.process.stop(START).await
}

/// The good edge's node, linked with credit for the first messages of csi-cloud only.
async fn without_credit(world: &World, credit: u32) -> anyhow::Result<NoCredit> {
    let credentials = world.stand.credentials(NODE, Role::Node)?;
    NoCredit::dial(world.url(), &credentials, credit, &Message::Hello(hello(NODE)?)).await
}

#[tokio::test]
async fn an_edge_that_grants_no_credit_is_let_go_in_time() -> anyhow::Result<()> {
    for credit in [AT_WELCOME, AFTER_WELCOME] {
        let world = World::new(TRANSPORTS[1]).await?;
        // It would replace the link.
        world.edge.signal(Signal::STOP)?;
        let mut edge = without_credit(&world, credit).await?;
        let begun = Instant::now();
        for _ in 0..20 {
            edge.send(&Message::Drivers(Vec::new())).await?;
        }
        timeout(Duration::from_secs(15), edge.closed()).await?;
        assert!(begun.elapsed() >= Duration::from_secs(3), "it was closed for something else");
        world.edge.kill().await?;
        world.cloud.process.stop(START).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_removed_node_has_no_connection_after_5_s_whatever_it_does() -> anyhow::Result<()> {
    for credit in [AT_WELCOME, AFTER_WELCOME] {
        let world = World::with(TRANSPORTS[1], &["--http", "127.0.0.1:0"], &[]).await?;
        let admin = world.stand.at("cloud/_admin.sock");
        world.edge.signal(Signal::STOP)?;
        let mut edge = without_credit(&world, credit).await?;
        for _ in 0..20 {
            edge.send(&Message::Drivers(Vec::new())).await?;
        }
        let remove = ["node", "remove", NODE, "--yes", "--admin", &admin];
        world.stand.run("csi-cloud", &remove).await?;
        timeout(Duration::from_secs(5), edge.closed()).await?;
        // It is refused at once. Its side of the handshake may be done before it hears so.
        match without_credit(&world, credit).await {
            Ok(again) => timeout(Duration::from_secs(5), again.closed()).await?,
            Err(refused) => assert!(refused.to_string().contains("certificate"), "{refused:#}"),
        }
        world.edge.kill().await?;
        world.cloud.process.stop(START).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_that_tells_too_much_is_told_so_and_closed() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        world.edge.signal(Signal::STOP)?;
        let mut link = world.dial().await?;
        link.send(&Message::Hello(hello(NODE)?)).await?;
        let mut told = 0;
        let reason = loop {
            told += 1;
            let sent = link.send(&Message::Drivers(Vec::new())).await.is_ok();
            match timeout(if sent { Duration::ZERO } else { START }, link.next()).await {
                Ok(Event::Closed(error)) => break error.to_string(),
                _ => anyhow::ensure!(told < 2000, "it was not closed"),
            }
        };
        assert!(told > 200, "a burst of 200 is allowed, and {told} were told");
        assert!(reason.contains("20 a second"), "{transport}: {reason}");
        world.cloud.process.logged("20 a second").await?;
        let admin = world.stand.at("cloud/_admin.sock");
        let nodes = ["nodes", "-o", "json", "--admin", &admin];
        let nodes = world.stand.run("csi-cloud", &nodes).await?;
        assert!(nodes.contains("\"too_many_messages\""), "it is not set apart: {nodes}");
        world.edge.kill().await?;
        world.cloud.process.stop(START).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_node_has_few_links_that_say_nothing() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let begun = Instant::now();
    let mut links = Vec::new();
    for _ in 0..6 {
        links.push(world.dial().await?);
    }
    for link in &mut links[..2] {
        assert!(matches!(timeout(START, link.next()).await?, Event::Closed(_)));
    }
    assert!(begun.elapsed() < HANDSHAKE, "they were closed for their silence");
    // The newest is heard.
    let newest = links.last_mut().ok_or_else(|| anyhow::anyhow!("none"))?;
    newest.send(&Message::Hello(hello(NODE)?)).await?;
    assert!(matches!(newest.next().await, Event::Message(Message::Welcome(_))));
    drop(links);
    world.stop().await
}
