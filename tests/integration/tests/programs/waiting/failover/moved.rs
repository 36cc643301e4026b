//! A store that moves from a file to etcd and back, with what csi-cloud knew in it.

use std::path::Path;

use drivers::testdriver::TestDriver;
use harness::etcd_server::{EtcdServer, is_installed};
use harness::process::Process;
use harness::raw::RawClient;
use harness::replicas::{Replica, leader};
use harness::requests::{controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, STOP, until};
use harness::world::{DRIVER, NODE, ready};
use proto::host::publish::{Existing, publish};
use tonic::Code;

/// Exports one store and imports it into another one.
async fn transfer(stand: &Stand, from: &str, to: &str) -> anyhow::Result<String> {
    let export = ["store", "export", "--with-secrets", "--store", from];
    let records = stand.run("csi-cloud", &export).await?;
    let file = stand.at("export.json");
    publish(Path::new(&file), records.as_bytes(), 0o600, Existing::Replace)?;
    let checked = stand.run("csi-cloud", &["store", "check", "--store", from]).await?;
    let last = checked.split_whitespace().last().unwrap_or_default();
    stand.run("csi-cloud", &["store", "import", "--store", to, "--move", last, &file]).await?;
    stand.run("csi-cloud", &["store", "check", "--store", to]).await?;
    Ok(records)
}

/// The id of a volume of this name.
async fn volume(front: &str, name: &str) -> anyhow::Result<String> {
    let client = RawClient::connect(front).await?;
    until("the driver is known", || ready(&client)).await?;
    let answer = client.call(&controller("CreateVolume"), &create(name)).await?;
    anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
    Ok(created(&answer)?.volume_id)
}

/// A csi-cloud with a file, to which the edge links.
async fn alone(stand: &Stand, url: &str, file: &str) -> anyhow::Result<Cloud> {
    stand.cloud(&[url], &[DRIVER], &["--store", file]).await
}

async fn linked(edge: &mut Process) -> anyhow::Result<()> {
    edge.line_starting("linked ", START).await.map(drop)
}

#[tokio::test]
async fn a_store_moves_to_etcd_and_back_and_knows_each_volume() -> anyhow::Result<()> {
    if !is_installed("a store that moves to etcd")? {
        return Ok(());
    }
    let mut stand = Stand::new().await?;
    let etcd = EtcdServer::start(stand.dir(), 1).await?;
    let driver = TestDriver::new(DRIVER, NODE);
    let socket = stand.at("driver.sock");
    let _serving = driver.serve(Path::new(&socket))?;
    let mut replica = Replica::new("a", &["wss"], &etcd.url("moved"), &[DRIVER])?;
    let url = replica.urls()[0].clone();
    let first = format!("file:{}", stand.at("first.redb"));
    let cloud = alone(&stand, &url, &first).await?;
    let state = stand.at("state");
    let more = ["--cloud", &url, "--state", &state];
    let mut edge = stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await?;
    linked(&mut edge).await?;
    let made = volume(&stand.cloud_front(DRIVER), "v").await?;
    cloud.process.stop(STOP).await?;

    // To etcd. The edge learns the leader's epoch.
    let records = transfer(&stand, &first, &etcd.url("moved")).await?;
    assert!(records.contains(&made), "the volume is in the export");
    replica.start(&stand).await?;
    linked(&mut edge).await?;
    leader(std::slice::from_ref(&replica), &[]).await?;
    assert_eq!(volume(&replica.front(&stand, DRIVER), "v").await?, made);
    let more = volume(&replica.front(&stand, DRIVER), "w").await?;
    replica.take()?.stop(STOP).await?;

    // And back. The edge takes no call without an epoch any more, so the file has it.
    let second = format!("file:{}", stand.at("second.redb"));
    transfer(&stand, &etcd.url("moved"), &second).await?;
    let cloud = alone(&stand, &url, &second).await?;
    linked(&mut edge).await?;
    assert_eq!(volume(&stand.cloud_front(DRIVER), "v").await?, made);
    assert_eq!(volume(&stand.cloud_front(DRIVER), "w").await?, more);
    assert!(!volume(&stand.cloud_front(DRIVER), "x").await?.is_empty());
    assert_eq!(driver.volumes().len(), 3);
    edge.stop(STOP).await?;
    cloud.process.stop(STOP).await
}
