//! Nodes of which one lies: what it says of things without a home is worth nothing alone.

use std::collections::HashMap;

use proto::csi;
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
