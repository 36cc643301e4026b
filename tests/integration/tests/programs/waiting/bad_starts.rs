//! A node that nobody drives to: what is broken there ends neither the program nor the link, and
//! the node's front is served all the same.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use drivers::testdriver::TestDriver;
use harness::raw::RawClient;
use harness::stand::Stand;
use harness::wait::{STOP, until};
use harness::world::{DRIVER, NODE, TRANSPORTS};
use proto::csi::frame;
use proto::host::publish::{Existing, publish};
use tonic::Code;

/// Of Debian's package `libfaketime`.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const INFO: &str = "/csi.v1.Node/NodeGetInfo";

/// True if this test cannot run here.
fn skipped() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: a mount namespace needs root");
    }
    !is_root
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

/// Sets the clock of libfaketime.
fn set(clock: &str, time: &str) -> std::io::Result<()> {
    publish(Path::new(clock), time.as_bytes(), 0o600, Existing::Replace)
}

/// Without a battery the clock is in 1970 until NTP has an answer, for which the node may need the
/// pods that wait for their volumes.
#[tokio::test]
async fn a_node_that_boots_in_1970_serves_its_front_and_links_when_its_clock_is_set()
-> anyhow::Result<()> {
    if skipped() {
        return Ok(());
    }
    if !Path::new(FAKETIME).exists() {
        anyhow::ensure!(std::env::var_os("CI").is_none(), "{FAKETIME} is not installed");
        eprintln!("skipped: {FAKETIME} is needed");
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
    let url = cloud.urls[0].clone();
    let socket = stand.at("driver.sock");
    let driver = TestDriver::new(DRIVER, NODE).serve(Path::new(&socket))?;
    let clock = stand.at("clock");
    set(&clock, "@1970-01-02 00:00:00")?;
    let script = format!(
        "export LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE={clock} FAKETIME_NO_CACHE=1 \
         FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1"
    );
    let state = stand.at("state");
    let more = ["--cloud", &url, "--state", &state];
    let edge = stand.edge_in(&script, NODE, &[(DRIVER, &socket)], &more).await?;
    let front = stand.edge_front(NODE, DRIVER);
    let served = until("the node's front", || async {
        let client = RawClient::connect(&front).await?;
        let answer = client.send(INFO, frame::frame(&[]), &[("grpc-timeout", "2S")]).await?;
        let status = answer.status();
        anyhow::ensure!(status.code() == Code::Ok, "{status:?}");
        Ok(())
    });
    tokio::time::timeout(Duration::from_secs(5), served).await.context("not within 5 s")??;
    edge.logged("is not valid yet").await?;
    set(&clock, "+0")?;
    cloud.process.logged("linked node=").await?;
    edge.stop(STOP).await?;
    driver.stop().await;
    cloud.process.stop(STOP).await
}
