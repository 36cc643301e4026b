//! Several nodes behind one socket: each call reaches the node that it is for, or none.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use prost::Message;
use proto::csi::{self, volume_content_source};
use tests::process::Process;
use tests::raw::{RawAnswer, RawClient};
use tests::stand::{Cloud, START, Stand, until};
use tests::testdriver::{Running, TOPOLOGY_KEY, TestDriver};
use tests::world::{DRIVER, TRANSPORTS, controller, create, created, delete, ready};
use tonic::Code;

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A cloud and three nodes, of which the last is on QUIC.
struct Nodes {
    _stand: Stand,
    cloud: Cloud,
    nodes: Vec<(TestDriver, Running, Process)>,
    front: RawClient,
}

impl Nodes {
    async fn new(more: &[&str]) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let cloud = stand.cloud(&TRANSPORTS, &[DRIVER], more).await?;
        let mut nodes = Vec::new();
        for (at, node) in NODES.iter().enumerate() {
            let (driver, socket) = (TestDriver::new(DRIVER, *node), stand.at(&format!("{node}.sock")));
            let serving = driver.serve(Path::new(&socket))?;
            let url = cloud.urls[usize::from(at == 2)].clone();
            // The ids of this node's volumes begin otherwise than the other nodes'.
            driver.fill(at * 100, 0);
            nodes.push((driver, serving, stand.edge(node, &url, &[(DRIVER, &socket)]).await?));
        }
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        let nodes = Self { _stand: stand, cloud, nodes, front };
        for node in NODES {
            until("the cloud learns the topology of all", || async {
                let answer = nodes.call("GetCapacity", &nodes.capacity(node)).await?;
                anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
                Ok(())
            })
            .await?;
        }
        nodes.nodes.iter().for_each(|(driver, ..)| driver.forget_calls());
        Ok(nodes)
    }

    async fn call(&self, method: &str, request: &impl Message) -> anyhow::Result<RawAnswer> {
        self.front.call(&controller(method), &request.encode_to_vec()).await
    }

    fn capacity(&self, node: &str) -> csi::GetCapacityRequest {
        csi::GetCapacityRequest { accessible_topology: Some(topology(node)), ..Default::default() }
    }

    /// The nodes that got a call of this method since the last time this was asked.
    fn who_got(&self, method: &str) -> Vec<&'static str> {
        let got =
            NODES.iter().zip(&self.nodes).filter(|(_, (driver, ..))| !driver.calls_of(method).is_empty());
        let got = got.map(|(node, _)| *node).collect();
        self.nodes.iter().for_each(|(driver, ..)| driver.forget_calls());
        got
    }

    async fn stop(self) -> anyhow::Result<()> {
        for (_, serving, edge) in self.nodes {
            edge.stop(START).await?;
            serving.stop().await;
        }
        self.cloud.process.stop(START).await
    }
}

fn topology(node: &str) -> csi::Topology {
    csi::Topology { segments: HashMap::from([(TOPOLOGY_KEY.to_owned(), node.to_owned())]) }
}

fn create_at(name: &str, nodes: &[&str]) -> anyhow::Result<csi::CreateVolumeRequest> {
    let mut request = csi::CreateVolumeRequest::decode(create(name).as_slice())?;
    let preferred: Vec<_> = nodes.iter().map(|node| topology(node)).collect();
    request.accessibility_requirements =
        Some(csi::TopologyRequirement { requisite: preferred.iter().rev().cloned().collect(), preferred });
    Ok(request)
}

