//! The cost of csi-cloud with very many nodes and volumes: a decision, a start, its memory, and a
//! page of a list.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use cloud::csi::facts::{Nodes, RoutingFacts};
use cloud::csi::route::route;
use cloud::nodes::node_status::NodeStatus;
use cloud::state::known::State;
use cloud::state::policy::{Policy, Scope};
use cloud::state::store::file::File;
use cloud::state::store::writer::Store;
use drivers::grpc::controller_client::ControllerClient;
use parking_lot::Mutex;
use prost::Message;
use proto::csi;
use proto::csi::Method;
use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::figures::Figure;
use super::grown;
use super::grown::{DRIVER, NODE_KEY, Size, ZONE_KEY};
use super::load::percentile;
use super::usage;
use harness::stand::{Stand, channel};
use harness::wait::STOP;

/// The most that a decision may take, p99, in µs.
const DECISION: f64 = 50.0;
/// The most that a start may take, in s.
const START: f64 = 5.0;
/// The most that csi-cloud may have resident, in MiB.
const RESIDENT: f64 = 1024.0;
/// The most that a page may take, in ms.
const PAGE: f64 = 200.0;
/// Entries of a page.
const ENTRIES: i32 = 1000;
/// The number of pages.
const PAGES: usize = 30;
/// Decisions of each kind.
const DECISIONS: usize = 5000;
/// One node in this many has no link.
const AWAY: usize = 10;

/// A kind of calls: what it is called, whether it counts for the target, and requests.
struct Calls {
    what: &'static str,
    counts: bool,
    method: Method,
    requests: Vec<Bytes>,
}

/// Measures with a store of this size, which is made below `dir`: a disk.
///
/// # Errors
/// A program or the store does not work.
pub async fn measure(size: Size, dir: &Path) -> anyhow::Result<Vec<Figure>> {
    let dir = tempfile::tempdir_in(dir)?;
    let path = dir.path().join("size.redb");
    grown::grow(&path, size)?;
    eprintln!("a store of {} MiB is made", std::fs::metadata(&path)?.len() >> 20);
    let mut figures = decisions(&path, size).await?;
    figures.extend(programs(&path, size).await?);
    Ok(figures)
}

async fn decisions(path: &Path, size: Size) -> anyhow::Result<Vec<Figure>> {
    let tasks = Tasks::default();
    let store = Store::open(Box::new(File::open(path)?), &tasks)?;
    let mut figures = Vec::new();
    let driver: DriverName = DRIVER.parse()?;
    // As the front finds a node's link: by name, under a lock.
    let linked = (0..size.nodes).filter(|number| number % AWAY != 0);
    let linked: anyhow::Result<HashMap<_, _>> =
        linked.map(|number| Ok((grown::node(number)?, Arc::new(())))).collect();
    let links = Mutex::new(linked?);
    let mut all = Vec::new();
    let mut random = StdRng::seed_from_u64(1);
    for calls in kinds(size, &mut random)? {
        let mut took = decided(&calls, &store, &driver, &links)?;
        if calls.counts {
            all.extend_from_slice(&took);
        }
        took.sort_unstable();
        for (part, name) in [(0.5, "p50"), (0.99, "p99")] {
            figures.push(Figure::new(
                format!("decide: {}, {name}", calls.what),
                us(&took, part),
                "µs",
            ));
        }
    }
    all.sort_unstable();
    figures.push(
        Figure::new("decide: all of these but those in brackets, p99", us(&all, 0.99), "µs")
            .at_most(DECISION),
    );
    drop(store);
    tasks.finish(STOP).await;
    Ok(figures)
}

/// Nodes that have a link if they are in the map, with drivers that are up.
struct LinkedNodes<'a> {
    links: &'a Mutex<HashMap<NodeName, Arc<()>>>,
    state: &'a State,
}

impl Nodes for LinkedNodes<'_> {
    fn status(&self, node: &NodeName) -> NodeStatus {
        NodeStatus {
            linked: self.links.lock().get(node).cloned().is_some(),
            removed: self.state.is_removed(node),
            ..NodeStatus::default()
        }
    }

    fn awaits(&self) -> bool {
        false
    }

    fn why_uncounted(&self) -> Option<&'static str> {
        None
    }

    fn may_grow(&self) -> bool {
        false
    }
}

