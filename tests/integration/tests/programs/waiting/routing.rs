//! Several nodes behind one socket: each call reaches the node that it is for, or none.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use drivers::testdriver::{Fault, Outcome, Running, TOPOLOGY_KEY, TestDriver, Times};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created, delete};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use proto::csi::volume_content_source;
use tonic::Code;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// A node whose driver answers later than its link is made is listed after a minute.
const FIRST_LIST: Duration = Duration::from_secs(90);

/// A cloud and three nodes, of which the last is on QUIC.
pub(super) struct Nodes {
    pub(super) stand: Stand,
    pub(super) cloud: Cloud,
    pub(super) nodes: Vec<(TestDriver, Running, Process)>,
    pub(super) front: RawClient,
}

impl Nodes {
    async fn new(more: &[&str]) -> anyhow::Result<Self> {
        Self::with("", more).await
    }

    /// Nodes whose driver has this policy.
    pub(super) async fn with(policy: &str, more: &[&str]) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let config = stand.at("policy.toml");
        let text = format!("[driver.\"{DRIVER}\"]\n{policy}\n");
        proto::host::publish::publish(
            config.as_ref(),
            text.as_bytes(),
            0o600,
            proto::host::publish::Existing::Keep,
        )?;
        let more = &[&["--config", &config], more].concat();
        let cloud = stand.cloud(&TRANSPORTS, &[DRIVER], more).await?;
        let mut nodes = Vec::new();
        for (at, node) in NODES.iter().enumerate() {
            let driver = TestDriver::new(DRIVER, *node);
            let socket = stand.at(&format!("{node}.sock"));
            let serving = driver.serve(Path::new(&socket))?;
            let url = cloud.urls[usize::from(at == 2)].clone();
            // The ids of all nodes are different.
            driver.count_from(at as u64 * 100);
            nodes.push((driver, serving, stand.edge(node, &url, &[(DRIVER, &socket)]).await?));
        }
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        let nodes = Self { stand, cloud, nodes, front };
        for node in NODES {
            until("the cloud learns the topology of all", || async {
                let answer = nodes.call("GetCapacity", &nodes.capacity(node)).await?;
                anyhow::ensure!(answer.code() == Code::Ok, "{}", answer.status());
                Ok(())
            })
            .await?;
        }
        for (driver, ..) in &nodes.nodes {
            let listed = async {
                while driver.wait_for_outcome("ListVolumes", Outcome::Finished, 1).await.is_err() {}
            };
            tokio::time::timeout(FIRST_LIST, listed).await.context("a node was not listed")?;
            driver.forget_calls();
        }
        Ok(nodes)
    }

    pub(super) async fn call(
        &self,
        method: &str,
        request: &impl Message,
    ) -> anyhow::Result<RawAnswer> {
        self.front.call(&controller(method), &request.encode_to_vec()).await
    }

    fn capacity(&self, node: &str) -> csi::GetCapacityRequest {
        csi::GetCapacityRequest { accessible_topology: Some(topology(node)), ..Default::default() }
    }

    /// The nodes that got a call of this method since the last time this was asked.
    pub(super) fn who_got(&self, method: &str) -> Vec<&'static str> {
        let got = NODES
            .iter()
            .zip(&self.nodes)
            .filter(|(_, (driver, ..))| !driver.calls_of(method).is_empty());
        let got = got.map(|(node, _)| *node).collect();
        self.nodes.iter().for_each(|(driver, ..)| driver.forget_calls());
        got
    }

    /// The nodes whose driver got a request with these bytes since calls were forgotten.
    pub(super) fn who_got_bytes(&self, bytes: &[u8]) -> Vec<&'static str> {
        let has = |message: &[u8]| message.windows(bytes.len()).any(|part| part == bytes);
        let got = |driver: &TestDriver| driver.calls().iter().any(|call| has(&call.message));
        let nodes = NODES.into_iter().zip(&self.nodes);
        nodes.filter(|(_, (driver, ..))| got(driver)).map(|(node, _)| node).collect()
    }

    /// Kills the cloud and starts it again with the same store, at the same address.
    async fn restarted(self) -> anyhow::Result<Self> {
        let Self { stand, cloud, nodes, .. } = self;
        cloud.process.kill().await?;
        let urls: Vec<_> = cloud.urls.iter().map(String::as_str).collect();
        let cloud = stand.cloud(&urls, &[DRIVER], &[]).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        let back = Self { stand, cloud, nodes, front };
        for node in NODES {
            until("all nodes are back", || async {
                let answer = back.call("GetCapacity", &back.capacity(node)).await?;
                let capacity =
                    csi::GetCapacityResponse::decode(answer.message().context("no answer")?)?;
                anyhow::ensure!(capacity.available_capacity > 0, "{node} is not");
                Ok(())
            })
            .await?;
        }
        Ok(back)
    }

    /// The log of csi-cloud.
    pub(super) async fn log(&self) -> String {
        self.cloud.process.settled_log().await
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        for (_, serving, edge) in self.nodes {
            edge.stop(START).await?;
            serving.stop().await;
        }
        self.cloud.process.stop(START).await
    }
}

