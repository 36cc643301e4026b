//! A shared driver whose call has an unknown outcome: of a create no final code says that nothing
//! was made, and another node gets the call when the lost one may no longer begin it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, TestDriver, Times};
use harness::raw::RawClient;
use harness::requests::{controller, create, delete};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use proto::csi::plugin_capability::{Service, Type, service};
use proto::host::publish::{Existing, publish};
use tokio::time::Instant;
use tonic::{Code, Status};

/// A driver without topology, so that its scope is inferred as shared.
fn shared_driver(node: &str) -> TestDriver {
    let service = Service { r#type: service::Type::ControllerService.into() };
    let capability = csi::PluginCapability { r#type: Some(Type::Service(service)) };
    let answer = csi::GetPluginCapabilitiesResponse { capabilities: vec![capability] };
    let driver = TestDriver::new(DRIVER, node);
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
    let driver = shared_driver(NODE);
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

/// A vendor's sidecars may wait for 20 min. That is not how long a lost node may begin a call.
#[tokio::test]
async fn a_call_whose_node_is_lost_goes_on_elsewhere_before_its_deadline() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let config = stand.at("policy.toml");
    let text = format!("[driver.\"{DRIVER}\"]\ncontrollers = \"any\"\nfailover_s = 1\n");
    publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
    let cloud = stand.cloud(&TRANSPORTS[..1], &[DRIVER], &["--config", &config]).await?;
    let url = cloud.urls.first().context("no listener")?;
    let first = shared_driver(NODE);
    let socket = stand.at("first.sock");
    let _serving_first = first.serve(Path::new(&socket))?;
    let edge = stand.edge(NODE, url, &[(DRIVER, &socket)]).await?;
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    until("the cloud learns of the driver", || ready(&front)).await?;
    // It answers once, so that its node is the elected one.
    assert_eq!(create_within(&front, "v", "10S").await?.code(), Code::Ok);
    let second = shared_driver("n2");
    let other_socket = stand.at("second.sock");
    let _serving_second = second.serve(Path::new(&other_socket))?;
    let _other = stand.edge("n2", url, &[(DRIVER, &other_socket)]).await?;

    first.inject("DeleteVolume", Fault::Hang, Times::All);
    let delete_within = async |timeout| {
        let request = csi::frame::frame(&delete("v"));
        let deadline = [("grpc-timeout", timeout)];
        let path = controller("DeleteVolume");
        anyhow::Ok(front.send(&path, request, &deadline).await?.status())
    };
    let lost = async {
        until("the call is at the first node", || async {
            ensure!(first.calls_of("DeleteVolume").len() == 1);
            Ok(())
        })
        .await?;
        let begun = Instant::now();
        edge.kill().await?;
        anyhow::Ok(begun)
    };
    let (sent, lost) = tokio::join!(delete_within("1200S"), lost);
    assert_eq!(sent?.code(), Code::Unavailable);
    let begun = lost?;
    until("another node carries it out", || async {
        let status = delete_within("1200S").await?;
        ensure!(status.code() == Code::Ok, "{status}");
        Ok(())
    })
    .await?;
    let took = begun.elapsed();
    assert!((Duration::from_secs(20)..Duration::from_secs(45)).contains(&took), "{took:?}");
    assert_eq!(second.calls_of("DeleteVolume").len(), 1);
    cloud.process.stop(START).await
}
