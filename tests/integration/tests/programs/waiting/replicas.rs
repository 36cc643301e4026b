//! Several csi-clouds with one store: an edge hears the one that leads, and no other answers.
//!
//! The csi-clouds are in the test, which says who leads. csi-edge is the program.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cloud::csi::front::Front;
use cloud::lease::answer;
use cloud::nodes::link_task;
use cloud::nodes::links::Links;
use cloud::state::policy::Policy;
use cloud::state::record::Change;
use cloud::state::store::backend::{Backend, StoreError};
use cloud::state::store::leadership::{Leader, Leadership};
use cloud::state::store::memory::Memory;
use cloud::state::store::writer::Store;
use drivers::testdriver::{Fault, Gate, Running, TestDriver, Times};
use harness::hostile_cloud::{self, HostileCloud, caller};
use harness::process::Process;
use harness::raw::{RawAnswer, RawClient};
use harness::requests::{capability, controller, create, created};
use harness::stand::Stand;
use harness::wait::{START, until};
use harness::world::{DRIVER, NODE, TRANSPORTS, ready};
use parking_lot::Mutex;
use prost::Message as _;
use proto::control::hello::{Message, Welcome};
use proto::control::leader::LeaderEpoch;
use proto::csi;
use proto::csi::frame;
use proto::host::socket::Socket;
use proto::host::tasks::Tasks;
use proto::http2::forward::{LEADER_EPOCH, NOT_DISPATCHED};
use proto::link::tls::{Role, server_config};
use proto::link::{Event, KeepAlive, Link, ws};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::Code;

/// A driver at the node, and csi-edge with a state directory.
struct Node {
    stand: Stand,
    driver: TestDriver,
    _serving: Running,
}

impl Node {
    async fn new() -> anyhow::Result<Self> {
        let stand = Stand::new().await?;
        let driver = TestDriver::new(DRIVER, NODE);
        let serving = driver.serve(stand.at("driver.sock").as_ref())?;
        Ok(Self { stand, driver, _serving: serving })
    }

    async fn edge(&mut self, urls: &[&str]) -> anyhow::Result<Process> {
        let state = self.stand.at("state");
        let socket = self.stand.at("driver.sock");
        let mut more = vec!["--state", &state];
        more.extend(urls.iter().flat_map(|url| ["--cloud", url]));
        self.stand.edge_with(NODE, &[(DRIVER, &socket)], &more).await
    }
}

/// Welcomes an edge as the csi-cloud of this epoch.
async fn welcome(cloud: &HostileCloud, epoch: Option<u64>) -> anyhow::Result<Link> {
    let mut link = cloud.accept().await?;
    anyhow::ensure!(matches!(link.next().await, Event::Message(Message::Hello(_))));
    let leader_epoch = epoch.map(LeaderEpoch);
    let welcome = Welcome { leader_epoch, ..hostile_cloud::welcome("one of several") };
    link.send(&Message::Welcome(welcome)).await?;
    Ok(link)
}

async fn create_as(
    client: &RawClient,
    epoch: Option<&str>,
    name: &str,
) -> anyhow::Result<RawAnswer> {
    let epoch: Vec<_> = epoch.into_iter().map(|epoch| (LEADER_EPOCH.as_str(), epoch)).collect();
    client.send(&controller("CreateVolume"), frame::frame(&create(name)), &epoch).await
}

/// An answer that says that another csi-cloud leads, and that the driver did not get the call.
fn assert_fenced(answer: &RawAnswer, which: &str) {
    let status = answer.status();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("leader epoch 9"), "{status}");
    assert!(status.message().contains(which), "{status}");
    assert_eq!(answer.headers[&NOT_DISPATCHED], "1");
}

