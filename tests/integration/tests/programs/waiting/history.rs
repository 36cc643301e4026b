//! The calls that ended: shown to operators, found in both logs by their ids, and forgotten at a
//! restart.

use anyhow::Context;
use bytes::Bytes;
use drivers::testdriver::{Fault, Times};
use harness::raw::RawAnswer;
use harness::requests::{capability, controller};
use harness::stand::Stand;
use harness::wait::STOP;
use harness::world::{DRIVER, NODE, TRANSPORTS, World};
use prost::Message;
use proto::csi;
use proto::csi::frame;
use serde_json::Value;
use tonic::Code;

/// What a caller names in its traceparent.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A create for the claim shop/NAME.
fn create(name: &str) -> Bytes {
    let parameters = [("pvc/namespace", "shop"), ("pvc/name", name), ("pv/name", "pv")];
    let parameters = parameters.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value));
    let request = csi::CreateVolumeRequest {
        name: name.into(),
        volume_capabilities: vec![capability()],
        parameters: parameters.map(|(key, value)| (key, value.to_owned())).into(),
        ..Default::default()
    };
    frame::frame(&request.encode_to_vec())
}

async fn send(world: &World, name: &str, trace: Option<&str>) -> anyhow::Result<RawAnswer> {
    let trace = trace.map(|trace| ("traceparent", trace));
    let headers: Vec<_> = trace.into_iter().collect();
    world.front().await?.send(&controller("CreateVolume"), create(name), &headers).await
}

async fn ask(stand: &Stand, more: &[&str]) -> anyhow::Result<Value> {
    let admin = stand.at("cloud/_admin.sock");
    let command = ["calls", "--ended", "--admin", &admin, "-o", "json"];
    Ok(serde_json::from_str(&stand.run("csi-cloud", &[&command, more].concat()).await?)?)
}

/// Subject, node, code and message of each call.
fn shown(calls: &Value) -> Vec<[&str; 4]> {
    let calls = calls.as_array().map(Vec::as_slice).unwrap_or_default();
    let fields = ["subject", "node", "code", "message"];
    calls.iter().map(|call| fields.map(|key| call[key].as_str().unwrap_or_default())).collect()
}

async fn world(transport: &str) -> anyhow::Result<World> {
    let mut stand = Stand::new().await?;
    stand.log("info");
    World::on(stand, transport, &[]).await
}