pub(super) fn topology(node: &str) -> csi::Topology {
    csi::Topology { segments: HashMap::from([(TOPOLOGY_KEY.to_owned(), node.to_owned())]) }
}

pub(super) fn create_at(name: &str, nodes: &[&str]) -> anyhow::Result<csi::CreateVolumeRequest> {
    let mut request = csi::CreateVolumeRequest::decode(create(name).as_slice())?;
    let preferred: Vec<_> = nodes.iter().map(|node| topology(node)).collect();
    request.accessibility_requirements = Some(csi::TopologyRequirement {
        requisite: preferred.iter().rev().cloned().collect(),
        preferred,
    });
    Ok(request)
}

#[tokio::test]
async fn a_volume_lives_where_its_topology_says_and_all_its_calls_go_there() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    for (name, asked, home) in
        [("a", vec!["n2"], "n2"), ("b", vec!["n3", "n1"], "n3"), ("c", vec!["n9", "n1"], "n1")]
    {
        let volume = created(&nodes.call("CreateVolume", &create_at(name, &asked)?).await?)?;
        let at = NODES.iter().position(|node| *node == home).context("no such node")?;
        let got = nodes.nodes[at].0.calls_of("CreateVolume");
        let got = csi::CreateVolumeRequest::decode(got[0].message.clone())?;
        let wanted = got.accessibility_requirements.context("it was asked without topology")?;
        let here = [topology(home)];
        // A driver may take the first one for the place of the volume.
        assert!(wanted.requisite == here && wanted.preferred == here, "{name}");
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
        // A volume from a snapshot is made at the snapshot's node, whatever topology is requested.
        let mut restore = create_at(&format!("r-{name}"), &["n1", "n2", "n3"])?;
        let source = volume_content_source::SnapshotSource { snapshot_id: snapshot_id.clone() };
        restore.volume_content_source = Some(csi::VolumeContentSource {
            r#type: Some(volume_content_source::Type::Snapshot(source)),
        });
        assert_eq!(nodes.call("CreateVolume", &restore).await?.code(), Code::Ok);
        assert_eq!(nodes.who_got("CreateVolume"), [home]);
        // This holds even if the scheduler prefers another node, because it knows nothing of
        // snapshots and a driver would refuse.
        let elsewhere = NODES.into_iter().find(|node| *node != home).context("one node only")?;
        let mut late = create_at(&format!("l-{name}"), &[elsewhere])?;
        late.volume_content_source = restore.volume_content_source;
        let late = created(&nodes.call("CreateVolume", &late).await?)?;
        assert!(late.accessible_topology == [topology(home)], "{name}");
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
async fn a_volume_that_names_no_node_is_spread_or_pinned() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    for n in 0..6 {
        let name = format!("spread-{n}");
        created(&nodes.front.call(&controller("CreateVolume"), &create(&name)).await?)?;
    }
    for (driver, ..) in &nodes.nodes {
        assert_eq!(driver.calls_of("CreateVolume").len(), 2, "each node has as many as the others");
    }
    nodes.stop().await?;
    let nodes = Nodes::new(&["--default-node", "n2"]).await?;
    for name in ["a", "b"] {
        created(&nodes.front.call(&controller("CreateVolume"), &create(name)).await?)?;
        assert_eq!(nodes.who_got("CreateVolume"), ["n2"]);
    }
    nodes.stop().await
}

