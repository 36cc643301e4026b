//! Parameters for csi-cloud (`edge-csi.io/…`) reach no driver, because drivers refuse unknown ones.
//! csi-cloud refuses those that it does not know itself.

use std::collections::HashMap;

use drivers::testdriver::{Fault, Times};
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{capability, controller, create, created};
use harness::stand::Stand;
use harness::wait::until;
use harness::world::{DRIVER, NODE, TRANSPORTS, World, section};
use prost::Message;
use proto::csi;
use proto::csi::volume_capability::AccessMode;
use proto::csi::volume_capability::access_mode::Mode;
use proto::host::publish::{Existing, publish};
use tonic::Code;

/// One parameter for csi-cloud, and one for the driver.
fn parameters() -> HashMap<String, String> {
    [("edge-csi.io/direct", "auto"), ("type", "ssd")]
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

/// A CreateVolume of this name whose class has this parameter.
fn with(key: &str, name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability()],
        parameters: [(key.to_owned(), "zero".to_owned())].into(),
        ..Default::default()
    }
}

fn assert_names_the_nearest(answer: &RawAnswer) {
    let status = answer.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("nearest known one is edge-csi.io/direct-blank"), "{status}");
}

#[tokio::test]
async fn a_misspelt_parameter_is_refused_and_nothing_is_begun() -> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let front = world.front().await?;
    let request = with("edge-csi.io/direct-blnk", "v");
    let answer = front.call(&controller("CreateVolume"), &request.encode_to_vec()).await?;
    assert_names_the_nearest(&answer);
    let volume = created(&front.call(&controller("CreateVolume"), &create("source")).await?)?;
    let snapshot = csi::CreateSnapshotRequest {
        source_volume_id: volume.volume_id,
        name: "s".into(),
        parameters: request.parameters,
        ..Default::default()
    };
    let answer = front.call(&controller("CreateSnapshot"), &snapshot.encode_to_vec()).await?;
    assert_names_the_nearest(&answer);
    assert_eq!(world.driver.calls_of("CreateVolume").len(), 1, "only the source");
    assert!(world.driver.calls_of("CreateSnapshot").is_empty());
    let admin = world.stand.at("cloud/_admin.sock");
    let ask = ["intents", "-o", "json", "--admin", &admin];
    let intents: serde_json::Value =
        serde_json::from_str(&world.stand.run("csi-cloud", &ask).await?)?;
    assert_eq!(intents, serde_json::json!([]));
    world.stop().await
}

/// An older version may have sent it, and a final code would make a sidecar forget the volume.
#[tokio::test]
async fn a_create_that_was_sent_before_is_not_refused_for_a_misspelt_parameter()
-> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let front = world.front().await?;
    let path = controller("CreateVolume");
    world.driver.inject("CreateVolume", Fault::error(Code::Unavailable, "later"), Times::Next(1));
    assert_eq!(front.call(&path, &create("v")).await?.code(), Code::Unavailable);
    let request = with("edge-csi.io/placment", "v");
    let answer = front.call(&path, &request.encode_to_vec()).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    let received = world.driver.calls_of("CreateVolume");
    let received = csi::CreateVolumeRequest::decode(received[1].message.clone())?;
    assert!(received.parameters.is_empty(), "{:?}", received.parameters);
    world.stop().await
}

/// The class was made anew as one of direct volumes, and the claim asks for what these cannot have.
#[tokio::test]
async fn a_create_that_was_sent_before_is_not_refused_as_impossible_for_a_direct_volume()
-> anyhow::Result<()> {
    let world = World::new(TRANSPORTS[0]).await?;
    let front = world.front().await?;
    let path = controller("CreateVolume");
    let shared = csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() }),
        ..capability()
    };
    let request = |class: &[(&str, &str)]| {
        let parameters = class.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        csi::CreateVolumeRequest {
            name: "v".into(),
            volume_capabilities: vec![shared.clone()],
            parameters: parameters.collect(),
            ..Default::default()
        }
        .encode_to_vec()
    };
    let direct = request(&[("edge-csi.io/direct", "kata")]);
    let refused = front.call(&path, &direct).await?.status();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    world.driver.inject("CreateVolume", Fault::error(Code::Unavailable, "later"), Times::Next(1));
    assert_eq!(front.call(&path, &request(&[])).await?.code(), Code::Unavailable);
    for class in [direct, request(&[("edge-csi.io/direct", "auto")])] {
        let refused = front.call(&path, &class).await?.status();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("is not created yet"), "{refused}");
    }
    world.stop().await
}