#[tokio::test]
async fn an_edge_that_was_told_an_epoch_refuses_those_before_it() -> anyhow::Result<()> {
    for transport in TRANSPORTS {
        let mut node = Node::new().await?;
        let (cloud, url) = HostileCloud::listen(&node.stand, transport).await?;
        let edge = node.edge(&[&url]).await?;
        let tasks = Tasks::default();
        let client = caller(welcome(&cloud, Some(9)).await?, DRIVER, &tasks).await?;
        assert_fenced(&create_as(&client, Some("5"), "old").await?, "of epoch 5");
        assert_fenced(&create_as(&client, None, "none").await?, "without an epoch");
        let answer = create_as(&client, Some("9"), "new").await?;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        let [received] = &node.driver.calls_of("CreateVolume")[..] else { panic!("not one call") };
        assert!(!received.headers.contains_key(&LEADER_EPOCH), "it is not for drivers");
        // The node's own callers are no csi-cloud.
        let front = RawClient::connect(&node.stand.edge_front(NODE, DRIVER)).await?;
        let answer = create_as(&front, Some("5"), "own").await?;
        assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
        tasks.stop();
        edge.stop(START).await?;
        let tasks = Tasks::default();

        // Another csi-edge at the node knows it too.
        let edge = node.edge(&[&url]).await?;
        for (epoch, which) in [(Some(5), "of epoch 5"), (None, "without an epoch")] {
            let mut link = welcome(&cloud, epoch).await?;
            assert!(matches!(link.next().await, Event::Closed(_)));
            edge.logged(which).await?;
        }
        let client = caller(welcome(&cloud, Some(9)).await?, DRIVER, &tasks).await?;
        assert_fenced(&create_as(&client, Some("5"), "old").await?, "of epoch 5");
        assert_eq!(node.driver.calls_of("CreateVolume").len(), 2);
        tasks.stop();
        edge.stop(START).await?;
    }
    Ok(())
}

/// The records of a store that several csi-clouds have, one after another.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<Change>>>);

impl Backend for Shared {
    fn load(&mut self, take: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        let changes = self.0.lock().clone();
        changes.into_iter().for_each(take);
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.0.lock().extend_from_slice(changes);
        Ok(())
    }
}

/// One of several csi-clouds, over WebSocket.
struct Replica {
    leadership: Leadership,
    links: Arc<Links>,
    front: Arc<Front>,
    client: RawClient,
    url: String,
    tasks: Tasks,
}

impl Replica {
    async fn new(stand: &Stand, name: &str, records: Box<dyn Backend>) -> anyhow::Result<Self> {
        let tasks = Tasks::default();
        let leadership = Leadership::following();
        let store = Store::open(records, &tasks)?.with_leadership(leadership.clone());
        let links = Links::new(store.clone(), tasks.clone(), answer::answer);
        let policy = Policy::new(None);
        let links = Arc::new(links.scoped(&BTreeMap::from([(DRIVER.parse()?, policy.clone())])));
        let calls = Arc::default();
        let front = Arc::new(Front::new(DRIVER.parse()?, policy, store, links.clone(), calls));
        let socket = Socket::bind(stand.at(name).as_ref())?;
        tasks.spawn("front", front.clone().serve(Some(socket), tasks.clone()));
        let client = RawClient::connect(&stand.at(name)).await?;
        let url = accept(stand, &links, &tasks).await?;
        Ok(Self { leadership, links, front, client, url, tasks })
    }

    fn lead(&self, epoch: u64) {
        self.leadership.lead(LeaderEpoch(epoch), Instant::now() + START * 10);
        self.front.begin();
        self.links.take_over();
    }

    fn follow(&self, name: &str, leader: &Self) -> anyhow::Result<()> {
        let endpoints = Arc::new([leader.url.parse()?]);
        self.leadership.follow(Some(Leader {
            name: name.into(),
            epoch: LeaderEpoch(1),
            endpoints,
        }));
        Ok(())
    }

    /// What a csi-cloud does when another one may lead.
    async fn depose(&self) {
        self.leadership.depose();
        self.links.drain();
        self.tasks.finish(Duration::from_secs(2)).await;
    }
}

/// Takes links on a free port, whose URL it returns.
async fn accept(stand: &Stand, links: &Arc<Links>, tasks: &Tasks) -> anyhow::Result<String> {
    let tls = server_config(&stand.credentials("cloud", Role::Cloud)?, ws::ALPN)?;
    let acceptor = ws::Acceptor::new(tls, KeepAlive::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("wss://{}", listener.local_addr()?);
    let of_link = tasks.clone();
    let links = links.clone();
    tasks.spawn_until_stop("accept", async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            let links = links.clone();
            of_link.spawn("link", async move {
                let Ok(greeted) = acceptor.greet(Box::new(tcp)).await else { return };
                let Ok(accepted) = acceptor.accept(greeted).await else { return };
                if let Some((peer, link)) = accepted.link() {
                    link_task::run(&links, Box::new(peer), link.into(), None).await;
                }
            });
        }
    });
    Ok(url)
}

