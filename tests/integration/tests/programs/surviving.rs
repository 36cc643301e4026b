//! A call survives its link: its caller is held and gets the answer of the one run that there was.

use std::path::Path;
use std::time::Duration;

use drivers::testdriver::{Fault, Gate, Outcome, Running, TestDriver, Times};
use futures_util::future::join_all;
use harness::process::Process;
use harness::raw::RawClient;
use harness::relay::Relay;
use harness::requests::{controller, create, created, delete, snapshot_requests};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world;
use harness::world::{DRIVER, NODE, TRANSPORTS, World, ready};
use prost::Message;
use proto::control::hello;
use proto::csi;
use proto::csi::frame::frame;
use proto::link::Event;
use tokio::time::Instant;
use tonic::Code;

/// The deadline of most calls here; an answer that waits for it is a failure.
const DEADLINE: (&str, &str) = ("grpc-timeout", "20S");

fn publish(volume_id: &str) -> Vec<u8> {
    let volume_capability = Some(harness::requests::capability());
    let volume_id = volume_id.to_owned();
    let node_id = NODE.to_owned();
    csi::ControllerPublishVolumeRequest {
        volume_id,
        node_id,
        volume_capability,
        ..Default::default()
    }
    .encode_to_vec()
}

fn unpublish(volume_id: &str) -> Vec<u8> {
    let volume_id = volume_id.to_owned();
    let node_id = NODE.to_owned();
    csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() }
        .encode_to_vec()
}

async fn call(
    front: &RawClient,
    method: &str,
    request: &[u8],
) -> anyhow::Result<harness::raw::RawAnswer> {
    front.send(&controller(method), frame(request), &[DEADLINE]).await
}

/// Takes the node's link away with a link of the test's own, which it drops: the edge dials again.
async fn take_the_link(world: &World) -> anyhow::Result<()> {
    let mut link = world.dial().await?;
    link.send(&hello::Message::Hello(world::hello(NODE)?)).await?;
    assert!(matches!(link.next().await, Event::Message(hello::Message::Welcome(_))));
    link.close("the test has what it wants").await;
    Ok(())
}

#[tokio::test]
async fn a_call_sent_again_joins_the_run_that_there_is() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut world = World::new(transport).await?;
        let front = world.front().await?;
        let gate = Gate::new();
        world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::All);
        let request = create("v");
        let cut = async {
            gate.wait_for(1).await?;
            for _ in 0..2 {
                take_the_link(&world).await?;
                world.edge.line_starting("linked ", START).await?;
            }
            gate.open();
            anyhow::Ok(())
        };
        let (answer, cut) = tokio::join!(call(&front, "CreateVolume", &request), cut);
        cut?;
        let volume = created(&answer?)?;
        assert_eq!(world.driver.calls_of("CreateVolume").len(), 1, "it was carried out twice");
        assert!(world.driver.volumes() == [volume]);
        world.stop().await?;
    }
    Ok(())
}

/// The edge dials the cloud through a relay.
struct Relayed {
    stand: Stand,
    cloud: harness::stand::Cloud,
    edge: Process,
    driver: TestDriver,
    relay: Relay,
    _serving: Running,
}

impl Relayed {
    async fn new() -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let socket = stand.at("driver.sock");
        let serving = driver.serve(Path::new(&socket))?;
        let cloud = stand.cloud(&[TRANSPORTS[0]], &[DRIVER], &[]).await?;
        let relay = Relay::to(&cloud.urls[0]).await?;
        let edge = stand.edge(NODE, relay.url(), &[(DRIVER, &socket)]).await?;
        let relayed = Self { stand, cloud, edge, driver, relay, _serving: serving };
        let front = relayed.front().await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        relayed.driver.forget_calls();
        Ok(relayed)
    }

    async fn front(&self) -> anyhow::Result<RawClient> {
        RawClient::connect(&self.stand.cloud_front(DRIVER)).await
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.edge.stop(START).await?;
        self.cloud.process.stop(START).await
    }
}

#[tokio::test]
async fn a_call_sent_again_after_its_run_is_answered_from_that() -> anyhow::Result<()> {
    let mut relayed = Relayed::new().await?;
    let front = relayed.front().await?;
    let gate = Gate::new();
    relayed.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::All);
    let request = create("v");
    let driver = relayed.driver.clone();
    let cut = async {
        gate.wait_for(1).await?;
        relayed.relay.cut();
        gate.open();
        driver.wait_for_outcome("CreateVolume", Outcome::Finished, 1).await?;
        relayed.relay.mend();
        relayed.edge.line_starting("linked ", START).await?;
        anyhow::Ok(Instant::now())
    };
    let asking = async { (call(&front, "CreateVolume", &request).await, Instant::now()) };
    let ((answer, answered), linked) = tokio::join!(asking, cut);
    let volume = created(&answer?)?;
    assert!(relayed.driver.volumes() == [volume.clone()]);
    assert_eq!(relayed.driver.calls_of("CreateVolume").len(), 1, "it was carried out twice");
    let took = answered.saturating_duration_since(linked?);
    assert!(took < Duration::from_secs(1), "answered {took:?} after the link was back");

    // A new call is run anew, even with the same content.
    for (method, request) in [
        ("ControllerPublishVolume", publish(&volume.volume_id)),
        ("ControllerUnpublishVolume", unpublish(&volume.volume_id)),
        ("ControllerPublishVolume", publish(&volume.volume_id)),
        ("ControllerUnpublishVolume", unpublish(&volume.volume_id)),
    ] {
        assert_eq!(call(&front, method, &request).await?.code(), Code::Ok);
    }
    assert_eq!(relayed.driver.calls_of("ControllerPublishVolume").len(), 2);
    assert_eq!(relayed.driver.calls_of("ControllerUnpublishVolume").len(), 2);
    relayed.stop().await
}

