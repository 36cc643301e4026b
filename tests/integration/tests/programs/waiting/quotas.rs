//! Quotas of one node, and an edge that goes beyond each of them. Its node is n2, beside a good
//! edge that is not affected.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use harness::requests::controller;
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, World, hello};
use prost::Message as _;
use proto::control::hello::{Driver, Hello, Message, Protobuf};
use proto::csi;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, ws};
use serde_json::Value;
use tokio::time::timeout;
use tonic::Code;

/// The node of the edge that breaks the rules.
const BAD: &str = "n2";

async fn dial(world: &World) -> anyhow::Result<Link> {
    let credentials = world.stand.credentials(BAD, Role::Node)?;
    let url = world.url().parse()?;
    Ok(proto::link::dial(&url, &credentials, KeepAlive::default(), &ws::tcp()).await?)
}

fn saying(drivers: Vec<Driver>) -> anyhow::Result<Message> {
    Ok(Message::Hello(Hello { drivers, ..hello(BAD)? }))
}

fn named(count: usize) -> anyhow::Result<Vec<Driver>> {
    let driver = |number| {
        let name = if number == 0 { DRIVER.into() } else { format!("invented-{number}.example") };
        Ok(Driver { name: name.parse()?, answers: BTreeMap::new() })
    };
    (0..count).map(driver).collect()
}

/// The driver, with this node id and these topology segments.
fn at(node_id: &str, segments: &[(String, String)]) -> anyhow::Result<Vec<Driver>> {
    let info = csi::NodeGetInfoResponse {
        node_id: node_id.into(),
        accessible_topology: Some(csi::Topology { segments: segments.iter().cloned().collect() }),
        ..Default::default()
    };
    let info = Protobuf(info.encode_to_vec().into());
    let answers = BTreeMap::from([("NodeGetInfo".to_owned(), info)]);
    Ok(vec![Driver { name: DRIVER.parse()?, answers }])
}

/// Why a hello is refused.
async fn refusal(world: &World, drivers: Vec<Driver>) -> anyhow::Result<String> {
    let mut link = dial(world).await?;
    link.send(&saying(drivers)?).await?;
    match timeout(START, link.next()).await? {
        Event::Message(Message::Refused(refused)) => Ok(refused.reason),
        _ => anyhow::bail!("it was not refused"),
    }
}

/// A link of the bad edge whose hello was within the quotas.
async fn welcome(world: &World) -> anyhow::Result<Link> {
    let mut link = dial(world).await?;
    link.send(&saying(named(1)?)?).await?;
    match timeout(START, link.next()).await? {
        Event::Message(Message::Welcome(_)) => Ok(link),
        _ => anyhow::bail!("it was not welcome"),
    }
}

/// The reasons for which the bad edge's node is set apart, as `csi-cloud nodes` shows them.
async fn why_apart(world: &World) -> anyhow::Result<Vec<String>> {
    let admin = world.stand.at("cloud/_admin.sock");
    let shown = world.stand.run("csi-cloud", &["nodes", "-o", "json", "--admin", &admin]).await?;
    let nodes: Vec<Value> = serde_json::from_str(&shown)?;
    let node = nodes.iter().find(|node| node["name"] == BAD).context("the node is not shown")?;
    let reasons = node["set_apart"].as_array().context("no reasons")?;
    Ok(reasons.iter().filter_map(|apart| apart["why"].as_str().map(str::to_owned)).collect())
}

/// The good edge is linked and answers.
async fn untouched(world: &World) -> anyhow::Result<()> {
    let front = world.front().await?;
    until("the good edge answers", || async {
        let answer = front.call(&controller("ValidateVolumeCapabilities"), &[]).await?;
        ensure!(answer.code() != Code::Unavailable, "{}", answer.status());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_edge_that_invents_drivers_segments_and_long_names_is_refused() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        let pki = world.stand.pki();
        world.stand.run("csi-cloud", &["ca", "issue", BAD, "--dir", &pki]).await?;
        welcome(&world).await?.close("done").await;
        let many: Vec<_> = (0..33).map(|number| (format!("k{number}"), "v".to_owned())).collect();
        let long = "x".repeat(129);
        for (drivers, reason) in [
            (named(65)?, "65 drivers, and 64 is the quota of a node (drivers in [quotas])"),
            (at("id", &many)?, "33 topology segments of"),
            (at("id", &[(long.clone(), "v".into())])?, "129 bytes in the key of a topology"),
            (at("id", &[("k".into(), long)])?, "129 bytes in the value of a topology"),
            (at(&"x".repeat(257), &[])?, "257 bytes in the node id of"),
        ] {
            let refused = refusal(&world, drivers).await?;
            assert!(refused.contains(reason), "{refused}");
            world.cloud.process.logged(reason).await?;
            let why = why_apart(&world).await?;
            assert!(why.len() == 1 && why[0].contains(reason), "{why:?}");
        }
        // The same on a link that was welcome.
        let mut link = welcome(&world).await?;
        assert_eq!(why_apart(&world).await?, [""; 0], "what is within the quotas ends it");
        link.send(&Message::Drivers(named(100)?)).await?;
        let closed = loop {
            match timeout(START, link.next()).await? {
                Event::Closed(error) => break error.to_string(),
                _ => continue,
            }
        };
        assert!(closed.contains("100 drivers, and 64 is the quota"), "{closed}");
        let drivers = world.stand.run(
            "csi-cloud",
            &["drivers", "-o", "json", "--admin", &world.stand.at("cloud/_admin.sock")],
        );
        assert!(!drivers.await?.contains("invented"), "something was kept");
        untouched(&world).await?;
        world.stop().await?;
    }
    Ok(())
}