#[tokio::test]
async fn a_follower_refuses_and_names_the_leader_to_callers_and_edges() -> anyhow::Result<()> {
    let mut node = Node::new().await?;
    let mut replicas = Vec::new();
    for name in ["a", "b", "c"] {
        replicas.push(Replica::new(&node.stand, name, Box::new(Memory::default())).await?);
    }
    let [a, b, c] = &replicas[..] else { panic!("not three") };
    c.lead(5);
    a.follow("c", c)?;
    b.follow("c", c)?;
    let begun = Instant::now();
    let mut edge = node.edge(&[&a.url, &b.url, &c.url]).await?;
    assert_eq!(edge.line_starting("linked ", START).await?, format!("{} as {NODE}", c.url));
    // It would be 3 s if the edge had waited for its turn, and up to 2 s after a failure.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    edge.logged("follows c,").await?;
    let create = create("v");
    let refused = a.client.call(&controller("CreateVolume"), &create).await?;
    assert_eq!(refused.code(), Code::Unavailable, "{}", refused.status());
    assert!(refused.status().message().contains("follows c,"), "{}", refused.status());
    let info = a.client.call("/csi.v1.Identity/GetPluginInfo", &[]).await?;
    assert_eq!(info.code(), Code::Ok, "{}", info.status());
    until("the leader knows the driver", || ready(&c.client)).await?;
    let answer = c.client.call(&controller("CreateVolume"), &create).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());

    // Nobody leads for a while. The edge waits, and goes where the next one leads.
    a.leadership.follow(None);
    b.leadership.follow(None);
    c.depose().await;
    edge.logged("no link; dialing again").await?;
    tokio::task::yield_now().await;
    b.lead(9);
    a.follow("b", b)?;
    assert_eq!(edge.line_starting("linked ", START).await?, format!("{} as {NODE}", b.url));
    edge.stop(START).await?;
    for replica in &replicas {
        replica.tasks.finish(Duration::from_secs(2)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_leader_that_was_deposed_answers_nothing_final() -> anyhow::Result<()> {
    let mut node = Node::new().await?;
    let records = Shared::default();
    let first = Replica::new(&node.stand, "a", Box::new(records.clone())).await?;
    first.lead(5);
    let second = Replica::new(&node.stand, "b", Box::new(records.clone())).await?;
    second.follow("a", &first)?;
    let mut edge = node.edge(&[&first.url, &second.url]).await?;
    edge.line_starting("linked ", START).await?;
    until("the leader knows the driver", || ready(&first.client)).await?;
    let path = controller("CreateVolume");
    let made = created(&first.client.call(&path, &create("made")).await?)?;
    let gate = Gate::new();
    // One whose outcome is to be kept, and one of which nothing is.
    let of_made = controller("ValidateVolumeCapabilities");
    for method in ["CreateVolume", "ValidateVolumeCapabilities"] {
        node.driver.inject(method, Fault::Gate(gate.clone()), Times::Next(1));
    }
    let request = create("v");
    let validate = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: made.volume_id,
        volume_capabilities: vec![capability()],
        ..Default::default()
    };
    let validate = validate.encode_to_vec();
    let losing = async {
        gate.wait_for(2).await?;
        // Its link is up, and its answers come.
        first.leadership.depose();
        gate.open();
        anyhow::Ok(())
    };
    let (created_late, validated_late, lost) = tokio::join!(
        first.client.call(&path, &request),
        first.client.call(&of_made, &validate),
        losing
    );
    lost?;
    for answer in [created_late?, validated_late?] {
        let status = answer.status();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("this csi-cloud led"), "{status}");
    }

    // The next leader has what the first one wrote.
    let third = Replica::new(&node.stand, "c", Box::new(records)).await?;
    third.lead(9);
    second.follow("c", &third)?;
    first.depose().await;
    second.tasks.finish(Duration::from_secs(2)).await;
    edge.stop(START).await?;
    let mut edge = node.edge(&[&third.url]).await?;
    edge.line_starting("linked ", START).await?;
    let answer = third.client.call(&path, &request).await?;
    assert_eq!(answer.code(), Code::Ok, "{}", answer.status());
    let made = node.driver.named_volumes();
    let names: Vec<_> = made.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["made", "v"], "one name is one volume");
    assert_eq!(created(&answer)?.volume_id, made[1].1.volume_id);
    edge.stop(START).await?;
    third.tasks.finish(Duration::from_secs(2)).await;
    Ok(())
}
