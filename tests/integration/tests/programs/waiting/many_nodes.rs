//! Lists and capacities of more nodes than are asked each time. Light edges in this process answer
//! for drivers with a volume each, and count the questions.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use harness::answers::node_local;
use harness::raw::RawClient;
use harness::requests::{capability, controller, created, delete};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, TRANSPORTS, hello};
use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message as _;
use proto::control::hello::{Driver, Hello, Message, Protobuf};
use proto::csi;
use proto::csi::controller_service_capability::rpc::Type as Rpc;
use proto::csi::frame;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::http2::serve;
use proto::link::endpoint::Endpoint;
use proto::link::tls::Role;
use proto::link::{Event, KeepAlive, Link, ws};
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::{Code, Status};

/// Of more than 64 nodes, not all are asked each time.
const NODES: usize = 65;
/// The segment of each node's topology.
const KEY: &str = "topology.test.example/node";
/// What each node has, in bytes.
const CAPACITY: i64 = 1 << 30;
/// Nodes that are asked in their turn at the same time, in ten minutes.
const TURNS: usize = 10;

/// The driver at one node.
struct Node {
    name: String,
    lists: AtomicUsize,
    capacities: AtomicUsize,
    deletes: AtomicUsize,
    /// True once it has a second volume.
    has_more: AtomicBool,
    /// Ends its link, so that it dials again.
    again: Notify,
}

impl Node {
    fn new(number: usize) -> Self {
        Self {
            name: format!("many-{number:02}"),
            lists: AtomicUsize::default(),
            capacities: AtomicUsize::default(),
            deletes: AtomicUsize::default(),
            has_more: AtomicBool::default(),
            again: Notify::new(),
        }
    }

    fn topology(&self) -> csi::Topology {
        csi::Topology { segments: [(KEY.to_owned(), self.name.clone())].into() }
    }

    fn volume(&self, kind: &str) -> csi::Volume {
        csi::Volume {
            volume_id: format!("{kind}-{}", self.name),
            accessible_topology: vec![self.topology()],
            ..Default::default()
        }
    }

    fn driver(&self) -> anyhow::Result<Driver> {
        let info = csi::GetPluginInfoResponse { name: DRIVER.into(), ..Default::default() };
        let [plugin, rpcs] =
            node_local(&[Rpc::CreateDeleteVolume, Rpc::ListVolumes, Rpc::GetCapacity]);
        let node = csi::NodeGetInfoResponse {
            node_id: self.name.clone(),
            accessible_topology: Some(self.topology()),
            ..Default::default()
        };
        let answers = [
            ("GetPluginInfo", info.encode_to_vec()),
            plugin,
            rpcs,
            ("NodeGetCapabilities", csi::NodeGetCapabilitiesResponse::default().encode_to_vec()),
            ("NodeGetInfo", node.encode_to_vec()),
        ];
        let answers = answers.map(|(method, bytes)| (method.to_owned(), Protobuf(bytes.into())));
        Ok(Driver { name: DRIVER.parse()?, answers: answers.into(), health: None })
    }

    fn answer(&self, method: &str) -> Result<Vec<u8>, Status> {
        Ok(match method {
            "ListVolumes" => {
                self.lists.fetch_add(1, Ordering::SeqCst);
                let more = self.has_more.load(Ordering::SeqCst).then(|| self.volume("more"));
                let volumes = [self.volume("first")].into_iter().chain(more);
                let entry = |volume| csi::list_volumes_response::Entry {
                    volume: Some(volume),
                    ..Default::default()
                };
                let entries = volumes.map(entry).collect();
                csi::ListVolumesResponse { entries, ..Default::default() }.encode_to_vec()
            }
            "GetCapacity" => {
                self.capacities.fetch_add(1, Ordering::SeqCst);
                let available_capacity = CAPACITY;
                csi::GetCapacityResponse { available_capacity, ..Default::default() }
                    .encode_to_vec()
            }
            "CreateVolume" => {
                self.has_more.store(true, Ordering::SeqCst);
                let volume = Some(self.volume("more"));
                csi::CreateVolumeResponse { volume }.encode_to_vec()
            }
            "DeleteVolume" => {
                self.deletes.fetch_add(1, Ordering::SeqCst);
                Vec::new()
            }
            _ => return Err(Status::not_found("there is no such volume")),
        })
    }

    async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        drop(frame::collect(request.into_body()).await);
        Ok(match self.answer(&method) {
            Ok(answer) => Answer::of(frame::frame(&answer)).response(),
            Err(status) => status.into_http(),
        })
    }

    async fn dial(&self, stand: &Stand, url: &Endpoint) -> anyhow::Result<Link> {
        let credentials = stand.credentials(&self.name, Role::Node)?;
        let mut link =
            proto::link::dial(url, &credentials, KeepAlive::default(), &ws::tcp()).await?;
        let hello = Hello { drivers: vec![self.driver()?], ..hello(&self.name)? };
        link.send(&Message::Hello(hello)).await?;
        let welcome = timeout(START, link.next()).await?;
        ensure!(matches!(welcome, Event::Message(Message::Welcome(_))), "no welcome");
        Ok(link)
    }
}

