//! A node that nobody drives to: what is broken there ends neither the program nor the link, and
//! the node's front is served all the same.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use drivers::testdriver::{Running, TestDriver};
use harness::clock;
use harness::clock::Clock;
use harness::raw::RawClient;
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS};
use proto::csi::frame;
use proto::host::publish::{Existing, publish};
use tonic::Code;

use super::other_machine::firmware;

/// The time to serve the node after any start.
const SOON: Duration = Duration::from_secs(5);
const CAPABILITIES: &str = "/csi.v1.Node/NodeGetCapabilities";
const INFO: &str = "/csi.v1.Node/NodeGetInfo";

/// True if this test cannot run here.
fn skipped() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: a mount namespace needs root");
    }
    !is_root
}

/// csi-cloud, and the driver of a node.
struct Site {
    cloud: Cloud,
    url: String,
    socket: String,
    driver: Running,
}

impl Site {
    async fn new() -> anyhow::Result<(Stand, Self)> {
        let stand = Stand::new().await?;
        let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
        let (url, socket) = (cloud.urls[0].clone(), stand.at("driver.sock"));
        let driver = TestDriver::new(DRIVER, NODE).serve(Path::new(&socket))?;
        Ok((stand, Self { cloud, url, socket, driver }))
    }
}

/// The disk of the log is full, and whoever read stdout is gone.
#[tokio::test]
async fn an_edge_that_can_print_nothing_links_again() -> anyhow::Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let url = cloud.urls[0].clone();
    let socket = stand.at("driver.sock");
    let edge = stand
        .edge_in("exec >/dev/full 2>&1", NODE, &[(DRIVER, &socket)], &["--cloud", &url])
        .await?;
    cloud.process.logged("linked node=").await?;
    cloud.process.stop(STOP).await?;
    let again = stand.cloud_as("again", &[&url], &[DRIVER], &[]).await?;
    again.process.logged("linked node=").await?;
    edge.stop(STOP).await?;
    again.process.stop(STOP).await
}

/// Waits until a front answers a method with this code, which must be soon; returns the text.
async fn answers(front: &str, method: &str, code: Code) -> anyhow::Result<String> {
    let served = until("the node's front", || async {
        let client = RawClient::connect(front).await?;
        let answer = client.send(method, frame::frame(&[]), &[("grpc-timeout", "2S")]).await?;
        let status = answer.status();
        anyhow::ensure!(status.code() == code, "{status:?}");
        Ok(status.message().to_owned())
    });
    tokio::time::timeout(SOON, served).await.context("not within 5 s")?
}

/// Without a battery the clock is in 1970 until NTP has an answer, for which the node may need the
/// pods that wait for their volumes.
#[tokio::test]
async fn a_node_that_boots_in_1970_serves_its_front_and_links_when_its_clock_is_set()
-> anyhow::Result<()> {
    if skipped() || clock::is_missing()? {
        return Ok(());
    }
    let (mut stand, site) = Site::new().await?;
    let Site { cloud, url, socket, driver } = site;
    let wrong = Clock::new(Path::new(&stand.at("clock")), clock::IN_1970)?;
    let state = stand.at("state");
    let more = ["--cloud", &url, "--state", &state];
    let edge = stand.edge_in(&wrong.exported(), NODE, &[(DRIVER, &socket)], &more).await?;
    let front = stand.edge_front(NODE, DRIVER);
    answers(&front, INFO, Code::Ok).await?;
    edge.logged("is not valid yet").await?;
    wrong.set(clock::RIGHT)?;
    cloud.process.logged("linked node=").await?;
    edge.stop(STOP).await?;
    driver.stop().await;
    cloud.process.stop(STOP).await
}

/// A power cut has destroyed the certificate and its copy. The node is served by the name that its
/// state directory was kept for, on its own machine only, until the certificate is back.
#[tokio::test]
async fn a_node_without_a_certificate_is_served_by_the_name_in_its_state() -> anyhow::Result<()> {
    if skipped() {
        return Ok(());
    }
    let (mut stand, site) = Site::new().await?;
    let Site { cloud, url, socket, driver } = site;
    let [board, other] = ["board", "other"].map(|id| firmware(&stand, id, id));
    let (board, other) = (board?, other?);
    let (state, cert) = (stand.at("state"), stand.files(NODE).cert);
    let more = ["--cloud", &url, "--state", &state];
    let drivers = [(DRIVER, socket.as_str())];
    let edge = stand.edge_in(&board, NODE, &drivers, &more).await?;
    cloud.process.logged("linked node=").await?;
    until("what the driver said is kept", || async {
        Ok(std::fs::metadata(Path::new(&state).join("introductions.json")).map(drop)?)
    })
    .await?;
    edge.stop(STOP).await?;
    let away = cert.with_extension("away");
    std::fs::rename(&cert, &away)?;

    let mut copy = stand.edge_in(&other, NODE, &drivers, &more).await?;
    assert!(!copy.ended(STOP).await?.success(), "the state is another machine's");
    let edge = stand.edge_in(&board, NODE, &drivers, &more).await?;
    let front = stand.edge_front(NODE, DRIVER);
    answers(&front, CAPABILITIES, Code::Ok).await?;
    let text = answers(&front, INFO, Code::Unavailable).await?;
    assert!(text.contains("state directory alone") && text.contains("certificate"), "{text}");
    std::fs::rename(&away, &cert)?;
    until("the node's name is certain", || answers(&front, INFO, Code::Ok)).await?;
    edge.stop(STOP).await?;
    driver.stop().await;
    cloud.process.stop(STOP).await
}

/// When a node boots, its address may not be there yet, and its file system may be read-only until
/// it was checked.
#[tokio::test]
async fn what_cannot_be_served_at_first_is_served_when_it_can_be() -> anyhow::Result<()> {
    if skipped() {
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    let socket = stand.at("driver.sock");
    let driver = TestDriver::new(DRIVER, NODE).serve(Path::new(&socket))?;
    let fronts = stand.at(NODE);
    publish(Path::new(&fronts), b"in the way", 0o600, Existing::Keep)?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let (http, state) = (taken.local_addr()?.to_string(), stand.at("state"));
    let admin = format!("{fronts}/admin.sock");
    let more = ["--cloud", "wss://127.0.0.1:1", "--state", &state, "--http", &http];
    let more = [&more[..], &["--admin", &admin]].concat();
    let mut edge = stand.edge_in("true", NODE, &[(DRIVER, &socket)], &more).await?;
    for what in ["the front of driver ", "the admin socket ", "HTTP on "] {
        edge.logged(what).await?;
    }
    std::fs::remove_file(&fronts)?;
    drop(taken);
    let front = stand.edge_front(NODE, DRIVER);
    until("the node is served", || answers(&front, INFO, Code::Ok)).await?;
    edge.line_starting("http ", START).await?;
    let status = ["status", "--admin", &admin];
    let status = until("the admin socket", || stand.run("csi-edge", &status)).await?;
    assert!(status.contains(NODE), "{status}");
    edge.stop(STOP).await?;
    driver.stop().await;
    Ok(())
}