#[tokio::test]
async fn a_volume_lives_where_its_topology_says_and_all_its_calls_go_there() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    for (name, asked, home) in
        [("a", vec!["n2"], "n2"), ("b", vec!["n3", "n1"], "n3"), ("c", vec!["n9", "n1"], "n1")]
    {
        let volume = created(&nodes.call("CreateVolume", &create_at(name, &asked)?).await?)?;
        assert_eq!(nodes.who_got("CreateVolume"), [home], "{name}");
        let volume_id = volume.volume_id;
        let get = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
        assert_eq!(nodes.call("ControllerGetVolume", &get).await?.code(), Code::Ok);
        assert_eq!(nodes.who_got("ControllerGetVolume"), [home]);

        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume_id.clone(),
            name: format!("s-{name}"),
            ..Default::default()
        };
        let answer = nodes.call("CreateSnapshot", &request).await?;
        assert_eq!(nodes.who_got("CreateSnapshot"), [home]);
        let made = csi::CreateSnapshotResponse::decode(answer.message().context("no snapshot")?)?;
        let snapshot_id = made.snapshot.context("no snapshot")?.snapshot_id;
        // A volume out of a snapshot is made where that is, whatever else is asked.
        let mut restore = create_at(&format!("r-{name}"), &["n1", "n2", "n3"])?;
        let source = volume_content_source::SnapshotSource { snapshot_id: snapshot_id.clone() };
        restore.volume_content_source =
            Some(csi::VolumeContentSource { r#type: Some(volume_content_source::Type::Snapshot(source)) });
        assert_eq!(nodes.call("CreateVolume", &restore).await?.code(), Code::Ok);
        assert_eq!(nodes.who_got("CreateVolume"), [home]);

        let request = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        assert_eq!(nodes.call("DeleteSnapshot", &request).await?.code(), Code::Ok);
        assert_eq!(nodes.who_got("DeleteSnapshot"), [home]);
        assert_eq!(
            nodes.front.call(&controller("DeleteVolume"), &delete(&volume_id)).await?.code(),
            Code::Ok
        );
        assert_eq!(nodes.who_got("DeleteVolume"), [home]);
    }
    nodes.stop().await
}

#[tokio::test]
async fn what_is_certain_of_no_node_reaches_none() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    for (method, request) in [
        ("CreateVolume", create("nowhere")),
        ("CreateVolume", create_at("elsewhere", &["n9"])?.encode_to_vec()),
        ("DeleteVolume", delete("never-seen")),
        ("ListVolumes", Vec::new()),
    ] {
        let status = nodes.front.call(&controller(method), &request).await?.status();
        assert_eq!(status.code(), Code::Unavailable, "{method}: {status}");
        assert!(NODES.iter().all(|node| status.message().contains(node)), "{method}: {status}");
        assert!(nodes.who_got(method).is_empty(), "{method} was passed on");
    }
    nodes.stop().await
}

#[tokio::test]
async fn the_default_node_gets_what_is_new_and_lists_but_nothing_is_ended_there() -> anyhow::Result<()> {
    let nodes = Nodes::new(&["--default-node", "n2"]).await?;
    assert_eq!(nodes.front.call(&controller("CreateVolume"), &create("v")).await?.code(), Code::Ok);
    assert_eq!(nodes.who_got("CreateVolume"), ["n2"]);
    assert_eq!(nodes.front.call(&controller("ListVolumes"), &[]).await?.code(), Code::Ok);
    assert_eq!(nodes.who_got("ListVolumes"), ["n2"]);
    // A driver answers OK for a volume that it does not have; the volume would be leaked.
    let status = nodes.front.call(&controller("DeleteVolume"), &delete("of-before")).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(nodes.who_got("DeleteVolume").is_empty());
    nodes.stop().await
}

#[tokio::test]
async fn a_group_snapshot_over_several_nodes_is_refused_for_good() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    let mut source_volume_ids = Vec::new();
    for node in ["n1", "n2"] {
        let made = nodes.call("CreateVolume", &create_at(&format!("v-{node}"), &[node])?).await?;
        source_volume_ids.push(created(&made)?.volume_id);
    }
    let request =
        csi::CreateVolumeGroupSnapshotRequest { name: "g".into(), source_volume_ids, ..Default::default() };
    let path = "/csi.v1.GroupController/CreateVolumeGroupSnapshot";
    let status = nodes.front.call(path, &request.encode_to_vec()).await?.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("n1, n2"), "{status}");
    assert!(nodes.who_got("CreateVolumeGroupSnapshot").is_empty());
    nodes.stop().await
}
