//! A node's certificate says who it is; only the operator says of which drivers it may speak.

use std::path::Path;

use anyhow::{Context, ensure};
use drivers::testdriver::{Fault, Running, TOPOLOGY_KEY, TestDriver, Times};
use harness::process::Process;
use harness::raw::RawClient;
use harness::requests::{controller, create, created};
use harness::stand::{Cloud, Stand};
use harness::wait::{STOP, until};
use harness::world::{DRIVER, TRANSPORTS, hello, ready};
use prost::Message as _;
use proto::control::hello::{Driver, Message, Protobuf};
use proto::csi;
use proto::csi::topology::NODE_SEGMENT;
use proto::host::publish::{Existing, publish};
use proto::link;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, ws};
use serde_json::Value;
use tonic::Code;

/// A cloud with this section for the driver, and nodes that come one after another.
pub(super) struct Fleet {
    stand: Stand,
    cloud: Cloud,
    config: String,
    front: RawClient,
    pub(super) nodes: Vec<Node>,
}

/// A node with its driver.
pub(super) struct Node {
    pub(super) driver: TestDriver,
    _serving: Running,
    edge: Process,
}

impl Fleet {
    async fn new(transport: &str, section: &str) -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let config = stand.at("cloud.toml");
        let text = format!("[driver.\"{DRIVER}\"]\n{section}");
        publish(config.as_ref(), text.as_bytes(), 0o600, Existing::Keep)?;
        let cloud = stand.cloud(&[transport], &[DRIVER], &["--config", &config]).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        Ok(Self { stand, cloud, config, front, nodes: Vec::new() })
    }

    /// A node of this name, whose edge also names these drivers, links.
    async fn join(&mut self, driver: TestDriver, node: &str, also: &[&str]) -> anyhow::Result<()> {
        let socket = self.stand.at(&format!("{node}.sock"));
        let serving = driver.serve(Path::new(&socket))?;
        let mut drivers = vec![(DRIVER, socket.as_str())];
        drivers.extend(also.iter().map(|name| (*name, socket.as_str())));
        let url = self.cloud.urls.first().context("no listener")?.clone();
        let edge = self.stand.edge(node, &url, &drivers).await?;
        self.nodes.push(Node { driver, _serving: serving, edge });
        Ok(())
    }

    /// Three nodes with six volumes, all of which are listed.
    pub(super) async fn with_volumes() -> anyhow::Result<Self> {
        let mut fleet = Self::new(TRANSPORTS[0], "scope = \"node\"\n").await?;
        for (at, node) in ["n1", "n2", "n3"].into_iter().enumerate() {
            let driver = TestDriver::new(DRIVER, node);
            driver.count_from(at as u64 * 1000);
            fleet.join(driver, node, &[]).await?;
        }
        fleet.ready().await?;
        for number in 0..6 {
            let name = format!("pvc-{number}");
            let answer = fleet.front.call(&controller("CreateVolume"), &create(&name)).await?;
            created(&answer)?;
        }
        until("all are listed", || async {
            ensure!(fleet.listed().await? == fleet.there(), "{:?}", fleet.listed().await?);
            Ok(())
        })
        .await?;
        Ok(fleet)
    }

    /// Starts csi-cloud again with the same store; edges link again by themselves.
    async fn restart(self) -> anyhow::Result<Self> {
        let Self { stand, cloud, config, nodes, .. } = self;
        let url = cloud.urls.first().context("no listener")?.clone();
        cloud.process.kill().await?;
        let cloud = stand.cloud(&[&url], &[DRIVER], &["--config", &config]).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        Ok(Self { stand, cloud, config, front, nodes })
    }

    /// What a command of csi-cloud prints as JSON.
    async fn show(&self, command: &str) -> anyhow::Result<Value> {
        let admin = self.stand.at("cloud/_admin.sock");
        let printed =
            self.stand.run("csi-cloud", &[command, "--admin", &admin, "-o", "json"]).await?;
        Ok(serde_json::from_str(&printed)?)
    }

    /// The kinds of reasons for which a node is set apart.
    pub(super) async fn set_apart(&self, node: &str) -> anyhow::Result<Vec<String>> {
        let nodes = self.show("nodes").await?;
        let nodes = nodes.as_array().context("no list")?;
        let node = nodes.iter().find(|item| item["name"] == node).context("it is not shown")?;
        let reasons = node["set_apart"].as_array().context("no reasons")?;
        Ok(reasons.iter().filter_map(|apart| Some(apart["reason"].as_str()?.into())).collect())
    }

    /// Waits until a node is set apart for this alone.
    async fn is_set_apart(&self, node: &str, reason: &str) -> anyhow::Result<()> {
        until("the node is set apart", || async {
            let reasons = self.set_apart(node).await?;
            ensure!(reasons == [reason], "{reasons:?}");
            Ok(())
        })
        .await
    }

    /// A link of the test's own, with the certificate of this node, that says this of its driver.
    async fn liar(&self, node: &str, said: Said) -> anyhow::Result<Link> {
        let pki = self.stand.pki();
        if self.stand.credentials(node, Role::Node).is_err() {
            self.stand.run("csi-cloud", &["ca", "issue", node, "--dir", &pki]).await?;
        }
        let credentials = self.stand.credentials(node, Role::Node)?;
        let url = self.cloud.urls.first().context("no listener")?;
        let endpoint = url.parse()?;
        let tcp = ws::tcp();
        let dialed = link::dial(&endpoint, &credentials, KeepAlive::default(), &tcp);
        let mut link = dialed.await?;
        let mut hello = hello(node)?;
        hello.drivers.push(said.driver()?);
        link.send(&Message::Hello(hello)).await?;
        ensure!(matches!(link.next().await, Event::Message(Message::Welcome(_))), "no welcome");
        Ok(link)
    }

    /// What the front says of its driver, byte for byte.
    async fn says(&self) -> anyhow::Result<Vec<(Code, Vec<u8>)>> {
        let mut said = Vec::new();
        for path in [
            "/csi.v1.Identity/GetPluginInfo",
            "/csi.v1.Identity/GetPluginCapabilities",
            "/csi.v1.Controller/ControllerGetCapabilities",
            "/csi.v1.GroupController/GroupControllerGetCapabilities",
        ] {
            let answer = self.front.call(path, &[]).await?;
            said.push((answer.code(), answer.message().unwrap_or_default().to_vec()));
        }
        Ok(said)
    }

    /// The ids of all volumes as they are listed.
    pub(super) async fn listed(&self) -> anyhow::Result<Vec<String>> {
        let answer = self.front.call(&controller("ListVolumes"), &[]).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        let listed = csi::ListVolumesResponse::decode(answer.message().unwrap_or_default())?;
        let volumes = listed.entries.into_iter().filter_map(|entry| entry.volume);
        Ok(volumes.map(|volume| volume.volume_id).collect())
    }

    /// The same without the volume on a page of a list that never ends. Pages are recorded as they
    /// come, and a node's word counts for that node.
    async fn listed_of_others(&self) -> anyhow::Result<Vec<String>> {
        let mut listed = self.listed().await?;
        listed.retain(|id| id != CLAIMED);
        Ok(listed)
    }

    /// The ids of all volumes that the drivers have.
    pub(super) fn there(&self) -> Vec<String> {
        let volumes = self.nodes.iter().flat_map(|node| node.driver.volumes());
        let mut ids: Vec<_> = volumes.map(|volume| volume.volume_id).collect();
        ids.sort();
        ids
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        for node in self.nodes {
            node.edge.stop(STOP).await?;
        }
        self.cloud.process.stop(STOP).await
    }

    async fn ready(&self) -> anyhow::Result<()> {
        until("the cloud learns of the driver", || ready(&self.front)).await
    }
}

