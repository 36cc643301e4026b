//! A driver whose id of its node changes, as when a node gets another instance.

use std::path::Path;

use anyhow::Context;
use harness::raw::RawClient;
use harness::requests::{capability, controller, create, created};
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, World};
use prost::Message;
use proto::csi;
use tonic::Code;

#[tokio::test]
async fn an_attach_by_a_former_id_waits_for_the_registrar() -> anyhow::Result<()> {
    let World { stand, cloud, edge, driver, serving } = World::new(TRANSPORTS[0]).await?;
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    let volume = created(&front.call(&controller("CreateVolume"), &create("v")).await?)?;
    let attach = async |node_id: &str| {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            node_id: node_id.into(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        front.call(&controller("ControllerPublishVolume"), &request.encode_to_vec()).await
    };
    let detach = async |node_id: &str| {
        let (volume_id, node_id) = (volume.volume_id.clone(), node_id.into());
        let request =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        front.call(&controller("ControllerUnpublishVolume"), &request.encode_to_vec()).await
    };
    assert_eq!(attach("n1").await?.code(), Code::Ok);
    serving.stop().await;
    let again = driver.beside("id-2");
    let serving = again.serve(Path::new(&stand.at("driver.sock")))?;
    until("csi-cloud learns the new id", || async {
        let answer = attach("n1").await?;
        anyhow::ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
        let status = answer.status();
        anyhow::ensure!(status.message().contains("registrar"), "{status}");
        Ok(())
    })
    .await?;
    let asked = again.calls_of("ControllerPublishVolume").len();
    assert_eq!(attach("n1").await?.code(), Code::Unavailable);
    assert_eq!(again.calls_of("ControllerPublishVolume").len(), asked, "nothing was sent");
    // What was attached by the former id is detached by it.
    let detached = detach("n1").await?;
    assert_eq!(detached.code(), Code::Ok, "{}", detached.status());
    let call = again.calls_of("ControllerUnpublishVolume").pop().context("it was not sent")?;
    let sent = csi::ControllerUnpublishVolumeRequest::decode(call.message)?;
    assert_eq!(sent.node_id, "n1");
    assert_eq!(attach("id-2").await?.code(), Code::Ok);
    let judged = attach("nobodys").await?.code();
    assert_eq!(judged, Code::FailedPrecondition, "the driver says that it is attached elsewhere");
    edge.stop(START).await?;
    serving.stop().await;
    cloud.process.stop(START).await
}
