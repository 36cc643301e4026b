//! Nodes of which one lies: what it says of things without a home is worth nothing alone.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use drivers::testdriver::{Fault, TestDriver, Times};
use harness::raw::RawClient;
use harness::requests::{controller, create, created};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use proto::csi::volume_content_source::{SnapshotSource, Type};
use tonic::Code;

use super::routing::Nodes;

/// What no two nodes may see.
const SECRET: &str = "marked-secret";

fn secrets() -> HashMap<String, String> {
    HashMap::from([("key".to_owned(), SECRET.to_owned())])
}

/// A delete of a volume, with secrets.
fn delete(volume_id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: volume_id.into(), secrets: secrets() }
}

/// Sends every call about things without a home that may carry secrets, and that several nodes get.
async fn ask_all(nodes: &Nodes) -> anyhow::Result<()> {
    let snapshots = csi::ListSnapshotsRequest { secrets: secrets(), ..Default::default() };
    let health =
        csi::ControllerListVolumeHealthRequest { secrets: secrets(), ..Default::default() };
    let snapshot_id = "never".to_owned();
    let snapshot =
        csi::DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), secrets: secrets() };
    let one = csi::ListSnapshotsRequest { snapshot_id, ..snapshots.clone() };
    let volume_id = "never".to_owned();
    let unpublish = csi::ControllerUnpublishVolumeRequest {
        volume_id,
        node_id: "n1".into(),
        secrets: secrets(),
    };
    for (method, answer) in [
        ("DeleteVolume", nodes.call("DeleteVolume", &delete("never")).await?),
        ("DeleteSnapshot", nodes.call("DeleteSnapshot", &snapshot).await?),
        ("ControllerUnpublishVolume", nodes.call("ControllerUnpublishVolume", &unpublish).await?),
        ("ListSnapshots", nodes.call("ListSnapshots", &snapshots).await?),
        ("ListSnapshots", nodes.call("ListSnapshots", &one).await?),
        ("ControllerListVolumeHealth", nodes.call("ControllerListVolumeHealth", &health).await?),
    ] {
        assert_eq!(answer.code(), Code::Ok, "{method}: {}", answer.status());
    }
    Ok(())
}

#[tokio::test]
async fn what_several_nodes_are_asked_has_no_secrets() -> anyhow::Result<()> {
    for (policy, who) in [("", Vec::new()), ("ask_with_secrets = true", vec!["n1", "n2", "n3"])] {
        let nodes = Nodes::with(policy, &[]).await?;
        ask_all(&nodes).await?;
        assert_eq!(nodes.who_got_bytes(SECRET.as_bytes()), who, "{policy}");
        nodes.stop().await?;
    }
    Ok(())
}

/// A volume that n3 has and the cloud does not know.
async fn of_before(nodes: &Nodes) -> anyhow::Result<String> {
    let direct = RawClient::connect(&nodes.stand.at("n3.sock")).await?;
    let made = direct.call(&controller("CreateVolume"), &create("of-before")).await?;
    nodes.nodes.iter().for_each(|(driver, ..)| driver.forget_calls());
    Ok(created(&made)?.volume_id)
}

#[tokio::test]
async fn of_two_claimants_none_is_believed() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    let volume_id = of_before(&nodes).await?;
    let liar = &nodes.nodes[0].0;
    liar.inject("ValidateVolumeCapabilities", Fault::raw(Vec::new()), Times::All);
    let get = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
    for status in [
        nodes.call("ControllerGetVolume", &get).await?.status(),
        nodes.call("DeleteVolume", &delete(&volume_id)).await?.status(),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("n1, n3 each say"), "{status}");
    }
    assert!(nodes.who_got_bytes(SECRET.as_bytes()).is_empty());
    assert!(nodes.who_got("DeleteVolume").is_empty());
    // The liar is silent now, so the owner's word counts. It is one node's word all the same.
    liar.clear_faults();
    let deleted = nodes.call("DeleteVolume", &delete(&volume_id)).await?;
    assert_eq!(deleted.code(), Code::Ok, "{}", deleted.status());
    assert!(nodes.who_got_bytes(SECRET.as_bytes()).is_empty());
    assert_eq!(nodes.who_got("DeleteVolume"), ["n3"]);
    nodes.stop().await
}

