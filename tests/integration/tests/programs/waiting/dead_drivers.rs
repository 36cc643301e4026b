//! A driver is dead at a node whose link lives: creates go elsewhere, and come back.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, Running, TestDriver, Times};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, World, hello};
use prost::Message as _;
use proto::control::health::{Health, HealthState};
use proto::control::hello::{Driver, Hello, Message, Protobuf};
use proto::csi;
use proto::csi::{Method, frame};
use proto::http2::forward::NOT_DISPATCHED;
use proto::link;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, ws};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::routing::{Nodes, create_at, topology};

/// Why a create was refused, and who got it.
async fn refused(nodes: &Nodes, name: &str, at: &[&str]) -> anyhow::Result<Status> {
    let answer = nodes.call("CreateVolume", &create_at(name, at)?).await?;
    ensure!(
        !answer.headers.contains_key(&NOT_DISPATCHED),
        "the word of an edge came to a caller: {answer:?}"
    );
    let status = answer.status();
    ensure!(status.code() == Code::Unavailable, "{status}");
    Ok(status)
}

/// Makes a volume, and returns the only node that was called.
async fn made(nodes: &Nodes, name: &str, at: &[&str]) -> anyhow::Result<&'static str> {
    nodes.who_got("CreateVolume");
    created(&nodes.call("CreateVolume", &create_at(name, at)?).await?)?;
    let got = nodes.who_got("CreateVolume");
    let [node] = got.as_slice() else { anyhow::bail!("{name} came to {got:?}") };
    Ok(node)
}

async fn open_intents(nodes: &Nodes) -> anyhow::Result<usize> {
    let printed = shown(&nodes.stand, "intents").await?;
    Ok(printed.as_array().context("no list")?.len())
}

async fn shown(stand: &Stand, command: &str) -> anyhow::Result<serde_json::Value> {
    let admin = stand.at("cloud/_admin.sock");
    let printed = stand.run("csi-cloud", &[command, "--admin", &admin, "-o", "json"]).await?;
    Ok(serde_json::from_str(&printed)?)
}

/// Ends the serving of a node's driver; what it has stays.
async fn kill(nodes: &mut Nodes, at: usize) -> anyhow::Result<(TestDriver, Process)> {
    ensure!(at < nodes.nodes.len(), "there is no such node");
    let (driver, serving, edge) = nodes.nodes.remove(at);
    serving.stop().await;
    Ok((driver, edge))
}

fn revive(
    nodes: &mut Nodes,
    at: usize,
    node: &str,
    (driver, edge): (TestDriver, Process),
) -> anyhow::Result<()> {
    let serving: Running = driver.serve(Path::new(&nodes.stand.at(&format!("{node}.sock"))))?;
    nodes.nodes.insert(at, (driver, serving, edge));
    Ok(())
}

