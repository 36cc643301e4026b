//! Parameters for csi-cloud (`edge-csi.io/…`) reach no driver, because drivers refuse unknown ones.

use std::collections::HashMap;

use harness::raw::RawClient;
use harness::requests::{capability, controller};
use harness::stand::Stand;
use harness::wait::until;
use harness::world::{DRIVER, NODE, TRANSPORTS, World, section};
use prost::Message;
use proto::csi;
use proto::host::publish::{Existing, publish};
use tonic::Code;

/// One parameter for csi-cloud, and one for the driver.
fn parameters() -> HashMap<String, String> {
    [("edge-csi.io/tier", "fast"), ("type", "ssd")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The parameters that a driver may see.
fn expected() -> HashMap<String, String> {
    [("type".to_owned(), "ssd".to_owned())].into()
}

/// A world whose driver has this scope and whose node has a front in the cloud.
async fn world(scope: &str) -> anyhow::Result<(World, RawClient)> {
    let stand = Stand::new().await?;
    let config = stand.at("scope.toml");
    let text = section(DRIVER, scope);
    publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    let more = ["--config", config.as_str(), "--node-fronts"];
    let world = World::on(stand, TRANSPORTS[0], &more).await?;
    let socket = format!("{}/{NODE}/{DRIVER}.sock", world.stand.at("cloud"));
    let connect = || async { RawClient::connect(&socket).await };
    let node_front = until("the node has a front", connect).await?;
    Ok((world, node_front))
}

/// The parameters of the one GetCapacity that the driver has received.
async fn capacity(world: &World, front: &RawClient) -> anyhow::Result<HashMap<String, String>> {
    world.driver.forget_calls();
    let request = csi::GetCapacityRequest { parameters: parameters(), ..Default::default() };
    let answer = front.call(&controller("GetCapacity"), &request.encode_to_vec()).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    let received = world.driver.calls_of("GetCapacity");
    assert_eq!(received.len(), 1);
    Ok(csi::GetCapacityRequest::decode(received[0].message.clone())?.parameters)
}

#[tokio::test]
async fn get_capacity_passes_only_the_drivers_parameters_at_every_front() -> anyhow::Result<()> {
    for scope in ["node", "shared"] {
        let (world, node_front) = world(scope).await?;
        let front = world.front().await?;
        assert_eq!(capacity(&world, &front).await?, expected(), "{scope}, cloud front");
        assert_eq!(capacity(&world, &node_front).await?, expected(), "{scope}, node front");
        world.stop().await?;
    }
    Ok(())
}

/// A create without a name, sent to the node's own front in the cloud.
fn nameless() -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_capabilities: vec![capability()],
        parameters: parameters(),
        ..Default::default()
    }
}

/// It cannot be journaled, so a shared driver gets it and refuses it.
#[tokio::test]
async fn a_create_without_a_name_reaches_a_shared_driver_without_our_parameters()
-> anyhow::Result<()> {
    let (world, node_front) = world("shared").await?;
    let path = controller("CreateVolume");
    let status = node_front.call(&path, &nameless().encode_to_vec()).await?.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(status.message(), "name is required", "the driver refuses it");
    let received = world.driver.calls_of("CreateVolume");
    assert_eq!(received.len(), 1);
    let received = csi::CreateVolumeRequest::decode(received[0].message.clone())?;
    let expected = csi::CreateVolumeRequest { parameters: expected(), ..nameless() };
    assert!(received == expected, "the driver got {:?}", received.parameters);
    world.stop().await
}

#[tokio::test]
async fn a_create_without_a_name_is_refused_before_a_driver_of_scope_node() -> anyhow::Result<()> {
    let (world, node_front) = world("node").await?;
    let path = controller("CreateVolume");
    let status = node_front.call(&path, &nameless().encode_to_vec()).await?.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("needs a name"), "{status}");
    assert!(world.driver.calls_of("CreateVolume").is_empty(), "it was dispatched");
    world.stop().await
}