#[tokio::test]
async fn an_edge_that_died_carries_the_call_out_when_it_is_back() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let World { mut stand, cloud, edge, driver, serving } = World::new(transport).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        driver.inject("CreateVolume", Fault::Hang, Times::Next(1));
        let request = create("v");
        let url = cloud.urls[0].clone();
        let again = async {
            driver.wait_for("CreateVolume", 1).await?;
            edge.kill().await?;
            driver.wait_for_outcome("CreateVolume", Outcome::Dropped, 1).await?;
            stand.edge(NODE, &url, &[(DRIVER, &stand.at("driver.sock"))]).await
        };
        let (answer, edge) = tokio::join!(call(&front, "CreateVolume", &request), again);
        assert!(driver.volumes() == [created(&answer?)?]);
        edge?.stop(START).await?;
        cloud.process.stop(START).await?;
        serving.stop().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_caller_is_held_until_its_deadline_and_disturbs_nobody() -> anyhow::Result<()> {
    let relayed = Relayed::new().await?;
    let front = relayed.front().await?;
    relayed.driver.inject("CreateVolume", Fault::Hang, Times::Next(1));
    let begun = Instant::now();
    let request = create("v");
    let timeout = [("grpc-timeout", "1500m")];
    let cut = async {
        relayed.driver.wait_for("CreateVolume", 1).await?;
        relayed.relay.cut();
        until("others are told at once", || async {
            let answer = front.call(&controller("GetCapacity"), &[]).await?;
            anyhow::ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
            assert!(begun.elapsed() < Duration::from_secs(1), "after {:?}", begun.elapsed());
            Ok(())
        })
        .await
    };
    let path = controller("CreateVolume");
    let (answer, cut) = tokio::join!(front.send(&path, frame(&request), &timeout), cut);
    cut?;
    assert_eq!(answer?.code(), Code::DeadlineExceeded);
    let took = begun.elapsed();
    assert!((Duration::from_millis(1500)..Duration::from_millis(1700)).contains(&took), "{took:?}");
    relayed.driver.release();
    relayed.stop().await
}

#[tokio::test]
async fn identical_requests_share_a_run_and_another_for_the_same_is_aborted() -> anyhow::Result<()>
{
    for transport in TRANSPORTS {
        let world = World::new(transport).await?;
        for front in [world.front().await?, world.node_front().await?] {
            let gate = Gate::new();
            world.driver.forget_calls();
            world.driver.inject("CreateVolume", Fault::Gate(gate.clone()), Times::Next(1));
            let with = |parameters: &[(&str, &str)]| {
                let mut request =
                    csi::CreateVolumeRequest::decode(&*create("v")).unwrap_or_default();
                request.parameters =
                    parameters.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
                request
            };
            // A map has no order: callers write its entries in any order.
            let request = with(&[("a", "1")]).encode_to_vec();
            let a = with(&[("a", "1")]);
            let b = with(&[("b", "2")]);
            let entry = |of: &csi::CreateVolumeRequest| {
                csi::CreateVolumeRequest { parameters: of.parameters.clone(), ..Default::default() }
                    .encode_to_vec()
            };
            let orders = [[request.clone(), entry(&b)].concat(), {
                let bare = csi::CreateVolumeRequest { parameters: Default::default(), ..a.clone() };
                [bare.encode_to_vec(), entry(&b), entry(&a)].concat()
            }];
            let asked =
                join_all(orders.iter().map(|request| call(&front, "CreateVolume", request)));
            let other = async {
                gate.wait_for(1).await?;
                let other = call(&front, "CreateVolume", &request).await?.status();
                assert_eq!(other.code(), Code::Aborted, "{other}");
                gate.open();
                anyhow::Ok(())
            };
            let (answers, other) = tokio::join!(asked, other);
            other?;
            let volumes: Vec<_> =
                answers.into_iter().map(|answer| created(&answer?)).collect::<Result<_, _>>()?;
            assert!(volumes[0] == volumes[1]);
            assert_eq!(world.driver.calls_of("CreateVolume").len(), 1);
            call(&front, "DeleteVolume", &delete(&volumes[0].volume_id)).await?;
        }
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_is_not_sent_again() -> anyhow::Result<()> {
    let relayed = Relayed::new().await?;
    let front = relayed.front().await?;
    let direct = RawClient::connect(&relayed.stand.at("driver.sock")).await?;
    let [request, _] = snapshot_requests(&direct).await?;
    relayed.driver.inject("GetMetadataAllocated", Fault::Hang, Times::Next(1));
    let cut = async {
        relayed.driver.wait_for("GetMetadataAllocated", 1).await?;
        relayed.relay.cut();
        anyhow::Ok(())
    };
    let path = "/csi.v1.SnapshotMetadata/GetMetadataAllocated";
    let (answer, cut) = tokio::join!(front.send(path, frame(&request), &[DEADLINE]), cut);
    cut?;
    assert_eq!(answer?.code(), Code::Unavailable);
    relayed.relay.mend();
    relayed.driver.release();
    relayed.stop().await
}
