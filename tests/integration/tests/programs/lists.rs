//! Lists and capacity over several nodes: whole, in stable pages, and never held up by one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use drivers::testdriver::{Fault, Running, TestDriver, Times};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{controller, create, created, delete};
use harness::stand::{Cloud, Stand};
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, ready};
use prost::Message;
use proto::csi;
use tokio::time::Instant;
use tonic::Code;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Volumes that each node has at first, of 1 MiB each.
const EACH: usize = 5;
/// The free capacity of a node, by its driver.
const MIB: i64 = 1 << 20;
/// A page that waits for no slow node longer than a second, with time to spare.
const SOON: Duration = Duration::from_millis(2500);

/// A cloud with a grace of a second, and three nodes, of which the last is on QUIC.
struct Nodes {
    stand: Stand,
    cloud: Cloud,
    nodes: Vec<Option<(TestDriver, Running, Process)>>,
    front: RawClient,
    config: String,
}

impl Nodes {
    /// Nodes whose drivers have this fault for this method from the beginning.
    async fn with(faults: &[(usize, &str, Fault)]) -> anyhow::Result<Self> {
        let mut stand = Stand::new().await?;
        let config = stand.at("cloud.toml");
        let text = format!("[driver.\"{DRIVER}\"]\nscope = \"node\"\nfailover_s = 1\n");
        proto::host::publish::publish(
            config.as_ref(),
            text.as_bytes(),
            0o600,
            proto::host::publish::Existing::Keep,
        )?;
        let cloud = stand.cloud(&TRANSPORTS, &[DRIVER], &["--config", &config]).await?;
        let mut nodes = Vec::new();
        for (at, node) in NODES.iter().enumerate() {
            let driver = TestDriver::new(DRIVER, *node);
            let socket = stand.at(&format!("{node}.sock"));
            for (_, method, fault) in faults.iter().filter(|(of, ..)| *of == at) {
                driver.inject(method, fault.clone(), Times::All);
            }
            let serving = driver.serve(Path::new(&socket))?;
            driver.count_from(at as u64 * 1000);
            driver.fill(EACH, 10);
            let url = cloud.urls[usize::from(at == 2)].clone();
            nodes.push(Some((
                driver,
                serving,
                stand.edge(node, &url, &[(DRIVER, &socket)]).await?,
            )));
        }
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        until("the cloud learns of the driver", || ready(&front)).await?;
        let nodes = Self { stand, cloud, nodes, front, config };
        nodes.all_known().await?;
        Ok(nodes)
    }

    /// Nodes without faults that were all listed. On a busy machine the first list takes longer
    /// than csi-cloud waits for one.
    async fn whole() -> anyhow::Result<Self> {
        let nodes = Self::with(&[]).await?;
        until("the list of all nodes", || nodes.listed()).await?;
        Ok(nodes)
    }