/// CSI: "Unable to provision in accessible_topology"; nothing was ever sent anywhere.
#[tokio::test]
async fn a_topology_that_no_node_has_is_exhausted_and_one_away_is_not() -> anyhow::Result<()> {
    let mut nodes = Nodes::new(&[]).await?;
    let status = nodes.call("CreateVolume", &create_at("elsewhere", &["n9"])?).await?.status();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(NODES.iter().all(|node| status.message().contains(node)), "{status}");
    let (_, serving, edge) = nodes.nodes.pop().context("no node")?;
    edge.stop(START).await?;
    serving.stop().await;
    let away = create_at("v", &["n3"])?;
    until("n3 is away", || async {
        let status = nodes.call("CreateVolume", &away).await?.status();
        anyhow::ensure!(status.code() == Code::Unavailable, "{status}");
        Ok(())
    })
    .await?;
    assert!(nodes.who_got("CreateVolume").is_empty(), "another node got it");
    nodes.stop().await
}

#[tokio::test]
async fn what_nobody_knows_is_asked_for_once() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    // The volume was made directly at the driver, so the cloud does not know it.
    let direct = RawClient::connect(&nodes.stand.at("n3.sock")).await?;
    let volume_id =
        created(&direct.call(&controller("CreateVolume"), &create("of-before")).await?)?.volume_id;
    nodes.nodes.iter().for_each(|(driver, ..)| driver.forget_calls());
    for asked in [vec!["n1", "n2", "n3"], vec![]] {
        let get = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
        assert_eq!(nodes.call("ControllerGetVolume", &get).await?.code(), Code::Ok);
        let got = |method| {
            NODES
                .iter()
                .zip(&nodes.nodes)
                .filter(move |(_, (driver, ..))| !driver.calls_of(method).is_empty())
        };
        let names: Vec<_> = got("ValidateVolumeCapabilities").map(|(node, _)| *node).collect();
        assert_eq!(names, asked);
        assert_eq!(nodes.who_got("ControllerGetVolume"), ["n3"]);
    }
    let get = csi::ControllerGetVolumeRequest { volume_id: "never".into() };
    let status = nodes.call("ControllerGetVolume", &get).await?.status();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    nodes.stop().await
}

