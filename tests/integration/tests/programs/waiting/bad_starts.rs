//! A node that nobody drives to: what is broken there ends neither the program nor the link.

use harness::stand::Stand;
use harness::wait::STOP;
use harness::world::{DRIVER, NODE, TRANSPORTS};

/// The disk of the log is full, and whoever read stdout is gone.
#[tokio::test]
async fn an_edge_that_can_print_nothing_links_again() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a mount namespace needs root");
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