/// The node on WebSocket and the one on QUIC.
#[tokio::test]
async fn a_name_that_no_driver_got_is_free_for_another_node() -> anyhow::Result<()> {
    let mut nodes = Nodes::with("", &[]).await?;
    for (at, node) in [(1, "n2"), (2, "n3")] {
        let dead = kill(&mut nodes, at).await?;
        let name = format!("free-{node}");
        for _ in 0..2 {
            refused(&nodes, &name, &[node]).await?;
            assert_eq!(open_intents(&nodes).await?, 0, "it is pinned to {node}");
        }
        created(&nodes.call("CreateVolume", &create_at(&name, &["n1"])?).await?)?;
        revive(&mut nodes, at, node, dead)?;
        assert!(nodes.who_got("CreateVolume").contains(&"n1"));
        until("the driver is back", || async {
            made(&nodes, &format!("back-{node}"), &[node]).await.map(drop)
        })
        .await?;
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_name_that_a_driver_may_have_stays_whatever_the_driver_says() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    let mut lie = Status::unavailable("the driver says that it never got it");
    lie.metadata_mut().insert(NOT_DISPATCHED.as_str(), MetadataValue::from_static("1"));
    for (name, fault) in
        [("broken", Fault::Die), ("made", Fault::DieAfterWork), ("lie", Fault::AfterWork(lie))]
    {
        let (driver, ..) = nodes.nodes.get(1).context("no n2")?;
        driver.inject("CreateVolume", fault, Times::Next(1));
        refused(&nodes, name, &["n2"]).await?;
        assert_eq!(open_intents(&nodes).await?, 1, "{name} is free");
        until("the driver is back", || async {
            ensure!(made(&nodes, name, &["n1"]).await? == "n2", "{name} was made elsewhere");
            Ok(())
        })
        .await?;
        assert_eq!(open_intents(&nodes).await?, 0);
    }
    nodes.stop().await
}

/// A refusal after an attempt that was lost frees nothing, also after a restart of csi-cloud.
#[tokio::test]
async fn a_refusal_says_nothing_of_an_earlier_attempt() -> anyhow::Result<()> {
    let mut nodes = Nodes::with("", &[]).await?;
    let (driver, ..) = nodes.nodes.get(1).context("no n2")?;
    driver.inject("CreateVolume", Fault::DieAfterWork, Times::Next(1));
    refused(&nodes, "v", &["n2"]).await?;
    let dead = kill(&mut nodes, 1).await?;
    refused(&nodes, "v", &["n1"]).await?;
    assert_eq!(open_intents(&nodes).await?, 1);
    revive(&mut nodes, 1, "n2", dead)?;
    until("the driver is back", || async {
        ensure!(made(&nodes, "v", &["n1"]).await? == "n2", "it was made twice");
        Ok(())
    })
    .await?;
    nodes.stop().await
}

#[tokio::test]
async fn a_topology_whose_node_is_away_for_long_is_passed_over() -> anyhow::Result<()> {
    let mut nodes = Nodes::with("failover_s = 3", &[]).await?;
    let (driver, serving, edge) = nodes.nodes.pop().context("no node")?;
    edge.stop(START).await?;
    let asked = create_at("v", &["n3", "n1"])?;
    let status = nodes.call("CreateVolume", &asked).await?.status();
    assert!(status.message().contains("n3"), "it was not waited for: {status}");
    until("n3 has been away for the grace", || async {
        created(&nodes.call("CreateVolume", &asked).await?).map(drop)
    })
    .await?;
    assert_eq!(nodes.who_got("CreateVolume"), ["n1"]);
    assert!(driver.calls_of("CreateVolume").is_empty());
    serving.stop().await;
    nodes.stop().await
}

/// What a node says of its driver: the answers of the one at this socket, but for the node, and
/// this health.
async fn told(socket: &str, node: &str, state: HealthState) -> anyhow::Result<Driver> {
    let direct = RawClient::connect(socket).await?;
    let mut answers = BTreeMap::new();
    for method in Method::ALL.iter().filter(|method| method.local().is_some()) {
        let answer = direct.call(method.path(), &[]).await?;
        if let Some(message) = answer.message().filter(|_| method.name() != "Probe") {
            answers.insert(method.name().to_owned(), Protobuf(message));
        }
    }
    let info = csi::NodeGetInfoResponse {
        node_id: node.into(),
        accessible_topology: Some(topology(node)),
        ..Default::default()
    };
    answers.insert("NodeGetInfo".to_owned(), Protobuf(info.encode_to_vec().into()));
    let why = if state.is_up() { "" } else { "nobody serves its socket" }.into();
    let health = Some(Health { state, seconds: 100, why });
    Ok(Driver { name: DRIVER.parse()?, answers, health })
}

/// An edge of the test's own, which says this of its driver.
async fn fake(stand: &Stand, cloud: &Cloud, node: &str, driver: Driver) -> anyhow::Result<Link> {
    let credentials = stand.credentials(node, Role::Node)?;
    let url = cloud.urls.first().context("no listener")?.parse()?;
    let mut link = link::dial(&url, &credentials, KeepAlive::default(), &ws::tcp()).await?;
    let drivers = vec![driver];
    tell(&mut link, Message::Hello(Hello { drivers, ..hello(node)? })).await?;
    Ok(link)
}

/// Sends a message about drivers, which csi-cloud answers with a welcome.
async fn tell(link: &mut Link, message: Message) -> anyhow::Result<()> {
    link.send(&message).await?;
    match tokio::time::timeout(START, link.next()).await? {
        Event::Message(Message::Welcome(_)) => Ok(()),
        Event::Message(other) => anyhow::bail!("csi-cloud says {other:?}"),
        Event::Closed(error) => anyhow::bail!("the link ended: {error}"),
        Event::Opened(..) => anyhow::bail!("csi-cloud calls"),
    }
}

/// Waits until csi-cloud shows the driver at a node so.
async fn is_shown(stand: &Stand, name: &str, state: &str) -> anyhow::Result<()> {
    until("the health is shown", || async {
        let all = shown(stand, "nodes").await?;
        let mut all = all.as_array().into_iter().flatten();
        let node = all.find(|node| node["name"] == name).context("it is not known")?;
        let health = &node["health"][DRIVER];
        ensure!(health["state"] == state, "it is {health}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_node_that_says_that_its_driver_is_down_gets_nothing_new() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    nodes.stand.run("csi-cloud", &["ca", "issue", "n4", "--dir", &nodes.stand.pki()]).await?;
    let socket = nodes.stand.at("n1.sock");
    let gone = told(&socket, "n4", HealthState::Gone).await?;
    let mut link = fake(&nodes.stand, &nodes.cloud, "n4", gone).await?;
    is_shown(&nodes.stand, "n4", "gone").await?;
    let drivers = shown(&nodes.stand, "drivers").await?;
    let not_up = &drivers[0]["not_up"]["n4"];
    assert_eq!(not_up["why"], "nobody serves its socket", "{drivers}");
    assert!(not_up["for_s"].as_u64().is_some_and(|s| s >= 100), "{drivers}");
    for number in 0..4 {
        assert_eq!(made(&nodes, &format!("list-{number}"), &["n4", "n1"]).await?, "n1");
    }
    // Its capacity counts as that of a node that is away.
    let capacity =
        csi::GetCapacityRequest { accessible_topology: Some(topology("n4")), ..Default::default() };
    let answer = nodes.call("GetCapacity", &capacity).await?;
    let room = csi::GetCapacityResponse::decode(answer.message().context("no answer")?)?;
    assert_eq!(room.available_capacity, 0);
    let up = told(&socket, "n4", HealthState::Up).await?;
    tell(&mut link, Message::Drivers(vec![up])).await?;
    is_shown(&nodes.stand, "n4", "up").await?;
    // It has the first topology again, and this edge serves no calls.
    let body = frame::frame(&create_at("back", &["n4", "n1"])?.encode_to_vec());
    let timeout = [("grpc-timeout", "1S")];
    let answer = nodes.front.send(&controller("CreateVolume"), body, &timeout).await?;
    assert_ne!(answer.code(), Code::Ok, "{}", answer.status());
    assert!(nodes.who_got("CreateVolume").is_empty(), "it went to another node");
    drop(link);
    nodes.stop().await
}

#[tokio::test]
async fn a_shared_driver_leaves_a_node_that_says_that_its_driver_is_down() -> anyhow::Result<()> {
    let World { mut stand, cloud, edge, driver, serving } = World::shared(TRANSPORTS[0]).await?;
    let url = cloud.urls.first().context("no listener")?.clone();
    let beside = driver.beside("n2");
    let socket = stand.at("n2.sock");
    let second = beside.serve(Path::new(&socket))?;
    let other = stand.edge("n2", &url, &[(DRIVER, &socket)]).await?;
    edge.stop(START).await?;
    let up = told(&socket, "n1", HealthState::Up).await?;
    let mut link = fake(&stand, &cloud, "n1", up).await?;
    is_shown(&stand, "n1", "up").await?;
    // This edge serves no calls, and stays elected all the same.
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    let timeout = [("grpc-timeout", "2S")];
    let answer = front.send(&controller("ListVolumes"), frame::frame(&[]), &timeout).await?;
    assert_ne!(answer.code(), Code::Ok);
    assert_eq!(shown(&stand, "drivers").await?[0]["elected"], "n1");
    let gone = told(&socket, "n1", HealthState::Gone).await?;
    tell(&mut link, Message::Drivers(vec![gone])).await?;
    is_shown(&stand, "n1", "gone").await?;
    created(&front.call(&controller("CreateVolume"), &create("v")).await?)?;
    assert_eq!(shown(&stand, "drivers").await?[0]["elected"], "n2");
    assert_eq!(beside.calls_of("CreateVolume").len(), 1);
    drop(link);
    other.stop(START).await?;
    second.stop().await;
    serving.stop().await;
    cloud.process.stop(START).await
}