/// A driver answers OK for the delete of an unknown volume, so one node's answer is not enough.
/// csi-sanity requires that answer.
#[tokio::test]
async fn a_request_that_is_incomplete_is_so_whether_or_not_its_volume_is_known()
-> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    let volume_id = "strange".to_owned();
    let node_id = "n1".to_owned();
    let whole = csi::ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id,
        volume_capability: Some(csi::VolumeCapability::default()),
        ..Default::default()
    };
    let code = async |method, request: Vec<u8>| {
        anyhow::Ok(nodes.front.call(&controller(method), &request).await?.code())
    };
    assert_eq!(code("ControllerPublishVolume", whole.encode_to_vec()).await?, Code::NotFound);
    // Also if the drivers take ids of another form alone.
    for (driver, ..) in &nodes.nodes {
        let refusal = Fault::error(Code::InvalidArgument, "an id of another form");
        driver.inject("ValidateVolumeCapabilities", refusal, Times::All);
    }
    let said = code("ControllerPublishVolume", whole.encode_to_vec()).await?;
    assert_eq!(said, Code::FailedPrecondition);
    let no_node = csi::ControllerPublishVolumeRequest { node_id: String::new(), ..whole.clone() };
    let no_capability = csi::ControllerPublishVolumeRequest { volume_capability: None, ..whole };
    let nothing = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        ..Default::default()
    };
    let no_size = csi::ControllerExpandVolumeRequest { volume_id, ..Default::default() };
    for (method, request) in [
        ("ControllerPublishVolume", no_node.encode_to_vec()),
        ("ControllerPublishVolume", no_capability.encode_to_vec()),
        ("ValidateVolumeCapabilities", nothing.encode_to_vec()),
        ("ControllerExpandVolume", no_size.encode_to_vec()),
    ] {
        assert_eq!(code(method, request).await?, Code::InvalidArgument, "{method}");
    }
    nodes.stop().await
}

#[tokio::test]
async fn what_nobody_knows_is_deleted_everywhere_or_not_at_all() -> anyhow::Result<()> {
    let mut nodes = Nodes::new(&[]).await?;
    let gone = nodes.front.call(&controller("DeleteVolume"), &delete("never")).await?;
    assert_eq!(gone.code(), Code::Ok, "{}", gone.status());
    assert_eq!(nodes.who_got("DeleteVolume"), NODES);
    // The word of one node is never final for all, whichever answers first.
    for (node, code) in [(1, Code::FailedPrecondition), (0, Code::NotFound), (2, Code::Aborted)] {
        let refusal = Fault::error(code, "it is in use");
        nodes.nodes[node].0.inject("DeleteVolume", refusal, Times::Next(1));
        let refused =
            nodes.front.call(&controller("DeleteVolume"), &delete("never")).await?.status();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        let name = NODES[node];
        for told in [name, "it is in use", "csi-cloud node remove"] {
            assert!(refused.message().contains(told), "{refused}");
        }
        nodes.who_got("DeleteVolume");
    }
    let (_, serving, edge) = nodes.nodes.pop().context("no node")?;
    edge.stop(START).await?;
    serving.stop().await;
    for empty in [delete(""), create("")] {
        let method = if empty == create("") { "CreateVolume" } else { "DeleteVolume" };
        let status = nodes.front.call(&controller(method), &empty).await?.status();
        assert_eq!(status.code(), Code::InvalidArgument, "{method}: {status}");
    }
    nodes.stop().await
}

/// Its answer was lost, or a user deletes once more. Only the node that had it need be there.
#[tokio::test]
async fn a_repeated_delete_or_detach_goes_to_the_node_that_had_the_id() -> anyhow::Result<()> {
    let mut nodes = Nodes::new(&[]).await?;
    let made = nodes.call("CreateVolume", &create_at("v", &["n1"])?).await?;
    let volume_id = created(&made)?.volume_id;
    let (_, serving, edge) = nodes.nodes.pop().context("no node")?;
    edge.stop(START).await?;
    serving.stop().await;
    nodes.who_got("CreateVolume");
    for _ in 0..2 {
        let deleted = nodes.front.call(&controller("DeleteVolume"), &delete(&volume_id)).await?;
        assert_eq!(deleted.code(), Code::Ok, "{}", deleted.status());
        assert_eq!(nodes.who_got("DeleteVolume"), ["n1"]);
    }
    for node_id in ["n1", "n2", ""] {
        let (volume_id, node_id) = (volume_id.clone(), node_id.to_owned());
        let detach =
            csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        let detached = nodes.call("ControllerUnpublishVolume", &detach).await?;
        assert_eq!(detached.code(), Code::Ok, "{}", detached.status());
        assert_eq!(nodes.who_got("ControllerUnpublishVolume"), ["n1"]);
    }
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id,
        node_id: "n1".into(),
        ..Default::default()
    };
    let status = nodes.call("ControllerPublishVolume", &attach).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "nothing is attached by an ended home: {status}");
    nodes.stop().await
}

