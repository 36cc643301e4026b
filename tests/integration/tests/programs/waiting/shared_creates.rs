//! A shared driver whose create has an unknown outcome: no final code says that nothing was made.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, TestDriver, Times};
use harness::raw::RawClient;
use harness::requests::{controller, create};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use proto::csi::plugin_capability::{Service, Type, service};
use proto::host::publish::{Existing, publish};
use tonic::{Code, Status};

/// A driver without topology, so that its scope is inferred as shared.
fn shared_driver() -> TestDriver {
    let service = Service { r#type: service::Type::ControllerService.into() };
    let capability = csi::PluginCapability { r#type: Some(Type::Service(service)) };
    let answer = csi::GetPluginCapabilitiesResponse { capabilities: vec![capability] };
    let driver = TestDriver::new(DRIVER, NODE);
    driver.inject("GetPluginCapabilities", Fault::raw(answer.encode_to_vec()), Times::All);
    driver
}

async fn create_within(front: &RawClient, name: &str, timeout: &str) -> anyhow::Result<Status> {
    let request = csi::frame::frame(&create(name));
    let deadline = [("grpc-timeout", timeout)];
    Ok(front.send(&controller("CreateVolume"), request, &deadline).await?.status())
}

/// `reschedule` may be set, as no `scope` says that the driver is shared.
#[tokio::test]
async fn a_claim_of_a_shared_driver_is_not_given_back() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("policy.toml");
    let text = format!("[driver.\"{DRIVER}\"]\ncontrollers = \"any\"\nreschedule = true\n");
    publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    let driver = shared_driver();
    let socket = stand.at("driver.sock");
    let _serving = driver.serve(Path::new(&socket))?;
    let cloud = stand.cloud(&TRANSPORTS[..1], &[DRIVER], &["--config", &config]).await?;
    let url = cloud.urls.first().context("no listener")?;
    let edge = stand.edge(NODE, url, &[(DRIVER, &socket)]).await?;
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    until("the cloud learns of the driver", || ready(&front)).await?;

    driver.inject("CreateVolume", Fault::Hang, Times::Next(1));
    let hung = create_within(&front, "sent", "300m").await?;
    assert_eq!(hung.code(), Code::DeadlineExceeded, "{hung}");
    edge.kill().await?;
    until("the node is away", || async {
        let admin = stand.at("cloud/_admin.sock");
        let shown = ["nodes", "--admin", &admin, "-o", "json"];
        let printed = stand.run("csi-cloud", &shown).await?;
        let nodes: serde_json::Value = serde_json::from_str(&printed)?;
        ensure!(nodes[0]["state"] == "away", "{nodes}");
        Ok(())
    })
    .await?;
    let status = create_within(&front, "sent", "2S").await?;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    cloud.process.stop(START).await
}