    /// Waits until the topology of each node is known.
    async fn all_known(&self) -> anyhow::Result<()> {
        for node in NODES {
            let key = drivers::testdriver::TOPOLOGY_KEY.to_owned();
            let segments = [(key, node.to_owned())].into();
            let accessible_topology = Some(csi::Topology { segments });
            let request = csi::GetCapacityRequest { accessible_topology, ..Default::default() };
            until("the cloud knows all nodes", || async {
                let answer = self.call("GetCapacity", &request).await?;
                ensure!(answer.code() != Code::Unavailable, "{}", answer.status());
                let message = answer.message().unwrap_or_default();
                let said = csi::GetCapacityResponse::decode(message)?;
                ensure!(
                    answer.code() != Code::Ok || said.available_capacity > 0,
                    "it is not linked"
                );
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    #[expect(
        clippy::unwrap_used,
        reason = "a helper of tests, for a node that they have not stopped"
    )]
    fn driver(&self, at: usize) -> &TestDriver {
        &self.nodes[at].as_ref().unwrap().0
    }

    async fn call(&self, method: &str, request: &impl Message) -> anyhow::Result<RawAnswer> {
        self.front.call(&controller(method), &request.encode_to_vec()).await
    }

    async fn page(
        &self,
        max_entries: i32,
        token: &str,
    ) -> anyhow::Result<csi::ListVolumesResponse> {
        let request = csi::ListVolumesRequest { max_entries, starting_token: token.into() };
        let answer = self.call("ListVolumes", &request).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(csi::ListVolumesResponse::decode(answer.message().context("no list")?)?)
    }

    /// The ids of all volumes as they are listed.
    async fn listed(&self) -> anyhow::Result<BTreeSet<String>> {
        Ok(ids(&self.page(0, "").await?).into_iter().collect())
    }

    /// The ids of all volumes that the drivers have.
    fn there(&self) -> BTreeSet<String> {
        let drivers = self.nodes.iter().flatten().map(|(driver, ..)| driver.volumes());
        drivers.flatten().map(|volume| volume.volume_id).collect()
    }

    /// Ends a node's edge and its driver.
    async fn end(&mut self, at: usize) -> anyhow::Result<TestDriver> {
        let (driver, serving, edge) = self.nodes[at].take().context("it has ended")?;
        edge.stop(START).await?;
        serving.stop().await;
        Ok(driver)
    }

    /// Kills csi-cloud and starts it again where the edges dial it.
    async fn restart(self) -> anyhow::Result<Self> {
        let Self { stand, cloud, nodes, config, .. } = self;
        cloud.process.kill().await?;
        let urls: Vec<_> = cloud.urls.iter().map(String::as_str).collect();
        let cloud = stand.cloud(&urls, &[DRIVER], &["--config", &config]).await?;
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        Ok(Self { stand, cloud, nodes, front, config })
    }

    async fn stop(self) -> anyhow::Result<()> {
        for (_, serving, edge) in self.nodes.into_iter().flatten() {
            edge.stop(START).await?;
            serving.stop().await;
        }
        self.cloud.process.stop(START).await
    }
}

fn ids(list: &csi::ListVolumesResponse) -> Vec<String> {
    list.entries
        .iter()
        .flat_map(|entry| &entry.volume)
        .map(|volume| volume.volume_id.clone())
        .collect()
}

/// Raw entries, by the id in them.
fn raw(answer: &Bytes) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut raw = BTreeMap::new();
    for field in csi::wire::fields(answer) {
        let field = field?;
        if let (1, Some(entry)) = (field.number, field.content) {
            let volume =
                csi::list_volumes_response::Entry::decode(entry)?.volume.context("no volume")?;
            raw.insert(volume.volume_id, entry.to_vec());
        }
    }
    Ok(raw)
}

#[tokio::test]
async fn a_list_is_of_all_nodes_and_each_entry_is_its_drivers() -> anyhow::Result<()> {
    let nodes = Nodes::whole().await?;
    let answer = nodes.call("ListVolumes", &csi::ListVolumesRequest::default()).await?;
    let merged = raw(&answer.message().context("no list")?)?;
    let mut direct = BTreeMap::new();
    for node in NODES {
        let client = RawClient::connect(&nodes.stand.at(&format!("{node}.sock"))).await?;
        let answer = client.call(&controller("ListVolumes"), &[]).await?;
        direct.extend(raw(&answer.message().context("no list")?)?);
    }
    assert_eq!(direct.len(), NODES.len() * EACH);
    assert!(merged == direct, "{:?} is not {:?}", merged.keys(), direct.keys());
    nodes.stop().await
}

/// Between two pages volumes are made and deleted, also directly at the driver, and csi-cloud is
/// killed.
#[tokio::test]
async fn pages_are_stable_whatever_happens_between_them() -> anyhow::Result<()> {
    let mut nodes = Nodes::whole().await?;
    let at_first = nodes.there();
    let mut seen = Vec::new();
    let mut token = String::new();
    let mut deleted = BTreeSet::new();
    for step in 0.. {
        let page = nodes.page(4, &token).await?;
        ensure!(page.entries.len() <= 4 && step < 20, "the list does not end");
        seen.extend(ids(&page));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
        let next = at_first.iter().find(|id| !seen.contains(id)).cloned();
        match step {
            0 => {
                created(&nodes.front.call(&controller("CreateVolume"), &create("between")).await?)?;
                let id = next.context("none is left")?;
                let gone = nodes.front.call(&controller("DeleteVolume"), &delete(&id)).await?;
                assert_eq!(gone.code(), Code::Ok, "{}", gone.status());
                deleted.insert(id);
            }
            1 => {
                nodes.driver(1).fill(3, 10);
                nodes.listed().await?;
            }
            2 => nodes = nodes.restart().await?,
            _ => {}
        }
    }
    let once: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "doubled: {seen:?}");
    let stayed: BTreeSet<_> = at_first.difference(&deleted).cloned().collect();
    assert!(stayed.is_subset(&once), "lost: {:?}", stayed.difference(&once));
    assert!(once.is_disjoint(&deleted));
    for token in ["invalid-token", "1", "ZWRnZS1jc2kBc2E"] {
        let request =
            csi::ListVolumesRequest { starting_token: token.into(), ..Default::default() };
        let status = nodes.call("ListVolumes", &request).await?.status();
        assert_eq!(status.code(), Code::Aborted, "{token}: {status}");
    }
    let request = csi::ListVolumesRequest { max_entries: -1, ..Default::default() };
    let status = nodes.call("ListVolumes", &request).await?.status();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    nodes.stop().await
}