/// How long each decision took, in ns.
fn decided(
    calls: &Calls,
    store: &Store,
    driver: &DriverName,
    links: &Mutex<HashMap<NodeName, Arc<()>>>,
) -> anyhow::Result<Vec<u64>> {
    let policy = Policy::new(None);
    let decide = |state: &State, request: &Bytes| {
        let of = state.driver(driver);
        let facts = RoutingFacts {
            driver: of,
            nodes: &LinkedNodes { links, state },
            scope: of.map_or(Scope::Node, |of| of.info().scope()),
            policy: &policy,
            only: None,
            // Only a shared driver's intents end.
            now: 0,
            kubernetes: &BTreeMap::new(),
            request,
            node_id: None,
            exhausted: &[],
        };
        let key = calls.method.key(request);
        key.map(|key| drop(std::hint::black_box(route(calls.method, &key, &facts))))
    };
    let mut took = Vec::with_capacity(calls.requests.len());
    for request in &calls.requests {
        let begun = Instant::now();
        store.read(|state| decide(state, request)).context("a request is none")?;
        took.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(took)
}

fn us(sorted: &[u64], part: f64) -> f64 {
    percentile(sorted, part).map_or(f64::NAN, |ns| ns as f64 / 1000.0)
}

/// The sidecars' calls, at random nodes and volumes.
fn kinds(size: Size, random: &mut StdRng) -> anyhow::Result<Vec<Calls>> {
    let mut kinds = Vec::new();
    let mut kind = |what, method: &str, request: &mut dyn FnMut(usize, usize) -> Bytes| {
        let method = Method::of_name(method).context("no such RPC")?;
        let mut one =
            |_| request(random.random_range(0..size.nodes), random.random_range(0..size.homes));
        let requests = (0..DECISIONS).map(&mut one).collect();
        kinds.push(Calls { what, counts: !what.starts_with('['), method, requests });
        anyhow::Ok(())
    };
    kind("a volume anywhere", "CreateVolume", &mut |_, number| create(number, None, None))?;
    kind("a volume at a node", "CreateVolume", &mut |at, number| {
        create(number, at_node(at), None)
    })?;
    kind("a volume in a zone", "CreateVolume", &mut |at, number| {
        create(number, in_zone(at), None)
    })?;
    kind("a volume of another", "CreateVolume", &mut |_, number| {
        create(number, None, Some(number))
    })?;
    kind("a volume once more", "CreateVolume", &mut |_, number| bytes(&again(number)))?;
    kind("publish", "ControllerPublishVolume", &mut |_, number| bytes(&publish(number)))?;
    kind("delete", "DeleteVolume", &mut |_, number| bytes(&delete(grown::volume_id(number))))?;
    kind("delete what nobody knows", "DeleteVolume", &mut |at, _| {
        bytes(&delete(format!("strange-{at}")))
    })?;
    kind("a snapshot", "CreateSnapshot", &mut |_, number| bytes(&snapshot(number)))?;
    kind("capacity of a node", "GetCapacity", &mut |at, _| bytes(&capacity(at_node(at))))?;
    kind("capacity of a zone", "GetCapacity", &mut |at, _| bytes(&capacity(in_zone(at))))?;
    kind("list", "ListVolumes", &mut |_, _| Bytes::new())?;
    // It is the question about all nodes, and no sidecar asks it where there are topologies.
    kind("[capacity of all nodes]", "GetCapacity", &mut |_, _| Bytes::new())?;
    Ok(kinds)
}

fn bytes(request: &impl Message) -> Bytes {
    request.encode_to_vec().into()
}

fn create(number: usize, topology: Option<csi::Topology>, of: Option<usize>) -> Bytes {
    use csi::volume_content_source::{Type, VolumeSource};
    let here: Vec<_> = topology.into_iter().collect();
    let requirement = csi::TopologyRequirement { requisite: here.clone(), preferred: here };
    let source = of.map(|of| Type::Volume(VolumeSource { volume_id: grown::volume_id(of) }));
    bytes(&csi::CreateVolumeRequest {
        name: format!("new-{}", grown::name(number)),
        volume_capabilities: vec![harness::requests::capability()],
        accessibility_requirements: Some(requirement),
        volume_content_source: source.map(|kind| csi::VolumeContentSource { r#type: Some(kind) }),
        ..Default::default()
    })
}

fn again(number: usize) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { name: grown::name(number), ..Default::default() }
}

fn publish(number: usize) -> csi::ControllerPublishVolumeRequest {
    let volume_id = grown::volume_id(number);
    let node_id = "edge".to_owned();
    csi::ControllerPublishVolumeRequest { volume_id, node_id, ..Default::default() }
}

fn delete(volume_id: String) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id, ..Default::default() }
}

