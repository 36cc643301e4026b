//! A store that loses its quorum: no commit is durable, and each caller is told that.

use std::collections::BTreeSet;

use anyhow::ensure;
use harness::port;
use harness::process::Process;
use harness::requests::created;
use harness::stand::Stand;
use harness::wait::{START, until};
use rustix::process::Signal;
use tonic::Code;

use super::world::World;

#[tokio::test]
async fn without_a_quorum_creates_are_unavailable_until_it_is_back() -> anyhow::Result<()> {
    let Some(mut world) = World::new(3).await? else { return Ok(()) };
    assert_eq!(world.create("v").await?.code(), Code::Ok);
    let before = world.leader().await?;

    // One member less changes nothing, whichever it is.
    let leader = world.etcd.leader().await.unwrap_or_default();
    world.etcd.kill(leader).await?;
    let answer = world.create("w").await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    assert_eq!(world.leader().await?, before, "the leader had another member to ask");

    let second = (leader + 1) % 3;
    world.etcd.process(second)?.signal(Signal::STOP)?;
    let answer = world.create_within("x", "5S").await?;
    let status = answer.status();
    let is_open = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
    assert!(is_open, "{status}");

    // Whoever led may have been deposed meanwhile; there are two more.
    world.etcd.process(second)?.signal(Signal::CONT)?;
    world.etcd.ready(second).await?;
    let again = || async {
        let answer = world.create_within("x", "5S").await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(created(&answer)?.volume_id)
    };
    let id = until("the store is back", again).await?;
    let answer = world.create("x").await?;
    assert_eq!(created(&answer)?.volume_id, id, "one name is one volume");
    let names: BTreeSet<_> = world.volumes().into_iter().collect();
    assert_eq!(names.len(), world.volumes().len());
    assert_eq!(names, ["v", "w", "x"].map(String::from).into());
    world.etcd.run(leader)?;
    world.etcd.ready(leader).await?;
    // On a busy machine the leader's lease ended, so it ended by itself, to be started again.
    if world.replicas[before].has_ended()? {
        assert!(!world.replicas[before].ended(START).await?.success());
    }
    world.stop().await
}

#[tokio::test]
async fn a_csi_cloud_that_waits_for_its_store_ends_when_it_is_told_to() -> anyhow::Result<()> {
    let stand = Stand::new().await?;
    let files = stand.files("cloud");
    let mut command = stand.program("csi-cloud")?;
    command.args(["serve", "--listen", "wss://127.0.0.1:0", "--fronts", &stand.at("fronts")]);
    command.args(["--driver", "test.edge-csi.io"]);
    command.arg("--ca").arg(files.ca).arg("--cert").arg(files.cert).arg("--key").arg(files.key);
    // Nobody is there.
    command.arg(format!("--store=etcd://127.0.0.1:{}/edge-csi", port::free()?));
    let waiting = Process::start("csi-cloud", command, stand.dir())?;
    waiting.logged("etcd cannot be used").await?;
    waiting.stop(START).await
}