/// The cloud lists a new node by itself, so no caller need have listed it.
#[tokio::test]
async fn a_node_that_is_away_is_listed_with_what_was_known_of_it() -> anyhow::Result<()> {
    let mut nodes = Nodes::whole().await?;
    for at in 0..NODES.len() {
        nodes.driver(at).wait_for("ListVolumes", 1).await?;
    }
    let volume_id = nodes.driver(2).volumes()[0].volume_id.clone();
    until("its home is learned", || async {
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: volume_id.clone(),
            node_id: "n3".into(),
            volume_capability: Some(csi::VolumeCapability::default()),
            ..Default::default()
        };
        let answer = nodes.call("ControllerPublishVolume", &publish).await?;
        ensure!(answer.code() == Code::Ok, "{}", answer.status());
        Ok(())
    })
    .await?;
    let all = nodes.there();
    assert_eq!(nodes.listed().await?, all);
    let driver = nodes.end(2).await?;
    // Nobody sees this now.
    driver.fill(1, 10);
    for restart in [false, true] {
        if restart {
            nodes = nodes.restart().await?;
        }
        let list = until("the list is whole", || nodes.page(0, "")).await?;
        assert_eq!(
            ids(&list).into_iter().collect::<BTreeSet<_>>(),
            all,
            "after a restart: {restart}"
        );
        let attached = list.entries.iter().find(|entry| {
            entry.volume.as_ref().is_some_and(|volume| volume.volume_id == volume_id)
        });
        let status = attached.and_then(|entry| entry.status.clone()).unwrap_or_default();
        assert_eq!(status.published_node_ids, ["n3"]);
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_node_that_was_never_listed_makes_the_list_unavailable() -> anyhow::Result<()> {
    let broken = Fault::error(Code::Internal, "the pool is gone");
    let mut nodes = Nodes::with(&[(1, "ListVolumes", broken)]).await?;
    let list = csi::ListVolumesRequest::default();
    let status = nodes.call("ListVolumes", &list).await?.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().contains("n2") && status.message().contains("the pool is gone"),
        "{status}"
    );
    assert!(!status.message().contains("n1"), "{status}");
    nodes.driver(1).clear_faults();
    assert_eq!(nodes.listed().await?, nodes.there());
    // Listed once, its failure is no longer the caller's.
    let all = nodes.there();
    nodes.driver(1).inject("ListVolumes", Fault::error(Code::Internal, "again"), Times::All);
    assert_eq!(nodes.listed().await?, all);
    nodes.end(1).await?;
    assert_eq!(nodes.listed().await?, all);
    nodes.stop().await
}

#[tokio::test]
async fn a_driver_without_lists_is_unimplemented() -> anyhow::Result<()> {
    let lacks = |at| (at, "ListVolumes", Fault::error(Code::Unimplemented, "no lists"));
    let nodes = Nodes::with(&[lacks(0), lacks(1), lacks(2)]).await?;
    let status = nodes.call("ListVolumes", &csi::ListVolumesRequest::default()).await?.status();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    nodes.stop().await
}