/// external-provisioner returns the claim to the scheduler, which may choose another node. So
/// nothing may have been sent.
#[tokio::test]
async fn a_claim_is_given_back_only_if_nothing_was_sent() -> anyhow::Result<()> {
    let mut nodes = Nodes::with("reschedule = true", &[]).await?;
    let at_n3 = |name: &str| create_at(name, &["n3"]).map(|request| request.encode_to_vec());
    nodes.nodes[2].0.inject("CreateVolume", Fault::Hang, Times::Next(1));
    let sent = csi::frame::frame(&at_n3("sent")?);
    let hung =
        nodes.front.send(&controller("CreateVolume"), sent, &[("grpc-timeout", "300m")]).await?;
    assert_eq!(hung.code(), Code::DeadlineExceeded, "{}", hung.status());
    let (_, _hangs, edge) = nodes.nodes.pop().context("no node")?;
    edge.kill().await?;
    let tries = std::cell::Cell::new(0);
    until("n3 is away", || async {
        // Another one each time: the first may still be sent to the link that is about to end.
        tries.set(tries.get() + 1);
        let request = csi::frame::frame(&at_n3(&format!("never-sent-{}", tries.get()))?);
        let deadline = [("grpc-timeout", "300m")];
        let status =
            nodes.front.send(&controller("CreateVolume"), request, &deadline).await?.status();
        anyhow::ensure!(status.code() == Code::ResourceExhausted, "{status}");
        Ok(())
    })
    .await?;
    let status = nodes.front.call(&controller("CreateVolume"), &at_n3("sent")?).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    nodes.stop().await
}

/// The driver's answer to CreateVolume with this volume id.
fn made(volume_id: &str, capacity_bytes: i64) -> Fault {
    let volume = csi::Volume { volume_id: volume_id.into(), capacity_bytes, ..Default::default() };
    Fault::raw(csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec())
}

#[tokio::test]
async fn any_id_that_a_driver_gives_has_its_home_also_after_a_crash() -> anyhow::Result<()> {
    let mut nodes = Nodes::new(&[]).await?;
    let long = "x".repeat(4096);
    let ids = ["a/b#c", " ", "with space", "nul\0inside", "../..", "größe", &long];
    for (n, id) in ids.iter().enumerate() {
        nodes.nodes[1].0.inject("CreateVolume", made(id, 1 << 20), Times::Next(1));
        let name = format!("{n}{}", "n".repeat(127));
        created(&nodes.call("CreateVolume", &create_at(&name, &["n2"])?).await?)?;
    }
    nodes = nodes.restarted().await?;
    nodes.who_got("CreateVolume");
    for id in ids {
        let get = csi::ControllerGetVolumeRequest { volume_id: id.into() };
        nodes.nodes[1].0.inject("ControllerGetVolume", Fault::raw(Vec::new()), Times::Next(1));
        assert_eq!(nodes.call("ControllerGetVolume", &get).await?.code(), Code::Ok, "{id:?}");
        assert_eq!(nodes.who_got("ControllerGetVolume"), ["n2"], "{id:?}");
        nodes.nodes[1].0.inject("DeleteVolume", Fault::raw(Vec::new()), Times::Next(1));
        let deleted = nodes.front.call(&controller("DeleteVolume"), &delete(id)).await?;
        assert_eq!(
            (deleted.code(), nodes.who_got("DeleteVolume")),
            (Code::Ok, vec!["n2"]),
            "{id:?}"
        );
    }
    nodes.stop().await
}