#[tokio::test]
async fn calls_that_ended_are_shown_and_found_in_both_logs() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let world = world(transport).await?;
        let traced = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(send(&world, "pvc-yes", Some(&traced)).await?.code(), Code::Ok);
        let received = world.driver.calls_of("CreateVolume");
        assert_eq!(received[0].headers["traceparent"], traced.as_str());
        let refused = Fault::error(Code::ResourceExhausted, "no room \u{1b}[31m");
        world.driver.inject("CreateVolume", refused, Times::Next(1));
        assert_eq!(send(&world, "pvc-no", None).await?.code(), Code::ResourceExhausted);
        let received = world.driver.calls_of("CreateVolume");
        assert!(!received[1].headers.contains_key("traceparent"), "the caller sent none");
        world.driver.inject("CreateVolume", Fault::Die, Times::Next(1));
        assert_eq!(send(&world, "pvc-down", Some(&traced)).await?.code(), Code::Unavailable);

        let calls = ask(&world.stand, &[]).await?;
        let seen = shown(&calls);
        assert_eq!(seen[1], ["pvc-no", NODE, "RESOURCE_EXHAUSTED", "no room \u{1b}[31m"]);
        assert_eq!(seen[2], ["pvc-yes", NODE, "OK", ""]);
        assert_eq!((seen[0][0], seen[0][1], seen[0][2]), ("pvc-down", NODE, "UNAVAILABLE"));
        assert_eq!((&calls[2]["id"], &calls[2]["rpc"]), (&TRACE.into(), &"CreateVolume".into()));
        for call in calls.as_array().context("no list")? {
            assert_eq!(call["attempts"], 1, "{call}");
            let claim = call["subject"].as_str().map(|name| format!("shop/{name}"));
            assert_eq!(call["claim"].as_str(), claim.as_deref(), "{call}");
            assert!(call["took_ms"].is_u64() && call["at_ms"].is_u64(), "{call}");
        }
        assert_eq!(shown(&ask(&world.stand, &["--failed"]).await?), seen[..2]);
        assert_eq!(shown(&ask(&world.stand, &["--subject", "yes"]).await?), seen[2..]);
        assert_eq!(shown(&ask(&world.stand, &["--limit", "1"]).await?), seen[..1]);
        let admin = world.stand.at("cloud/_admin.sock");
        let command = ["calls", "--ended", "--node", NODE, "--admin", &admin];
        let table = world.stand.run("csi-cloud", &command).await?;
        assert!(table.contains("TRIES") && table.contains("no room"), "{table}");
        assert!(!table.contains('\u{1b}'), "{table}");

        // One line at csi-cloud names all that an operator looks for.
        let id = calls[1]["id"].as_str().context("no id")?;
        let cloud = world.cloud.process.settled_log().await;
        let line = cloud.lines().find(|line| line.contains(&format!("call={id}")));
        let line = line.with_context(|| cloud.clone())?;
        for part in [NODE, DRIVER, "pvc-no", "shop/pvc-no", "ResourceExhausted", "no room"] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        let down = format!("call={TRACE}");
        let edge = world.edge.settled_log().await;
        for (log, what) in [(&edge, "not carried out"), (&cloud, "pvc-down")] {
            let is_in = log.lines().any(|line| line.contains(&down) && line.contains(what));
            assert!(is_in, "{down} {what} is not in {log}");
        }
        world.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_restart_forgets_the_calls_that_ended_and_says_so() -> anyhow::Result<()> {
    let world = world(TRANSPORTS[0]).await?;
    let url = world.url().to_owned();
    for _ in 0..3 {
        let refused = Fault::error(Code::Internal, "broken");
        world.driver.inject("CreateVolume", refused, Times::Next(1));
        assert_eq!(send(&world, "pvc-no", None).await?.code(), Code::Internal);
    }
    let calls = ask(&world.stand, &[]).await?;
    let failures: Vec<_> = calls.as_array().context("no list")?.iter().collect();
    assert_eq!((failures.len(), &failures[0]["failures"]), (1, &3.into()), "{calls}");
    let admin = world.stand.at("cloud/_admin.sock");
    let table = ["calls", "--ended", "--admin", &admin];
    let shown = world.stand.run("csi-cloud", &table).await?;
    assert!(shown.contains("3 times") && shown.contains("since csi-cloud started"), "{shown}");

    let World { stand, cloud, edge, .. } = world;
    cloud.process.stop(STOP).await?;
    // What 0.2.0 was told is accepted, and no file is made.
    let file = stand.at("cloud.calls");
    let cloud = stand.cloud(&[&url], &[DRIVER], &["--calls", &file]).await?;
    assert_eq!(ask(&stand, &[]).await?.as_array().map(Vec::len), Some(0));
    for file in [file, stand.at("cloud.redb.calls")] {
        assert!(!std::fs::exists(&file)?, "{file}");
    }
    let log = cloud.process.settled_log().await;
    assert!(log.contains("`calls` (--calls) has no effect"), "{log}");
    let explain = ["explain", "node", NODE, "--admin", &admin];
    let explained = stand.run("csi-cloud", &explain).await?;
    assert!(explained.contains("since csi-cloud started"), "{explained}");
    edge.stop(STOP).await?;
    cloud.process.stop(STOP).await
}

#[tokio::test]
async fn calls_of_the_node_are_shown_at_the_node() -> anyhow::Result<()> {
    let world = world(TRANSPORTS[0]).await?;
    let front = world.node_front().await?;
    let path = "/csi.v1.Node/NodeStageVolume";
    let stage = csi::NodeStageVolumeRequest {
        volume_id: "v1".into(),
        staging_target_path: "/staged".into(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let stage = stage.encode_to_vec();
    assert_eq!(front.call(path, &stage).await?.code(), Code::Ok);
    let refused = Fault::error(Code::Internal, "no loop device \u{1b}[31m");
    world.driver.inject("NodeStageVolume", refused, Times::Next(1));
    assert_eq!(front.call(path, &stage).await?.code(), Code::Internal);
    let malformed = front.call(path, &[0xff]).await?;
    assert_eq!(malformed.code(), Code::InvalidArgument);
    // The cloud's own calls are in the cloud's history.
    assert_eq!(send(&world, "pvc-yes", None).await?.code(), Code::Ok);

    let admin = world.stand.at(&format!("{NODE}/_admin.sock"));
    let command = ["calls", "--ended", "--admin", &admin, "-o", "json"];
    let calls: Value = serde_json::from_str(&world.stand.run("csi-edge", &command).await?)?;
    let seen = shown(&calls);
    assert_eq!(seen.len(), 3, "{calls}");
    assert_eq!((seen[0][0], seen[0][2]), ("", "INVALID_ARGUMENT"));
    assert_eq!(seen[1], ["v1", "", "INTERNAL", "no loop device \u{1b}[31m"]);
    assert_eq!(seen[2], ["v1", "", "OK", ""]);
    for call in calls.as_array().context("no list")? {
        assert_eq!((&call["rpc"], &call["driver"]), (&"NodeStageVolume".into(), &DRIVER.into()));
        assert!(call["took_ms"].is_u64() && call["at_ms"].is_u64(), "{call}");
    }
    let table = world.stand.run("csi-edge", &command[..4]).await?;
    assert!(table.contains("TOOK") && table.contains("no loop device"), "{table}");
    assert!(!table.contains('\u{1b}'), "{table}");
    world.stop().await
}
