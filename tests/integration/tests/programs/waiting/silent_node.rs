//! A node whose driver never answers a list: its minute passes in real time.

use std::time::Duration;

use anyhow::ensure;
use drivers::testdriver::{Fault, Times};
use harness::wait::until;
use tokio::time::{Instant, sleep};

use crate::authority::Fleet;

/// How long a silent node may stay beside the others: its minute begins with the next list.
const SILENT_AT_MOST: Duration = Duration::from_secs(150);

#[tokio::test]
async fn a_node_that_is_silent_for_a_minute_is_set_apart() -> anyhow::Result<()> {
    let fleet = Fleet::with_volumes().await?;
    fleet.nodes[0].driver.inject("ListVolumes", Fault::Hang, Times::All);
    let begun = Instant::now();
    while fleet.set_apart("n1").await? != ["bad_answer"] {
        ensure!(begun.elapsed() < SILENT_AT_MOST, "{:?}", fleet.set_apart("n1").await?);
        assert_eq!(fleet.listed().await?, fleet.there(), "what is known of the node is listed");
        sleep(Duration::from_millis(500)).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(30), "it is set apart at once");
    fleet.nodes[0].driver.clear_faults();
    fleet.nodes[0].driver.release();
    until("it answers as it should", || async {
        ensure!(fleet.listed().await? == fleet.there(), "{:?}", fleet.listed().await?);
        ensure!(fleet.set_apart("n1").await?.is_empty(), "it is set apart");
        Ok(())
    })
    .await?;
    fleet.stop().await
}