#[tokio::test]
async fn an_answer_that_breaks_csi_makes_no_wrong_home() -> anyhow::Result<()> {
    let nodes = Nodes::new(&[]).await?;
    let at =
        |node: usize, answer| nodes.nodes[node].0.inject("CreateVolume", answer, Times::Next(1));
    let without = csi::CreateVolumeResponse::default().encode_to_vec();
    for (answer, why) in [
        (Fault::raw(without), "without an id"),
        (made("", 1), "without an id"),
        (made(&"x".repeat(4097), 1), "with an id of more than 4 KiB"),
    ] {
        at(0, answer);
        let status = nodes.call("CreateVolume", &create_at("odd", &["n1"])?).await?.status();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(why), "{status}");
    }
    // Its outcome is not known, so it goes nowhere else.
    nodes.who_got("CreateVolume");
    created(&nodes.call("CreateVolume", &create_at("odd", &["n3"])?).await?)?;
    assert_eq!(nodes.who_got("CreateVolume"), ["n1"]);

    // An unrequested capacity passes: the provisioner deletes the volume and reports it.
    at(1, made("small", 1));
    let mut small = create_at("s", &["n2"])?;
    small.capacity_range = Some(csi::CapacityRange { required_bytes: 2, limit_bytes: 0 });
    assert_eq!(created(&nodes.call("CreateVolume", &small).await?)?.capacity_bytes, 1);
    nodes
        .cloud
        .process
        .logged("the driver made a volume of another size than was asked for")
        .await?;
    // Another id for a name that was made: both are known.
    at(1, made("other", 1));
    created(&nodes.call("CreateVolume", &create_at("s", &["n2"])?).await?)?;
    nodes.cloud.process.logged("the driver made another one under a name").await?;
    // The id of another node's volume: that node keeps it.
    at(2, made("small", 1));
    let status = nodes.call("CreateVolume", &create_at("claim", &["n3"])?).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().contains("n3 made \"small\", an id that already belongs to node n2"),
        "{status}"
    );
    nodes.who_got("CreateVolume");
    for id in ["small", "other"] {
        let get = csi::ControllerGetVolumeRequest { volume_id: id.into() };
        nodes.call("ControllerGetVolume", &get).await?;
        assert_eq!(nodes.who_got("ControllerGetVolume"), ["n2"], "{id}");
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_node_has_a_front_of_its_own_if_it_is_wished() -> anyhow::Result<()> {
    let nodes = Nodes::new(&["--node-fronts"]).await?;
    let socket = format!("{}/n2/{DRIVER}.sock", nodes.stand.at("cloud"));
    until("n2 has a front", || async { RawClient::connect(&socket).await.map(drop) }).await?;
    let front = RawClient::connect(&socket).await?;
    let info = front.call("/csi.v1.Node/NodeGetInfo", &[]).await?;
    let info = csi::NodeGetInfoResponse::decode(info.message().context("no answer")?)?;
    assert_eq!(info.accessible_topology.context("no topology")?.segments[TOPOLOGY_KEY], "n2");
    let volume_id =
        created(&front.call(&controller("CreateVolume"), &create("v")).await?)?.volume_id;
    assert_eq!(nodes.who_got("CreateVolume"), ["n2"]);
    let list = front.call(&controller("ListVolumes"), &[]).await?;
    assert_eq!((list.code(), nodes.who_got("ListVolumes")), (Code::Ok, vec!["n2"]));
    // The front of all knows it too.
    let deleted = nodes.front.call(&controller("DeleteVolume"), &delete(&volume_id)).await?;
    assert_eq!((deleted.code(), nodes.who_got("DeleteVolume")), (Code::Ok, vec!["n2"]));
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
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".into(),
        source_volume_ids,
        ..Default::default()
    };
    let path = "/csi.v1.GroupController/CreateVolumeGroupSnapshot";
    let status = nodes.front.call(path, &request.encode_to_vec()).await?.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("n1, n2"), "{status}");
    assert!(nodes.who_got("CreateVolumeGroupSnapshot").is_empty());
    nodes.stop().await
}