fn snapshot(number: usize) -> csi::CreateSnapshotRequest {
    let source_volume_id = grown::volume_id(number);
    let name = format!("snapshot-{number}");
    csi::CreateSnapshotRequest { source_volume_id, name, ..Default::default() }
}

fn capacity(accessible_topology: Option<csi::Topology>) -> csi::GetCapacityRequest {
    csi::GetCapacityRequest { accessible_topology, ..Default::default() }
}

fn at_node(number: usize) -> Option<csi::Topology> {
    only(number, NODE_KEY)
}

fn in_zone(number: usize) -> Option<csi::Topology> {
    only(number, ZONE_KEY)
}

fn only(number: usize, key: &str) -> Option<csi::Topology> {
    let segments = grown::segments(number).into_iter().filter(|(its, _)| its == key).collect();
    Some(csi::Topology { segments })
}

/// The real csi-cloud with this store, and no edge.
async fn programs(path: &Path, size: Size) -> anyhow::Result<Vec<Figure>> {
    let stand = Stand::new().await?;
    let store = format!("--store=file:{}", std::path::absolute(path)?.display());
    let begun = Instant::now();
    let cloud = stand.cloud(&["wss://127.0.0.1:0"], &[DRIVER], &[&store]).await?.process;
    let started = begun.elapsed();
    let pid = cloud.pid().context("csi-cloud has ended")?;
    let fresh = usage::resident_kib(pid)?;
    let pages = pages(&stand.cloud_front(DRIVER), size).await?;
    let figures = vec![
        Figure::new("csi-cloud, from its start until it is ready", started.as_secs_f64(), "s")
            .at_most(START),
        Figure::new("csi-cloud, resident when ready", mib(fresh), "MiB"),
        Figure::new("csi-cloud, resident after lists", mib(usage::resident_kib(pid)?), "MiB")
            .at_most(RESIDENT),
        Figure::new("csi-cloud, most resident", mib(usage::peak_kib(pid)?), "MiB"),
        Figure::new("the first page of up to 1,000 volumes", ms(pages.first().copied()), "ms")
            .at_most(PAGE),
        Figure::new("the slowest page after it", ms(pages.iter().skip(1).max().copied()), "ms")
            .at_most(PAGE),
    ];
    cloud.stop(STOP).await?;
    Ok(figures)
}

/// How long each page took.
async fn pages(front: &str, size: Size) -> anyhow::Result<Vec<Duration>> {
    let mut client = ControllerClient::new(channel(front).await?);
    let mut took = Vec::new();
    let mut starting_token = String::new();
    for _ in 0..PAGES.min(size.homes / ENTRIES as usize) {
        let begun = Instant::now();
        let request = csi::ListVolumesRequest { max_entries: ENTRIES, starting_token };
        let page = client.list_volumes(request).await?.into_inner();
        took.push(begun.elapsed());
        // A page is bounded in bytes, too, so it may have fewer than were asked for.
        let count = page.entries.len();
        ensure!((1..=ENTRIES as usize).contains(&count), "a page has {count} entries");
        ensure!(!page.next_token.is_empty(), "a list ends after {count} more entries");
        starting_token = page.next_token;
    }
    Ok(took)
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn ms(took: Option<Duration>) -> f64 {
    took.map_or(f64::NAN, |took| took.as_secs_f64() * 1000.0)
}