/// Keeps a node's link, and dials again when that is wanted.
async fn link(
    node: Arc<Node>,
    (stand, url): (Arc<Stand>, Endpoint),
    tasks: Tasks,
) -> anyhow::Result<()> {
    loop {
        let mut link = node.dial(&stand, &url).await?;
        loop {
            let event = tokio::select! {
                event = link.next() => event,
                () = node.again.notified() => break,
            };
            match event {
                Event::Opened(_, io) => {
                    let node = node.clone();
                    let answer = move |request| node.clone().serve(request);
                    tasks.spawn_until_stop("calls", async move {
                        drop(serve::serve(io, answer, std::future::pending()).await);
                    });
                }
                Event::Message(_) => {}
                Event::Closed(error) => {
                    eprintln!("the link of {} ended: {error}", node.name);
                    return Err(error.into());
                }
            }
        }
        link.close("it dials again").await;
    }
}

/// So many answers of this kind in all.
fn sum(nodes: &[Arc<Node>], of: impl Fn(&Node) -> &AtomicUsize) -> usize {
    nodes.iter().map(|node| of(node).load(Ordering::SeqCst)).sum()
}

/// The ids of a whole list.
async fn list(front: &RawClient) -> anyhow::Result<BTreeSet<String>> {
    let answer = front.call(&controller("ListVolumes"), &[]).await?;
    let message = answer.message().with_context(|| answer.status().to_string())?;
    let entries = csi::ListVolumesResponse::decode(message)?.entries;
    Ok(entries.into_iter().filter_map(|entry| entry.volume).map(|of| of.volume_id).collect())
}

async fn capacity(front: &RawClient) -> anyhow::Result<i64> {
    let answer = front.call(&controller("GetCapacity"), &[]).await?;
    let message = answer.message().with_context(|| answer.status().to_string())?;
    Ok(csi::GetCapacityResponse::decode(message)?.available_capacity)
}

/// A volume at this node.
async fn create(front: &RawClient, node: &Node) -> anyhow::Result<csi::Volume> {
    let places = vec![node.topology()];
    let request = csi::CreateVolumeRequest {
        name: "pvc-1".into(),
        volume_capabilities: vec![capability()],
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: places.clone(),
            preferred: places,
        }),
        ..Default::default()
    };
    created(&front.call(&controller("CreateVolume"), &request.encode_to_vec()).await?)
}

#[tokio::test]
async fn of_many_nodes_those_are_asked_that_may_have_changed() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let stand = Arc::new(Stand::new().await?);
        let cloud = stand.cloud(&[transport], &[DRIVER], &[]).await?;
        let url: Endpoint = cloud.urls.first().context("no listener")?.parse()?;
        let nodes: Vec<_> = (0..NODES).map(|number| Arc::new(Node::new(number))).collect();
        let tasks = Tasks::default();
        for node in &nodes {
            let pki = stand.pki();
            stand.run("csi-cloud", &["ca", "issue", &node.name, "--dir", &pki]).await?;
            let linking = link(node.clone(), (stand.clone(), url.clone()), tasks.clone());
            tasks.spawn_until_stop("edge", async move { drop(linking.await) });
        }
        let front = RawClient::connect(&stand.cloud_front(DRIVER)).await?;
        until("each node is in the list", || async {
            let ids = list(&front).await?;
            ensure!(ids.len() == NODES, "{} volumes", ids.len());
            Ok(())
        })
        .await?;
        let before = sum(&nodes, |node| &node.lists);
        ensure!(list(&front).await?.len() == NODES);
        let asked = sum(&nodes, |node| &node.lists) - before;
        ensure!(asked < TURNS, "{asked} nodes were asked for an unchanged list");
        let all = CAPACITY * i64::try_from(NODES)?;
        ensure!(capacity(&front).await? == all && capacity(&front).await? == all);
        let asked = sum(&nodes, |node| &node.capacities);
        ensure!((NODES..NODES + TURNS).contains(&asked), "{asked} answers to two sums");

        let one = &nodes[7];
        let (lists, capacities) = (&one.lists, &one.capacities);
        let counts = || (lists.load(Ordering::SeqCst), capacities.load(Ordering::SeqCst));
        let (lists_before, capacities_before) = counts();
        let volume = create(&front, one).await?;
        ensure!(list(&front).await?.contains(&volume.volume_id));
        ensure!(capacity(&front).await? == all);
        let (lists_now, capacities_now) = counts();
        ensure!(lists_now > lists_before && capacities_now > capacities_before, "it was asked");

        let other = &nodes[8];
        let before = other.lists.load(Ordering::SeqCst);
        other.again.notify_one();
        until("its new link counts", || async {
            list(&front).await?;
            ensure!(other.lists.load(Ordering::SeqCst) > before, "it was not asked again");
            Ok(())
        })
        .await?;

        // The lists say that nobody has it, and are not believed.
        let deleted = front.call(&controller("DeleteVolume"), &delete("nobody-has-it")).await?;
        ensure!(deleted.code() == Code::Ok, "{}", deleted.status());
        let deletes = sum(&nodes, |node| &node.deletes);
        ensure!(deletes == NODES, "{deletes} nodes were told to delete it");
        tasks.finish(Duration::from_secs(5)).await;
    }
    Ok(())
}
