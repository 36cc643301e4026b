//! An edge joins several csi-clouds by the endpoint of one that follows.

use harness::etcd_server::{EtcdServer, is_installed};
use harness::replicas;
use harness::replicas::Replica;
use harness::stand::Stand;
use harness::world::{DRIVER, NODE};

#[tokio::test]
async fn an_edge_that_asks_a_follower_joins_at_the_leader() -> anyhow::Result<()> {
    if !is_installed("several csi-clouds")? {
        return Ok(());
    }
    let stand = Stand::new().await?;
    let mut etcd = EtcdServer::start(stand.dir(), 1).await?;
    let config = stand.issuing("")?;
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
    let said = stand.join(&command, "joined").await?;
    assert!(said.contains("joined as node"), "{said}");
    replicas::end(&mut replicas, &mut etcd).await
}
