//! Quotas of one node, and an edge that goes beyond each of them. Its node is n2, beside a good
//! edge that is not affected.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, TestDriver, Times};
use harness::raw::RawAnswer;
use harness::requests::{controller, create, created, delete};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, World, hello};
use prost::Message as _;
use proto::control::hello::{Driver, Hello, Message, Protobuf};
use proto::csi;
use proto::host::publish::{Existing, publish};
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
        Ok(Driver { name: name.parse()?, answers: BTreeMap::new(), health: None })
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
    Ok(vec![Driver { name: DRIVER.parse()?, answers, health: None }])
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
    welcome_of(world, named(1)?).await
}

/// A link of the bad edge, which is not refused for these drivers.
async fn welcome_of(world: &World, drivers: Vec<Driver>) -> anyhow::Result<Link> {
    let mut link = dial(world).await?;
    link.send(&saying(drivers)?).await?;
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
        let answer = front.call(&controller("CreateVolume"), &create("good")).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
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
        let reason = "65 drivers, and 64 is the quota of a node (drivers in [quotas])";
        let refused = refusal(&world, named(65)?).await?;
        assert!(refused.contains(reason), "{refused}");
        world.cloud.process.logged(reason).await?;
        let why = why_apart(&world).await?;
        assert!(why.len() == 1 && why[0].contains(reason), "{why:?}");
        // A node has 20 lines of the log, and one more each second.
        tokio::time::sleep(Duration::from_secs(8)).await;
        // What one driver says too much costs that driver alone.
        for (drivers, reason) in [
            (at("id", &many)?, "33 topology segments of"),
            (at("id", &[(long.clone(), "v".into())])?, "129 bytes in the key of a topology"),
            (at("id", &[("k".into(), long)])?, "129 bytes in the value of a topology"),
            (at(&"x".repeat(257), &[])?, "257 bytes in the node id of"),
        ] {
            let link = welcome_of(&world, drivers).await?;
            world.cloud.process.logged(reason).await?;
            assert_eq!(why_apart(&world).await?, [""; 0]);
            link.close("done").await;
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
        let admin = world.stand.at("cloud/_admin.sock");
        let shown = ["drivers", "-o", "json", "--admin", &admin];
        let shown = world.stand.run("csi-cloud", &shown).await?;
        assert!(!shown.contains("invented"), "something was kept");
        untouched(&world).await?;
        world.stop().await?;
    }
    Ok(())
}

/// A world with these quotas, and a driver whose volumes live on single nodes.
async fn world(quotas: &str) -> anyhow::Result<World> {
    let stand = Stand::new().await?;
    let config = stand.at("quotas.toml");
    let text = format!("[driver.\"{DRIVER}\"]\nscope = \"node\"\n[quotas]\n{quotas}\n");
    publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    World::on(stand, TRANSPORTS[0], &["--config", &config]).await
}

async fn call(world: &World, method: &str, request: &[u8]) -> anyhow::Result<RawAnswer> {
    world.front().await?.call(&controller(method), request).await
}

#[tokio::test]
async fn a_create_beyond_the_quota_is_refused_before_it_is_sent() -> anyhow::Result<()> {
    let world = world("volumes = 2").await?;
    let first = created(&call(&world, "CreateVolume", &create("a")).await?)?;
    created(&call(&world, "CreateVolume", &create("b")).await?)?;
    let refused = call(&world, "CreateVolume", &create("c")).await?;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{}", refused.status());
    let text = refused.status().message().to_owned();
    assert!(text.contains("3 volumes and snapshots, and 2 is the quota of a node"), "{text}");
    assert_eq!(world.driver.calls_of("CreateVolume").len(), 2, "it reached the driver");
    // A create that was made before goes on.
    let again = created(&call(&world, "CreateVolume", &create("a")).await?)?;
    assert_eq!(again.volume_id, first.volume_id);
    let deleted = call(&world, "DeleteVolume", &delete(&first.volume_id)).await?;
    assert_eq!(deleted.code(), Code::Ok);
    created(&call(&world, "CreateVolume", &create("c")).await?)?;
    world.stop().await
}

fn list(entries: usize, size: usize, next_token: &str) -> Fault {
    let entry = |number| csi::list_volumes_response::Entry {
        volume: Some(csi::Volume {
            volume_id: format!("invented-{number}"),
            volume_context: [("k".to_owned(), "x".repeat(size))].into(),
            ..Default::default()
        }),
        status: None,
    };
    let entries = (0..entries).map(entry).collect();
    let next_token = next_token.into();
    Fault::raw(csi::ListVolumesResponse { entries, next_token }.encode_to_vec())
}

