//! A csi-cloud that was killed and is back. Over QUIC only a stateless reset from the new one tells
//! its edges. They accept it because its key is derived from the same private key.

use std::time::Duration;

use harness::wait::STOP;
use harness::world::{DRIVER, NODE, TRANSPORTS, World};

#[tokio::test]
async fn an_edge_learns_from_the_next_cloud_that_its_link_died_with_the_last() -> anyhow::Result<()>
{
    let world = World::new(TRANSPORTS[1]).await?;
    let url = world.url().to_owned();
    let World { stand, cloud, mut edge, .. } = world;
    cloud.process.kill().await?;
    // It would take silence of 15 s for the edge's end; the next keep-alive is sent within 5 s.
    let cloud = stand.cloud(&[&url], &[DRIVER], &[]).await?;
    edge.line_starting(&format!("linked {url} as {NODE}"), Duration::from_secs(9)).await?;
    edge.logged("the other side has been restarted").await?;
    edge.stop(STOP).await?;
    cloud.process.stop(STOP).await
}
