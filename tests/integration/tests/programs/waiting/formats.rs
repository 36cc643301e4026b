//! What an older version wrote is read by this one: its store in a file and in etcd, its export,
//! its state directory, its hello and its welcome. They are committed in `tests/formats`, whose
//! README says how they were made.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::TestDriver;
use harness::etcd_server;
use harness::stand::Stand;
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE};
use proto::control::hello;
use proto::host::publish::{Existing, publish};
use serde_json::Value;
use successor::{Kept, Successor};
use things::{OLDEST, committed};
use wire::{RawCloud, RawLink};

mod etcd;
mod successor;
mod supplement;
mod things;
mod wire;
mod write;

/// The versions whose formats are committed: the release before this one, and a commit after it.
const VERSIONS: [&str; 2] = ["0.2.0", "db421f83"];

#[tokio::test]
async fn the_store_and_the_state_of_an_older_version_are_read_and_served() -> anyhow::Result<()> {
    for version in [OLDEST].into_iter().chain(VERSIONS) {
        continues(version, Kept::File).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_export_of_an_older_version_is_imported_and_served() -> anyhow::Result<()> {
    for version in VERSIONS {
        continues(version, Kept::Export).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_store_in_etcd_of_an_older_version_is_read_and_served() -> anyhow::Result<()> {
    if !etcd_server::is_installed("formats of etcd")? {
        return Ok(());
    }
    for version in VERSIONS {
        continues(version, Kept::Etcd).await?;
    }
    Ok(())
}

/// Today's programs find each record with its meaning.
async fn continues(version: &str, kept: Kept) -> anyhow::Result<()> {
    let continued = async {
        let mut successor = Successor::start(version, kept).await?;
        until("all is shown", || successor.shows_it(version)).await?;
        until("the leases are known", || successor.keeps_the_leases(version)).await?;
        successor.trusts_the_same(version).await?;
        successor.serves_it().await?;
        successor.holds_names(version).await?;
        successor.stop().await
    };
    continued.await.with_context(|| format!("{version}, {kept:?}"))
}

#[tokio::test]
async fn an_edge_of_an_older_version_is_welcome() -> anyhow::Result<()> {
    for version in VERSIONS {
        let stand = Stand::new().await?;
        stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
        let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
        let mut link = RawLink::dial(&stand, cloud.urls.first().context("no listener")?).await?;
        let text = std::fs::read_to_string(committed(version, "hello.json"))?;
        let older: Value = serde_json::from_str(&text)?;
        link.send(&text).await?;
        let welcome: Value = serde_json::from_str(&link.next().await?)?;
        ensure!(welcome["welcome"]["protocol"] == hello::PROTOCOL, "{welcome}");
        ensure!(welcome["welcome"]["owners"] == true, "{welcome}");
        let admin = stand.at("cloud/_admin.sock");
        let nodes = stand.run("csi-cloud", &["nodes", "-o", "json", "--admin", &admin]).await?;
        let nodes: Value = serde_json::from_str(&nodes)?;
        ensure!(nodes[0]["state"] == "linked", "{nodes}");
        ensure!(nodes[0]["version"] == older["hello"]["version"], "{nodes}");
        ensure!(nodes[0]["drivers"][0] == DRIVER, "{nodes}");
        drop(link);
        cloud.process.stop(STOP).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_edge_links_to_a_cloud_of_an_older_version() -> anyhow::Result<()> {
    for version in VERSIONS {
        let mut stand = Stand::new().await?;
        let (cloud, url) = RawCloud::listen(&stand).await?;
        let socket = stand.at("driver.sock");
        let driver = TestDriver::new(DRIVER, NODE);
        let serving = driver.serve(socket.as_ref())?;
        let state = stand.at("n1-state");
        let more = ["--cloud", url.as_str(), "--state", &state];
        let mut edge = stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
        let mut link = cloud.accept().await?;
        let hello: Value = serde_json::from_str(&link.next().await?)?;
        ensure!(hello["hello"]["protocol"] == hello::PROTOCOL, "{hello}");
        link.send(&std::fs::read_to_string(committed(version, "welcome.json"))?).await?;
        edge.line_starting("linked ", START).await?;
        // The scopes that it told are kept.
        until("the scopes are kept", || async {
            let scopes = std::fs::read_to_string(Path::new(&state).join("scopes.json"))?;
            ensure!(scopes.contains(DRIVER), "{scopes}");
            Ok(())
        })
        .await?;
        drop(link);
        edge.stop(STOP).await?;
        serving.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_hello_of_the_next_protocol_is_refused_with_the_one_that_is_spoken() -> anyhow::Result<()>
{
    let stand = Stand::new().await?;
    stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
    let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
    let mut link = RawLink::dial(&stand, cloud.urls.first().context("no listener")?).await?;
    link.send(r#"{"hello":{"protocol":2,"names":["n1"]}}"#).await?;
    let refused: Value = serde_json::from_str(&link.next().await?)?;
    ensure!(refused["refused"]["protocol"] == 1, "{refused}");
    let reason = refused["refused"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("upgrade csi-cloud first"), "{refused}");
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn an_edge_of_0_1_0_is_refused_with_the_versions_that_work() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    stand.run("csi-cloud", &["ca", "issue", NODE, "--dir", &stand.pki()]).await?;
    let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[]).await?;
    let mut link = RawLink::dial(&stand, cloud.urls.first().context("no listener")?).await?;
    let older = r#"{"protocol":1,"node":"n1","version":"0.1.0","drivers":[],"owners":true}"#;
    link.send(&format!(r#"{{"hello":{older}}}"#)).await?;
    let refused: Value = serde_json::from_str(&link.next().await?)?;
    let reason = refused["refused"]["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("csi-edge 0.1.0 is too old"), "{refused}");
    ensure!(reason.contains("links to 0.2.0 and later: upgrade csi-edge"), "{refused}");
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn a_state_directory_of_a_newer_version_is_refused_and_left_alone() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let state = stand.at("n1-state");
    std::fs::create_dir(&state)?;
    let newer = br#"{"format":2}"#;
    let file = Path::new(&state).join("format.json");
    publish(&file, newer, 0o600, Existing::Keep)?;
    let more = ["--cloud", "wss://127.0.0.1:1", "--state", &state];
    let mut edge = stand.edge_with(NODE, &[(DRIVER, "/nowhere.sock")], &more).await?;
    ensure!(!edge.ended(START).await?.success(), "it served");
    let log = edge.log_tail();
    for word in [state.as_str(), "in format 2", "start the newer csi-edge again"] {
        ensure!(log.contains(word), "{log}");
    }
    let listed = stand.run("csi-edge", &["direct", "list", "--state", &state]).await;
    let refused = format!("{:#}", listed.err().context("it was listed")?);
    ensure!(refused.contains("in format 2"), "{refused}");
    let left: Vec<_> = std::fs::read_dir(&state)?.collect::<Result<_, _>>()?;
    ensure!(left.len() == 1 && std::fs::read(&file)? == newer, "{left:?}");
    Ok(())
}