/// Nobody takes an empty answer for all that there is.
#[tokio::test]
async fn a_rebuild_says_which_drivers_cannot_list() -> anyhow::Result<()> {
    let bare = csi::ControllerGetCapabilitiesResponse::default().encode_to_vec();
    let bare = |at| (at, "ControllerGetCapabilities", Fault::raw(bare.clone()));
    let nodes = Nodes::with(&[bare(0), bare(1), bare(2)]).await?;
    let admin = nodes.stand.at("cloud/_admin.sock");
    let rebuild = ["homes", "rebuild", "--driver", DRIVER, "--admin", &admin];
    until("the rebuild says it", || async {
        let said = nodes.stand.run("csi-cloud", &rebuild).await?;
        ensure!(said.contains("0 nodes have") && said.contains("3 did not say"), "{said}");
        ensure!(said.contains("cannot list volumes") && said.contains("--from"), "{said}");
        Ok(())
    })
    .await?;
    nodes.stop().await
}

#[tokio::test]
async fn a_node_that_hangs_holds_up_no_list_and_is_learned_later() -> anyhow::Result<()> {
    let nodes = Nodes::whole().await?;
    let known = nodes.listed().await?;
    nodes.driver(0).inject("ListVolumes", Fault::Hang, Times::Next(1));
    nodes.driver(0).fill(1, 10);
    nodes.driver(1).fill(1, 10);
    let begun = Instant::now();
    let listed = nodes.listed().await?;
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    let news: Vec<_> = listed.difference(&known).collect();
    assert_eq!(news.len(), 1, "of the quick node: {news:?}");
    assert!(known.is_subset(&listed));
    nodes.driver(0).release();
    until("the slow node's list is learned", || async {
        let page = nodes.page(0, "").await?;
        ensure!(page.entries.len() == nodes.there().len(), "{} entries", page.entries.len());
        Ok(())
    })
    .await?;
    assert_eq!(nodes.listed().await?, nodes.there());
    nodes.stop().await
}

