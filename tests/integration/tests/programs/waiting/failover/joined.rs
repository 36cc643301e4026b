//! An edge joins several csi-clouds by the endpoint of one that follows.

use std::path::Path;

use anyhow::Context;
use harness::etcd_server::{EtcdServer, is_installed};
use harness::replicas;
use harness::replicas::Replica;
use harness::stand::Stand;
use harness::wait::START;
use harness::world::{DRIVER, NODE};
use proto::host::publish::{Existing, publish};

#[tokio::test]
async fn an_edge_that_asks_a_follower_joins_at_the_leader() -> anyhow::Result<()> {
    if !is_installed("several csi-clouds")? {
        return Ok(());
    }
    let stand = Stand::new().await?;
    let mut etcd = EtcdServer::start(stand.dir(), 1).await?;
    let pki = stand.pki();
    let config = stand.at("ca.toml");
    let text = format!("[ca]\ncert = \"{pki}/ca.crt\"\nkey = \"{pki}/ca.key\"\n");
    publish(Path::new(&config), text.as_bytes(), 0o600, Existing::Keep)?;
    let mut replicas = Vec::new();
    for name in ["a", "b"] {
        let replica = Replica::new(name, &["wss"], &etcd.url("edge-csi"), &[DRIVER])?;
        let mut replica = replica.with(&["--config", &config]);
        replica.start(&stand).await?;
        replicas.push(replica);
    }
    let leader = replicas::leader(&replicas, &[]).await?;
    let admin = stand.at(&format!("{}/_admin.sock", replicas[leader].name()));
    let follower = &replicas[1 - leader].urls()[0];
    let token = ["token", "create", NODE, "--cloud", follower, "--admin", &admin];
    let command = stand.run("csi-cloud", &token).await?;
    let dir = stand.at("joined");
    let args = command.trim().strip_prefix("csi-edge ").context("another command")?;
    let args: Vec<_> = args.split(' ').chain(["--identity", &dir]).collect();
    let said = stand.run("csi-edge", &args).await?;
    assert!(said.contains("joined as node"), "{said}");
    for replica in &mut replicas {
        replica.take()?.stop(START).await?;
    }
    etcd.kill(0).await
}