/// Any node can claim an id that nobody has. It gets no secret for that, and no snapshot of what it
/// does not have is taken.
#[tokio::test]
async fn a_lone_claimant_gets_no_secrets_until_the_operator_confirms_it() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    let volume_id = of_before(&nodes).await?;
    let attach = |secrets| csi::ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id: "n3".into(),
        volume_capability: Some(csi::VolumeCapability::default()),
        secrets,
        ..Default::default()
    };
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: volume_id.clone(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
        secrets: secrets(),
        ..Default::default()
    };
    let snapshot = csi::CreateSnapshotRequest {
        source_volume_id: volume_id.clone(),
        name: "s".into(),
        ..Default::default()
    };
    for (method, status) in [
        (
            "ControllerPublishVolume",
            nodes.call("ControllerPublishVolume", &attach(secrets())).await?.status(),
        ),
        ("ControllerExpandVolume", nodes.call("ControllerExpandVolume", &expand).await?.status()),
        ("CreateSnapshot", nodes.call("CreateSnapshot", &snapshot).await?.status()),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{method}: {status}");
        for word in ["only node n3 itself", "volume adopt", &volume_id] {
            assert!(status.message().contains(word), "{method}: {status}");
        }
        assert!(nodes.who_got(method).is_empty(), "{method}");
    }
    let answer = nodes.call("ControllerPublishVolume", &attach(HashMap::new())).await?;
    assert_eq!(answer.code(), Code::Ok, "without secrets: {}", answer.status());
    assert_eq!(nodes.who_got("ControllerPublishVolume"), ["n3"]);
    let admin = nodes.stand.at("cloud/_admin.sock");
    let adopt = ["volume", "adopt", DRIVER, &volume_id, "--node", "n3", "--admin", &admin];
    nodes.stand.run("csi-cloud", &adopt).await?;
    let answer = nodes.call("ControllerExpandVolume", &expand).await?;
    assert_eq!(answer.code(), Code::Ok, "adopted: {}", answer.status());
    assert_eq!(nodes.who_got_bytes(SECRET.as_bytes()), ["n3"]);
    assert_eq!(nodes.call("CreateSnapshot", &snapshot).await?.code(), Code::Ok);
    nodes.stop().await
}

/// A csi-cloud with an empty store believes no node alone, not even the only one.
#[tokio::test]
async fn the_first_node_of_a_new_store_is_not_believed() -> anyhow::Result<()> {
    let mut stand = Stand::new().await?;
    let store = format!("--store=file:{}", stand.at("new.redb"));
    let cloud = stand.cloud(&TRANSPORTS[..1], &[DRIVER], &[&store]).await?;
    let driver = TestDriver::new(DRIVER, "n1");
    let socket = stand.at("n1.sock");
    let serving = driver.serve(Path::new(&socket))?;
    let edge = stand.edge("n1", &cloud.urls[0], &[(DRIVER, &socket)]).await?;
    let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
    until("the cloud learns of the driver", || ready(&front)).await?;
    let direct = RawClient::connect(&socket).await?;
    let made = direct.call(&controller("CreateVolume"), &create("of-before")).await?;
    let volume_id = created(&made)?.volume_id;
    let get = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() }.encode_to_vec();
    let path = controller("ControllerGetVolume");
    let status = front.call(&path, &get).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for word in ["n1 may have", "not believed before", "volume adopt", &volume_id] {
        assert!(status.message().contains(word), "{status}");
    }
    let made = front.call(&controller("CreateVolume"), &create("new")).await?;
    let new = created(&made)?.volume_id;
    let get_new = csi::ControllerGetVolumeRequest { volume_id: new }.encode_to_vec();
    let answer = front.call(&path, &get_new).await?;
    assert_eq!(answer.code(), Code::Ok, "what it made is not waited for: {}", answer.status());
    let admin = stand.at("cloud/_admin.sock");
    let adopt = ["volume", "adopt", DRIVER, &volume_id, "--node", "n1", "--admin", &admin];
    stand.run("csi-cloud", &adopt).await?;
    let answer = front.call(&path, &get).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    edge.stop(START).await?;
    serving.stop().await;
    cloud.process.stop(START).await
}

