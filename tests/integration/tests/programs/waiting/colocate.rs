//! Volumes that are not where they were asked for: beside a source, or where the driver says.

use anyhow::Context;
use drivers::testdriver::TOPOLOGY_KEY;
use harness::requests::created;
use prost::Message;
use proto::csi;
use proto::csi::volume_content_source::{SnapshotSource, Type};
use tonic::Code;

use super::routing::{Nodes, create_at, topology};

/// The id of a new snapshot at n2.
async fn snapshot_at_n2(nodes: &Nodes) -> anyhow::Result<String> {
    let volume = created(&nodes.call("CreateVolume", &create_at("source", &["n2"])?).await?)?;
    let request = csi::CreateSnapshotRequest {
        source_volume_id: volume.volume_id,
        name: "snapshot".into(),
        ..Default::default()
    };
    let answer = nodes.call("CreateSnapshot", &request).await?;
    assert_eq!(nodes.who_got("CreateSnapshot"), ["n2"]);
    let made = csi::CreateSnapshotResponse::decode(answer.message().context("no snapshot")?)?;
    Ok(made.snapshot.context("no snapshot")?.snapshot_id)
}

/// A volume from the snapshot, requested at these nodes for the claim `shop/data`.
fn restore(name: &str, from: &str, at: &[&str]) -> anyhow::Result<csi::CreateVolumeRequest> {
    let mut request = create_at(name, at)?;
    let source = SnapshotSource { snapshot_id: from.into() };
    request.volume_content_source =
        Some(csi::VolumeContentSource { r#type: Some(Type::Snapshot(source)) });
    for (key, value) in [("pvc/name", "data"), ("pvc/namespace", "shop"), ("pv/name", "pv-1")] {
        request.parameters.insert(format!("csi.storage.k8s.io/{key}"), value.into());
    }
    Ok(request)
}

#[tokio::test]
async fn a_volume_is_refused_beside_its_source_if_the_operator_says_so() -> anyhow::Result<()> {
    let nodes = Nodes::with("beside_source = false", &[]).await?;
    let snapshot = snapshot_at_n2(&nodes).await?;
    let status = nodes.call("CreateVolume", &restore("r", &snapshot, &["n1"])?).await?.status();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    for word in ["node n2", &format!("snapshot {snapshot}"), "=n1}", "beside_source = false"] {
        assert!(status.message().contains(word), "{word} is not in {status}");
    }
    assert!(nodes.who_got("CreateVolume").is_empty());
    // No intent was written, so the name goes to the next requested topology.
    created(&nodes.call("CreateVolume", &create_at("r", &["n1"])?).await?)?;
    assert_eq!(nodes.who_got("CreateVolume"), ["n1"]);
    for (name, asked) in [("there", vec!["n1", "n2"]), ("anywhere", vec![])] {
        created(&nodes.call("CreateVolume", &restore(name, &snapshot, &asked)?).await?)?;
        assert_eq!(nodes.who_got("CreateVolume"), ["n2"], "{name}");
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_volume_beside_its_source_is_named_once_with_its_claim() -> anyhow::Result<()> {
    let nodes = Nodes::with("", &[]).await?;
    let snapshot = snapshot_at_n2(&nodes).await?;
    for _ in 0..2 {
        let volume =
            created(&nodes.call("CreateVolume", &restore("r", &snapshot, &["n1"])?).await?)?;
        assert!(volume.accessible_topology == [topology("n2")]);
        assert_eq!(nodes.who_got("CreateVolume"), ["n2"]);
    }
    created(&nodes.call("CreateVolume", &restore("there", &snapshot, &["n2"])?).await?)?;
    let log = nodes.log().await;
    let named: Vec<_> =
        log.lines().filter(|line| line.contains("made beside its source")).collect();
    let [line] = named.as_slice() else { anyhow::bail!("{named:#?}") };
    for word in ["n2", &format!("snapshot {snapshot}"), "=n1}", "shop/data"] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    nodes.stop().await
}

/// A volume that n2 makes while its driver names this node. Returns the node of the caller's
/// answer.
async fn made_at_n2_and_named(policy: &str, named: &str) -> anyhow::Result<(String, String)> {
    let nodes = Nodes::with(policy, &[]).await?;
    nodes.nodes[1].0.name_node(named);
    let volume = created(&nodes.call("CreateVolume", &create_at("v", &["n2"])?).await?)?;
    assert_eq!(nodes.who_got("CreateVolume"), ["n2"]);
    let [at] = volume.accessible_topology.as_slice() else {
        anyhow::bail!("{:?}", volume.accessible_topology.len())
    };
    let at = at.segments[TOPOLOGY_KEY].clone();
    let log = nodes.log().await;
    nodes.stop().await?;
    Ok((at, log))
}

/// With an inferred scope, the volume may well be where its driver says.
#[tokio::test]
async fn a_topology_of_another_node_is_corrected_only_by_the_operators_word() -> anyhow::Result<()>
{
    const WARNING: &str = "its new volume is not at the node that made it";
    for (policy, named, expected) in
        [("scope = \"node\"", "n1", "n2"), ("", "n1", "n1"), ("scope = \"node\"", "n9", "n9")]
    {
        let (at, log) = made_at_n2_and_named(policy, named).await?;
        assert_eq!(at, expected, "{policy:?} {named}");
        assert!(log.contains(WARNING), "{policy:?} {named}: {log}");
    }
    let (at, log) = made_at_n2_and_named("scope = \"node\"", "n2").await?;
    assert_eq!(at, "n2");
    assert!(!log.contains(WARNING), "{log}");
    Ok(())
}