#[tokio::test]
async fn snapshots_and_health_are_of_all_nodes_in_pages() -> anyhow::Result<()> {
    let nodes = Nodes::whole().await?;
    let mut cut = BTreeSet::new();
    for (at, node) in NODES.iter().enumerate() {
        let source_volume_id = nodes.driver(at).volumes()[0].volume_id.clone();
        // It was made past csi-cloud, so its node alone says that it is there.
        let admin = nodes.stand.at("cloud/_admin.sock");
        let adopt = ["volume", "adopt", DRIVER, &source_volume_id, "--node", node];
        nodes.stand.run("csi-cloud", &[&adopt[..], &["--admin", &admin]].concat()).await?;
        let request = csi::CreateSnapshotRequest {
            source_volume_id,
            name: format!("s{at}"),
            ..Default::default()
        };
        let answer = nodes.call("CreateSnapshot", &request).await?;
        let made = csi::CreateSnapshotResponse::decode(answer.message().context("no snapshot")?)?;
        cut.insert(made.snapshot.context("no snapshot")?.snapshot_id);
    }
    let mut seen = Vec::new();
    let mut starting_token = String::new();
    loop {
        let request =
            csi::ListSnapshotsRequest { max_entries: 1, starting_token, ..Default::default() };
        let answer = nodes.call("ListSnapshots", &request).await?;
        let page = csi::ListSnapshotsResponse::decode(answer.message().context("no list")?)?;
        assert!(page.entries.len() <= 1);
        seen.extend(
            page.entries.into_iter().filter_map(|entry| entry.snapshot).map(|s| s.snapshot_id),
        );
        starting_token = page.next_token;
        if starting_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, cut.into_iter().collect::<Vec<_>>());
    for most in [0, 2] {
        let mut seen = Vec::new();
        let mut starting_token = String::new();
        loop {
            let request = csi::ControllerListVolumeHealthRequest {
                max_entries: most,
                starting_token,
                ..Default::default()
            };
            let answer = nodes.call("ControllerListVolumeHealth", &request).await?;
            let page = csi::ControllerListVolumeHealthResponse::decode(
                answer.message().context("no list")?,
            )?;
            assert!(most == 0 || page.entries.len() <= 2);
            seen.extend(page.entries.into_iter().map(|health| health.volume_id));
            starting_token = page.next_token;
            if starting_token.is_empty() {
                break;
            }
        }
        assert_eq!(seen.len(), NODES.len() * EACH, "{most} at a time: {seen:?}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), nodes.there());
    }
    nodes.stop().await
}

#[tokio::test]
async fn a_node_says_nothing_of_the_health_of_anothers_volumes() -> anyhow::Result<()> {
    let nodes = Nodes::whole().await?;
    // So that each has its home.
    assert_eq!(nodes.listed().await?, nodes.there());
    let health = |id: &str| csi::VolumeHealth { volume_id: id.into(), ..Default::default() };
    let others = nodes.driver(1).volumes()[0].volume_id.clone();
    let own = nodes.driver(0).volumes()[0].volume_id.clone();
    let entries = vec![health(&others), health(&own), health("invented")];
    let says = csi::ControllerListVolumeHealthResponse { entries, ..Default::default() };
    let fault = Fault::Raw {
        message: says.encode_to_vec().into(),
        headers: Default::default(),
        trailers: Default::default(),
    };
    nodes.driver(0).inject("ControllerListVolumeHealth", fault, Times::All);
    let none = csi::ControllerListVolumeHealthResponse::default().encode_to_vec();
    let silent = Fault::Raw {
        message: none.into(),
        headers: Default::default(),
        trailers: Default::default(),
    };
    nodes.driver(1).inject("ControllerListVolumeHealth", silent, Times::All);
    let request = csi::ControllerListVolumeHealthRequest::default();
    let answer = nodes.call("ControllerListVolumeHealth", &request).await?;
    let page =
        csi::ControllerListVolumeHealthResponse::decode(answer.message().context("no list")?)?;
    let seen: Vec<_> = page.entries.iter().map(|health| health.volume_id.as_str()).collect();
    assert!(seen.contains(&own.as_str()) && !seen.contains(&others.as_str()), "{seen:?}");
    nodes.stop().await
}

async fn capacity(nodes: &Nodes) -> anyhow::Result<i64> {
    let answer = nodes.call("GetCapacity", &csi::GetCapacityRequest::default()).await?;
    ensure!(answer.code() == Code::Ok, "{}", answer.status());
    Ok(csi::GetCapacityResponse::decode(answer.message().context("no capacity")?)?
        .available_capacity)
}

#[tokio::test]
async fn capacity_is_the_sum_and_one_slow_node_holds_nobody_up() -> anyhow::Result<()> {
    let mut nodes = Nodes::with(&[]).await?;
    let all = capacity(&nodes).await?;
    let one = all / 3;
    assert_eq!((all % 3, (one + EACH as i64 * MIB) % MIB), (0, 0), "{all}");
    nodes.driver(0).inject("GetCapacity", Fault::Hang, Times::All);
    let begun = Instant::now();
    assert_eq!(capacity(&nodes).await?, all, "a slow node counts with what it said last");
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    nodes.driver(0).clear_faults();
    nodes.driver(0).release();
    nodes.end(1).await?;
    let begun = Instant::now();
    until("it is away for longer than the grace", || async {
        let left = capacity(&nodes).await?;
        ensure!(left == all - one, "{left}");
        Ok(())
    })
    .await?;
    assert!(begun.elapsed() >= Duration::from_millis(500), "before the grace was over");
    let wrong = Fault::error(Code::InvalidArgument, "no such class");
    for at in [0, 2] {
        nodes.driver(at).inject("GetCapacity", wrong.clone(), Times::Next(1));
    }
    let status = nodes.call("GetCapacity", &csi::GetCapacityRequest::default()).await?.status();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "no such class"));
    nodes.driver(2).inject("GetCapacity", Fault::error(Code::Internal, "just now"), Times::Next(1));
    assert_eq!(capacity(&nodes).await?, all - one, "one that fails counts with what it said last");
    nodes.driver(2).inject(
        "GetCapacity",
        Fault::error(Code::Unimplemented, "none"),
        Times::Next(1),
    );
    assert_eq!(capacity(&nodes).await?, all - one, "one node does not decide for all");
    assert_eq!(capacity(&nodes).await?, all - 2 * one, "it is set apart");
    nodes.stop().await
}
