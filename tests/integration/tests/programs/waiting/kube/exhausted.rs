//! A node without room for a volume: the next one is asked, unless the scheduler chose the node.

use std::path::Path;

use drivers::testdriver::{Fault, Running, Times};
use harness::raw::RawClient;
use prost::Message;
use tonic::{Code, Status};

use super::explain::of_class;
use super::*;
use crate::waiting::routing::{create_at, topology};

/// The name of the other node, which is preferred less.
const OTHER: &str = "n2";

impl Site {
    /// Adds a node with this driver, and waits until csi-cloud knows its topology.
    pub(super) async fn add(
        &mut self,
        name: &str,
        driver: &TestDriver,
    ) -> anyhow::Result<(Process, Running)> {
        let socket = self.world.stand.at(&format!("{name}.sock"));
        let serving = driver.serve(Path::new(&socket))?;
        let url = self.world.cloud.urls[0].clone();
        let edge = self.world.stand.edge(name, &url, &[(DRIVER, &socket)]).await?;
        let front = self.world.front().await?;
        let capacity = csi::GetCapacityRequest {
            accessible_topology: Some(topology(name)),
            ..Default::default()
        };
        until("csi-cloud learns where the other node is", || async {
            let answer = front.call(&controller("GetCapacity"), &capacity.encode_to_vec()).await?;
            ensure!(answer.code() == Code::Ok, "{}", answer.status());
            Ok(())
        })
        .await?;
        Ok((edge, serving))
    }
}

/// Creates the volume of a claim that nodes are to be asked for in this order.
async fn create_for(front: &RawClient, claim: &str) -> anyhow::Result<Status> {
    let mut request = create_at(&format!("pvc-{claim}"), &[NODE, OTHER])?;
    for (key, value) in [("name", claim), ("namespace", "default")] {
        request.parameters.insert(format!("csi.storage.k8s.io/pvc/{key}"), value.into());
    }
    Ok(front.call(&controller("CreateVolume"), &request.encode_to_vec()).await?.status())
}

#[tokio::test]
async fn a_claim_whose_node_nobody_chose_leaves_a_full_node() -> anyhow::Result<()> {
    let nodes = [NODE, OTHER].map(|name| node(name, json!({})));
    let Some(mut site) = Site::new(&nodes).await? else { return Ok(()) };
    let other = TestDriver::new(DRIVER, OTHER);
    other.count_from(100);
    let (edge, serving) = site.add(OTHER, &other).await?;
    let front = site.world.front().await?;
    let chosen = ("volume.kubernetes.io/selected-node", NODE);
    for object in [
        of_class("free", None, &[]),
        of_class("chosen", None, &[chosen]),
        of_class("nowhere", None, &[]),
    ] {
        site.in_default::<PersistentVolumeClaim>(object).await?;
    }
    let full = || Fault::error(Code::ResourceExhausted, "it is full");
    let asked = |driver: &TestDriver| driver.calls_of("CreateVolume").len();
    let full_node = &site.world.driver;
    full_node.inject("CreateVolume", full(), Times::All);

    let status = create_for(&front, "free").await?;
    assert_eq!((status.code(), asked(full_node), asked(&other)), (Code::Ok, 1, 1), "{status}");
    // The scheduler hears of it, and chooses another node.
    let status = create_for(&front, "chosen").await?;
    let asked_then = (status.code(), asked(full_node), asked(&other));
    assert_eq!(asked_then, (Code::ResourceExhausted, 2, 1), "{status}");
    // Nothing is known of that claim.
    let status = create_for(&front, "unknown").await?;
    let asked_then = (status.code(), asked(full_node), asked(&other));
    assert_eq!(asked_then, (Code::ResourceExhausted, 3, 1), "{status}");
    // Both are full, then one has room again.
    other.inject("CreateVolume", full(), Times::Next(1));
    let status = create_for(&front, "nowhere").await?;
    let asked_then = (status.code(), asked(full_node), asked(&other));
    assert_eq!(asked_then, (Code::ResourceExhausted, 4, 2), "{status}");
    let status = create_for(&front, "nowhere").await?;
    assert_eq!((status.code(), asked(full_node), asked(&other)), (Code::Ok, 5, 3), "{status}");
    edge.stop(START).await?;
    serving.stop().await;
    site.stop().await
}