#[tokio::test]
async fn a_claim_waits_for_nodes_that_are_away_or_for_the_operator() -> anyhow::Result<()> {
    let mut nodes = Nodes::with("", &[]).await?;
    let (_, serving, edge) = nodes.nodes.pop().context("no node")?;
    edge.stop(START).await?;
    serving.stop().await;
    let snapshot_id = "of-n3".to_owned();
    let snapshot = csi::Snapshot {
        snapshot_id: snapshot_id.clone(),
        source_volume_id: "v".into(),
        ready_to_use: true,
        ..Default::default()
    };
    let entry = csi::list_snapshots_response::Entry { snapshot: Some(snapshot) };
    let list = csi::ListSnapshotsResponse { entries: vec![entry], ..Default::default() };
    nodes.nodes[0].0.inject("ListSnapshots", Fault::raw(list.encode_to_vec()), Times::All);
    let request =
        csi::DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), secrets: secrets() };
    let status = nodes.call("DeleteSnapshot", &request).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    for word in ["n1 says", "n3", "volume adopt"] {
        assert!(status.message().contains(word), "{status}");
    }
    assert!(nodes.who_got_bytes(SECRET.as_bytes()).is_empty());
    let admin = nodes.stand.at("cloud/_admin.sock");
    let adopt = ["volume", "adopt", DRIVER, &snapshot_id, "--kind", "snapshot", "--node", "n1"];
    let adopt = [&adopt[..], &["--admin", &admin]].concat();
    nodes.stand.run("csi-cloud", &adopt).await?;
    let deleted = nodes.call("DeleteSnapshot", &request).await?;
    assert_eq!(deleted.code(), Code::Ok, "{}", deleted.status());
    assert_eq!(nodes.who_got_bytes(SECRET.as_bytes()), ["n1"]);
    nodes.stop().await
}

#[tokio::test]
async fn a_driver_that_cannot_say_what_it_has_leaves_it_to_the_operator() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    let snapshot_id = "never".to_owned();
    let metadata = csi::GetMetadataAllocatedRequest { snapshot_id, ..Default::default() };
    let path = "/csi.v1.SnapshotMetadata/GetMetadataAllocated";
    let status = nodes.front.call(path, &metadata.encode_to_vec()).await?.status();
    assert_eq!(status.code(), Code::NotFound, "a backup takes an empty answer for one: {status}");

    let source = SnapshotSource { snapshot_id: "static".into() };
    let volume_content_source =
        Some(csi::VolumeContentSource { r#type: Some(Type::Snapshot(source)) });
    let create = csi::CreateVolumeRequest {
        name: "restored".into(),
        volume_content_source,
        ..Default::default()
    };
    // Some drivers refuse ids of another form than theirs.
    for (node, code) in [(1, Code::Unimplemented), (2, Code::InvalidArgument)] {
        nodes.nodes[node].0.inject("ListSnapshots", Fault::error(code, "it cannot"), Times::All);
    }
    let status = nodes.call("CreateVolume", &create).await?.status();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for told in ["n2, n3", "volume adopt", "--kind snapshot"] {
        assert!(status.message().contains(told), "{status}");
    }
    nodes.stop().await
}

/// A driver may find the group by them only.
#[tokio::test]
async fn a_group_without_a_home_is_asked_for_with_its_snapshots() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    let group_snapshot_id = "old".to_owned();
    let group = csi::VolumeGroupSnapshot {
        group_snapshot_id: group_snapshot_id.clone(),
        ready_to_use: true,
        ..Default::default()
    };
    let found = csi::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) };
    let found = Fault::raw(found.encode_to_vec());
    nodes.nodes[0].0.inject("GetVolumeGroupSnapshot", found, Times::All);
    let snapshot_ids = vec!["marked-member".to_owned()];
    let request = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id,
        snapshot_ids,
        ..Default::default()
    };
    let path = "/csi.v1.GroupController/GetVolumeGroupSnapshot";
    let answer = nodes.front.call(path, &request.encode_to_vec()).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    assert_eq!(nodes.who_got_bytes(b"marked-member"), ["n1", "n2", "n3"]);
    nodes.stop().await
}