/// What a liar says of its driver; it has no capability.
struct Said {
    name: &'static str,
    segments: Vec<(&'static str, &'static str)>,
}

impl Said {
    fn driver(self) -> anyhow::Result<Driver> {
        let info = csi::GetPluginInfoResponse {
            name: self.name.into(),
            vendor_version: "liar".into(),
            ..Default::default()
        };
        let segments = self.segments.into_iter();
        let segments = segments.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let at = csi::NodeGetInfoResponse {
            node_id: "liar".into(),
            accessible_topology: Some(csi::Topology { segments }),
            ..Default::default()
        };
        let answers = [
            ("GetPluginInfo", info.encode_to_vec()),
            ("GetPluginCapabilities", Vec::new()),
            ("ControllerGetCapabilities", Vec::new()),
            ("NodeGetInfo", at.encode_to_vec()),
        ];
        let answers = answers.map(|(method, answer)| (method.into(), Protobuf(answer.into())));
        Ok(Driver { name: DRIVER.parse()?, answers: answers.into(), health: None })
    }
}

#[tokio::test]
async fn a_node_without_the_operators_word_gets_no_call_and_leaves_no_trace() -> anyhow::Result<()>
{
    for transport in TRANSPORTS {
        let mut fleet = Fleet::new(transport, "scope = \"node\"\nnodes = [\"n?\"]\n").await?;
        let invented = ["invented-1.example", "invented-2.example"];
        fleet.join(TestDriver::new(DRIVER, "thief"), "thief", &invented).await?;
        fleet.join(TestDriver::new(DRIVER, "n1"), "n1", &[]).await?;
        fleet.ready().await?;
        fleet.is_set_apart("thief", "not_allowed").await?;
        let thief = fleet.nodes[0].driver.clone();
        thief.forget_calls();
        for number in 0..6 {
            let answer = fleet
                .front
                .call(&controller("CreateVolume"), &create(&format!("pvc-{number}")))
                .await?;
            created(&answer)?;
        }
        let delete = csi::DeleteVolumeRequest { volume_id: "unknown".into(), ..Default::default() };
        fleet.front.call(&controller("DeleteVolume"), &delete.encode_to_vec()).await?;
        let calls = thief.calls();
        // Its own edge asks for the name.
        let mut methods = calls.iter().map(|call| call.method());
        assert_eq!(methods.find(|method| *method != "GetPluginInfo"), None);
        assert_eq!(fleet.nodes[1].driver.volumes().len(), 6);
        let names = |drivers: &Value| -> Vec<String> {
            let all = drivers.as_array().into_iter().flatten();
            all.filter_map(|driver| Some(driver["name"].as_str()?.to_owned())).collect()
        };
        let shown = names(&fleet.show("drivers").await?);
        assert_eq!(shown, ["invented-1.example", "invented-2.example", DRIVER]);
        // What was invented is shown while it is said, and is not in the store.
        fleet.nodes.remove(0).edge.stop(STOP).await?;
        let fleet = fleet.restart().await?;
        assert_eq!(names(&fleet.show("drivers").await?), [DRIVER]);
        for node in fleet.nodes {
            node.edge.stop(STOP).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_shared_drivers_calls_go_to_controllers_only() -> anyhow::Result<()> {
    let section = "scope = \"shared\"\ncontrollers = [\"n1\", \"n2\"]\nfailover_s = 1\n";
    let mut fleet = Fleet::new(TRANSPORTS[0], section).await?;
    let first = TestDriver::new(DRIVER, "a0");
    // By its name, the thief would be elected first.
    fleet.join(first.beside("a0"), "a0", &[]).await?;
    fleet.join(first.beside("n1"), "n1", &[]).await?;
    fleet.ready().await?;
    let call = async |fleet: &Fleet, name: &str| {
        fleet.front.call(&controller("CreateVolume"), &create(name)).await
    };
    created(&call(&fleet, "pvc-1").await?)?;
    // The elected node is away for longer than the grace, and no other controller is there.
    fleet.nodes.remove(1).edge.stop(STOP).await?;
    let thief = fleet.nodes[0].driver.clone();
    thief.forget_calls();
    until("the elected node counts as away", || async {
        let answer = call(&fleet, "pvc-2").await?;
        ensure!(answer.code() == Code::Unavailable, "{}", answer.status());
        let nodes = fleet.show("nodes").await?;
        let away =
            nodes.as_array().into_iter().flatten().filter_map(|node| node["away_s"].as_u64());
        ensure!(away.max() >= Some(2), "{nodes}");
        Ok(())
    })
    .await?;
    assert_eq!(call(&fleet, "pvc-2").await?.code(), Code::Unavailable);
    assert!(thief.calls_of("CreateVolume").is_empty());
    fleet.join(first.beside("n2"), "n2", &[]).await?;
    until("the other controller is elected", || async {
        created(&call(&fleet, "pvc-2").await?).map(drop)
    })
    .await?;
    assert!(thief.calls_of("CreateVolume").is_empty());
    fleet.stop().await
}

#[tokio::test]
async fn what_one_node_says_changes_nothing_that_the_front_says() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut fleet = Fleet::new(transport, "scope = \"node\"\n").await?;
        for node in ["n1", "n2"] {
            fleet.join(TestDriver::new(DRIVER, node), node, &[]).await?;
        }
        fleet.ready().await?;
        let before = fleet.says().await?;
        let other = Said { name: "other.example", segments: Vec::new() };
        let link = fleet.liar("a0", other).await?;
        fleet.is_set_apart("a0", "other_name").await?;
        assert_eq!(fleet.says().await?, before);
        drop(link);
        let less = Said { name: DRIVER, segments: Vec::new() };
        let link = fleet.liar("a0", less).await?;
        fleet.is_set_apart("a0", "less_than_profile").await?;
        assert_eq!(fleet.says().await?, before);
        drop(link);
        let fleet = fleet.restart().await?;
        assert_eq!(fleet.says().await?, before, "after a restart");
        fleet.is_set_apart("a0", "less_than_profile").await?;
        // Only an operator changes it.
        let admin = fleet.stand.at("cloud/_admin.sock");
        let change = ["driver", "profile", DRIVER, "--from", "a0", "--admin", &admin];
        let text = fleet.stand.run("csi-cloud", &change).await?;
        assert!(text.contains("-CREATE_DELETE_VOLUME"), "{text}");
        assert!(text.contains("external-provisioner"), "{text}");
        assert!(fleet.set_apart("a0").await?.is_empty());
        assert_ne!(fleet.says().await?, before);
        let back = ["driver", "profile", DRIVER, "--from", "n1", "--admin", &admin];
        fleet.stand.run("csi-cloud", &back).await?;
        assert_eq!(fleet.says().await?, before);
        fleet.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_node_that_claims_anothers_place_gets_nothing() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let section = format!("scope = \"node\"\ntopology = {{ \"{TOPOLOGY_KEY}\" = \"node\" }}\n");
        let mut fleet = Fleet::new(transport, &section).await?;
        // The claimant comes first, and by its name it is the first of all.
        let segments = vec![(TOPOLOGY_KEY, "n1"), (NODE_SEGMENT, "n1")];
        let _link = fleet.liar("a0", Said { name: DRIVER, segments }).await?;
        for node in ["n1", "n2"] {
            fleet.join(TestDriver::new(DRIVER, node), node, &[]).await?;
        }
        fleet.ready().await?;
        until("the claimant is set apart", || async {
            let reasons = fleet.set_apart("a0").await?;
            ensure!(reasons.iter().any(|reason| reason == "others_segment"), "{reasons:?}");
            Ok(())
        })
        .await?;
        for (number, key) in [TOPOLOGY_KEY, NODE_SEGMENT].into_iter().cycle().take(10).enumerate() {
            let segments = [(key.to_owned(), "n1".to_owned())].into();
            let request = csi::CreateVolumeRequest {
                accessibility_requirements: Some(csi::TopologyRequirement {
                    requisite: vec![csi::Topology { segments }],
                    ..Default::default()
                }),
                ..csi::CreateVolumeRequest::decode(&*create(&format!("pvc-{number}")))?
            };
            let answer =
                fleet.front.call(&controller("CreateVolume"), &request.encode_to_vec()).await?;
            created(&answer)?;
        }
        assert_eq!(fleet.nodes[0].driver.volumes().len(), 10);
        fleet.stop().await?;
    }
    Ok(())
}

/// The volume on each page of a list that never ends.
const CLAIMED: &str = "x";

/// Answers to ListVolumes of one node that are no use.
fn no_use() -> [Fault; 3] {
    let entry = csi::list_volumes_response::Entry {
        volume: Some(csi::Volume { volume_id: CLAIMED.into(), ..Default::default() }),
        status: None,
    };
    let endless = csi::ListVolumesResponse { entries: vec![entry], next_token: "again".into() };
    [
        Fault::error(Code::Unimplemented, "no lists"),
        Fault::raw(b"\xff\xff\xff".to_vec()),
        Fault::raw(endless.encode_to_vec()),
    ]
}

#[tokio::test]
async fn one_node_decides_no_list_and_no_capacity_for_all() -> anyhow::Result<()> {
    for fault in no_use() {
        let fleet = Fleet::with_volumes().await?;
        fleet.nodes[0].driver.inject("ListVolumes", fault.clone(), Times::All);
        assert_eq!(fleet.listed_of_others().await?, fleet.there());
        fleet.is_set_apart("n1", "bad_answer").await?;
        assert_eq!(fleet.listed_of_others().await?, fleet.there());
        fleet.nodes[0].driver.clear_faults();
        until("it answers as it should", || async {
            let listed = fleet.listed().await?;
            ensure!(listed == fleet.there(), "{listed:?}");
            ensure!(fleet.set_apart("n1").await?.is_empty(), "it is set apart");
            Ok(())
        })
        .await?;
        fleet.nodes[1].driver.inject("GetCapacity", fault, Times::All);
        for _ in 0..2 {
            let answer = fleet.front.call(&controller("GetCapacity"), &[]).await?;
            assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        }
        fleet.stop().await?;
    }
    Ok(())
}