#[tokio::test]
async fn a_node_that_lists_too_much_is_set_apart_and_the_others_are_listed() -> anyhow::Result<()> {
    let mut world = world("volumes = 5\nlist_mib = 1").await?;
    // Listed before the bad node is there: what no list has shown yet would wait for its list.
    world.driver.fill(3, 10);
    assert_eq!(call(&world, "ListVolumes", &[]).await?.code(), Code::Ok);
    let bad = TestDriver::new(DRIVER, BAD);
    let socket = world.stand.at("bad.sock");
    let serving = bad.serve(Path::new(&socket))?;
    bad.inject("ListVolumes", list(100, 20_000, "more"), Times::All);
    let url = world.url().to_owned();
    let edge = world.stand.edge(BAD, &url, &[(DRIVER, &socket)]).await?;
    let listed = async || {
        let answer = call(&world, "ListVolumes", &[]).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        let list = csi::ListVolumesResponse::decode(answer.message().context("no list")?)?;
        let volumes = list.entries.into_iter().filter_map(|entry| entry.volume);
        anyhow::Ok(volumes.map(|volume| volume.volume_id).collect::<Vec<_>>())
    };
    let is_apart = async |reason: &str| {
        until("it is set apart", || async {
            listed().await?;
            let why = why_apart(&world).await?;
            ensure!(why.iter().any(|why| why.contains(reason)), "{why:?}");
            Ok(())
        })
        .await
    };
    is_apart("(list_mib in [quotas])").await?;
    world.cloud.process.logged("bytes in the answers to ListVolumes").await?;
    let shown = listed().await?;
    assert!(shown.len() == 3 && !shown.iter().any(|id| id.contains("invented")), "{shown:?}");
    // More than it may have, in a list that ends.
    bad.clear_faults();
    bad.inject("ListVolumes", list(100, 10, ""), Times::All);
    is_apart("6 volumes and snapshots, and 5 is the quota of a node").await?;
    assert_eq!(listed().await?.len(), 3 + 5, "what is beyond the quota was kept");
    // Tokens in a circle.
    bad.clear_faults();
    bad.inject("ListVolumes", list(1, 10, "again"), Times::All);
    is_apart("its pages go in a circle").await?;
    // It lists what it may have.
    bad.clear_faults();
    until("it is not set apart any more", || async {
        listed().await?;
        let why = why_apart(&world).await?;
        ensure!(why.is_empty(), "{why:?}");
        Ok(())
    })
    .await?;
    edge.stop(START).await?;
    serving.stop().await;
    world.stop().await
}

#[tokio::test]
async fn a_node_that_was_purged_is_forgotten_and_stays_removed() -> anyhow::Result<()> {
    let mut world = world("volumes = 100").await?;
    let bad = TestDriver::new(DRIVER, BAD);
    let socket = world.stand.at("bad.sock");
    let serving = bad.serve(Path::new(&socket))?;
    bad.count_from(1000);
    bad.fill(40, 10);
    let url = world.url().to_owned();
    let edge = world.stand.edge(BAD, &url, &[(DRIVER, &socket)]).await?;
    let admin = world.stand.at("cloud/_admin.sock");
    let stand = &world.stand;
    let say = async |command: &[&str]| {
        stand.run("csi-cloud", &[command, &["--admin", admin.as_str()]].concat()).await
    };
    until("its volumes are known", || async {
        call(&world, "ListVolumes", &[]).await?;
        let said = say(&["volumes", "--node", BAD, "-o", "json"]).await?;
        ensure!(said.contains("vol-1040"), "{said}");
        Ok(())
    })
    .await?;
    let refused = say(&["node", "purge", BAD, "--forget", "40"]).await.unwrap_err().to_string();
    assert!(refused.contains("is not removed"), "{refused}");
    say(&["node", "remove", BAD, "--yes"]).await?;
    let counted = say(&["node", "purge", BAD]).await.unwrap_err().to_string();
    assert!(counted.contains("--forget 40 to do it"), "{counted}");
    let refused = say(&["node", "purge", BAD, "--forget", "39"]).await.unwrap_err().to_string();
    assert!(refused.contains("give --forget 40 to forget them"), "{refused}");
    say(&["node", "purge", BAD, "--forget", "40"]).await?;
    let said = say(&["volumes", "-o", "json", "--all"]).await?;
    assert!(!said.contains("vol-10"), "{said}");
    world.cloud.process.logged("the node was removed").await?;
    edge.stop(START).await?;
    serving.stop().await;
    world.stop().await
}
