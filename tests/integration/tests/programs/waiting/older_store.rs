//! An older copy of the store is put back, as from a backup. A node shows that it is older, and
//! nothing is created until an operator has accepted it.

use anyhow::{Context, ensure};
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::wait::{STOP, until};
use harness::world::{DRIVER, TRANSPORTS, World};
use tonic::Code;

/// Sends a create until its answer has this code and these words.
async fn answered(front: &str, name: &str, code: Code, words: &[&str]) -> anyhow::Result<()> {
    let front = RawClient::connect(front).await?;
    let answered = || async {
        let status = front.call(&controller("CreateVolume"), &create(name)).await?.status();
        let is_it = words.iter().all(|word| status.message().contains(word));
        ensure!(status.code() == code && is_it, "{status}");
        Ok(())
    };
    until(&format!("{code:?} to the create of {name}"), answered).await
}

#[tokio::test]
async fn an_older_store_creates_nothing_until_it_is_accepted() -> anyhow::Result<()> {
    let state = tempfile::tempdir()?;
    let directory = state.path().display().to_string();
    let world = World::with(TRANSPORTS[0], &[], &["--state", &directory]).await?;
    let url = world.url().to_owned();
    let World { stand, mut cloud, edge, driver, serving } = world;
    let store = stand.at("cloud.redb");
    let copy = stand.at("copy.redb");
    let admin = stand.at("cloud/_admin.sock");
    let front = stand.cloud_front(DRIVER);
    let accept = ["store", "accept", "--admin", &admin];
    for name in ["before", "after"] {
        answered(&front, name, Code::Ok, &[]).await?;
        let said = stand.run("csi-cloud", &accept).await?;
        assert!(said.contains("nothing to accept"), "{said}");
        cloud.process.stop(STOP).await?;
        if name == "before" {
            std::fs::copy(&store, &copy)?;
        }
        cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
    }
    cloud.process.stop(STOP).await?;
    std::fs::copy(&copy, &store)?;

    for _ in 0..2 {
        cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
        // "after" would be a second volume at another node.
        for name in ["after", "before", "new"] {
            let words = ["node n1", "csi-cloud store accept"];
            answered(&front, name, Code::Unavailable, &words).await?;
        }
        cloud.process.stop(STOP).await?;
    }
    cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
    answered(&front, "new", Code::Unavailable, &["csi-cloud store accept"]).await?;
    let said = stand.run("csi-cloud", &accept).await?;
    assert!(said.contains("creates and leases go on"), "{said}");
    answered(&front, "new", Code::Ok, &[]).await?;
    assert_eq!(driver.calls_of("CreateVolume").len(), 3);
    edge.stop(STOP).await.context("csi-edge")?;
    cloud.process.stop(STOP).await?;
    drop(serving);
    Ok(())
}
