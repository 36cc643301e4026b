//! Looking for ids and deleting them among several nodes.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_channel::mpsc;
use futures_util::StreamExt;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use proto::csi::topology::NODE_SEGMENT;
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::{forward, serve};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::nodes::handle::{Handle, Peer};
use crate::nodes::links::Links;
use crate::state::affinity::{Affinity, VolumeFacts};
use crate::state::authority::Authority;
use crate::state::node_set::NodeSet;
use crate::state::policy::Policy;
use crate::state::record::NodeDriver;
use crate::state::store::memory::Memory;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

const DRIVER: &str = "d.example";

/// A node's edge.
#[derive(Default)]
struct Edge {
    has: AtomicBool,
    /// Questions and deletes so far.
    asked: AtomicUsize,
    /// If set, it answers when it is notified.
    held: Option<Notify>,
}

struct World {
    links: Arc<Links>,
    store: Store,
    queries: NodeQueries,
    inquiries: Inquiries,
    tasks: Tasks,
    request: Bytes,
}

impl World {
    fn new() -> Self {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let links = Links::new(store.clone(), tasks.clone(), |_, _, _, _| Box::pin(async { None }));
        let links = Arc::new(links);
        let queries = NodeQueries::new(driver(), links.clone(), false);
        let inquiries = Inquiries::new(tasks.clone());
        Self { links, store, queries, inquiries, tasks, request: Bytes::new() }
    }

    /// A node that has the driver, and whether it once gave a list.
    async fn know(&self, node: &str, listed: u64) -> NodeName {
        let node: NodeName = node.parse().unwrap();
        let known = node.clone();
        let write = self.store.write(move |txn| {
            txn.set_at(&driver(), &known, Some(NodeDriver { listed, ..NodeDriver::default() }));
        });
        write.await.unwrap();
        node
    }

    /// A node with a link.
    async fn link(&self, node: &str, edge: &Arc<Edge>) {
        let node = self.know(node, 0).await;
        let (want, mut wanted) = mpsc::channel(2);
        let handle = Arc::new(Handle::new(Peer::default(), want, self.tasks.child()));
        let edge = edge.clone();
        let tasks = self.tasks.clone();
        self.tasks.spawn_until_stop("edge", async move {
            while let Some((_, answer)) = wanted.next().await {
                let (near, far) = tokio::io::duplex(1 << 16);
                let edge = edge.clone();
                let service = move |request| answer_one(edge.clone(), request);
                tasks.spawn_until_stop("stream", async move {
                    drop(serve::serve(far, service, std::future::pending()).await);
                });
                let _ = answer.send(Ok(Box::new(near)));
            }
        });
        self.links.enter(&node, &handle);
    }

    fn discovery(&self) -> Discovery<'_> {
        Discovery {
            queries: &self.queries,
            inquiries: &self.inquiries,
            store: &self.store,
            deadline: None,
            request: &self.request,
        }
    }

    async fn delete(&self, id: &Id) -> Result<Answer, Error> {
        let method = Method::of_path("/csi.v1.Controller/DeleteVolume").unwrap();
        let path = http::uri::PathAndQuery::from_static(method.path());
        let call = Call { headers: HeaderMap::new(), path, body: frame::frame(&[]) };
        self.discovery().delete(method, id, &call).await
    }
}

async fn answer_one(
    edge: Arc<Edge>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    edge.asked.fetch_add(1, Ordering::SeqCst);
    if let Some(held) = &edge.held {
        held.notified().await;
    }
    let deletes = request.uri().path().ends_with("DeleteVolume");
    if deletes || edge.has.load(Ordering::SeqCst) {
        return Ok(Answer::of(frame::frame(&[])).response());
    }
    Ok(forward::failure(&Error::NoSuchThing { driver: driver(), id: "v".into() }))
}

fn driver() -> DriverName {
    DRIVER.parse().unwrap()
}

fn volume() -> Id {
    Id::Volume("v".into())
}

fn asked(edges: &[&Arc<Edge>]) -> Vec<usize> {
    edges.iter().map(|edge| edge.asked.load(Ordering::SeqCst)).collect()
}

#[tokio::test(start_paused = true)]
async fn all_callers_share_an_inquiry_that_outlives_them() {
    let world = World::new();
    let quick = Arc::new(Edge::default());
    let slow = Arc::new(Edge { held: Some(Notify::new()), ..Edge::default() });
    world.link("n1", &quick).await;
    world.link("n2", &slow).await;
    let (id, second) = (volume(), Duration::from_secs(1));
    for _ in 0..3 {
        let (one, other) = (world.discovery(), world.discovery());
        let both = async { tokio::join!(one.discover(&id), other.discover(&id)) };
        assert!(timeout(second, both).await.is_err(), "they give up");
    }
    assert_eq!(asked(&[&quick, &slow]), [1, 1]);
    slow.held.as_ref().unwrap().notify_one();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let found = world.discovery().discover(&id).await;
    assert!(matches!(found, Err(Error::NoSuchThing { .. })), "its answers were kept");
    assert_eq!(asked(&[&quick, &slow]), [1, 1]);
    let again = timeout(second, world.discovery().discover(&id)).await;
    assert!(again.is_err(), "an outcome that a caller got is not kept");
    assert_eq!(asked(&[&quick, &slow]), [2, 2]);
    slow.held.as_ref().unwrap().notify_one();
    tokio::time::sleep(Duration::from_secs(61)).await;
    let again = timeout(second, world.discovery().discover(&id)).await;
    assert!(again.is_err(), "nor are answers for longer than a minute");
    assert_eq!(asked(&[&quick, &slow]), [3, 3]);
    world.tasks.stop();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_meanwhile_is_asked_before_an_id_is_nowhere() {
    let world = World::new();
    let slow = Arc::new(Edge { held: Some(Notify::new()), ..Edge::default() });
    let late = Arc::new(Edge { has: true.into(), ..Edge::default() });
    world.link("n1", &slow).await;
    // Known, and away.
    world.know("n3", 0).await;
    let id = volume();
    let discovery = world.discovery();
    let mut finding = std::pin::pin!(discovery.discover(&id));
    assert!(timeout(Duration::from_secs(1), &mut finding).await.is_err());
    world.link("n2", &late).await;
    world.link("n3", &Arc::new(Edge::default())).await;
    slow.held.as_ref().unwrap().notify_one();
    finding.await.unwrap();
    let home = world.store.read(|state| state.driver(&driver())?.home(&id).cloned());
    assert_eq!(home.unwrap().node.as_str(), "n2");
    world.tasks.stop();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_take_a_delete_counts_though_it_gave_a_list() {
    let world = World::new();
    world.link("n1", &Arc::new(Edge::default())).await;
    // Away, and known not to have it.
    world.know("n2", 1).await;
    assert!(world.delete(&volume()).await.is_ok());
    // It has a link, on which nothing can be sent.
    let node = world.know("n3", 1).await;
    let mute = Handle::new(Peer::default(), mpsc::channel(1).0, world.tasks.child());
    world.links.enter(&node, &Arc::new(mute));
    let deleted = world.delete(&volume()).await;
    assert!(matches!(deleted, Err(Error::NotAsked { .. })));
    world.tasks.stop();
}

#[tokio::test(start_paused = true)]
async fn among_many_nodes_one_that_is_away_decides_at_once() {
    let world = World::new();
    let edge = Arc::new(Edge::default());
    for number in 0..=FEW {
        world.link(&format!("n{number}"), &edge).await;
    }
    let id = volume();
    assert!(world.discovery().check_away(&id).await.is_ok());
    assert!(world.delete(&id).await.is_ok());
    let told = FEW + 1;
    assert_eq!(asked(&[&edge]), [told]);
    world.know("away", 0).await;
    let away = world.discovery().check_away(&id).await;
    assert!(matches!(away, Err(Error::NotAsked { .. })));
    assert!(matches!(world.delete(&id).await, Err(Error::NotAsked { .. })));
    assert_eq!(asked(&[&edge]), [told], "and nobody was asked");
    world.tasks.stop();
}

/// A world whose store has just begun.
async fn new_world() -> World {
    let world = World::new();
    world.store.secrets().await.unwrap();
    world
}

fn early(found: Result<(), Error>) -> String {
    match found {
        Err(error @ Error::NewStore { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_alone_give_no_home_while_the_store_is_new() {
    let world = new_world().await;
    let edge = Arc::new(Edge { has: true.into(), ..Edge::default() });
    world.link("n1", &edge).await;
    let id = volume();
    let why = early(world.discovery().discover(&id).await);
    for word in ["n1 may have \"v\"", "before 20", "volume adopt d.example", "`nodes`"] {
        assert!(why.contains(word), "{why}");
    }
    early(world.discovery().discover_deleted(&id).await.map(drop));
    let home = || world.store.read(|state| state.driver(&driver())?.home(&id).cloned());
    assert_eq!(home(), None);
    tokio::time::advance(Duration::from_secs(590)).await;
    early(world.discovery().discover(&id).await);
    tokio::time::advance(Duration::from_secs(20)).await;
    world.discovery().discover(&id).await.unwrap();
    assert_eq!(home().unwrap().node.as_str(), "n1");
    world.tasks.stop();
}

#[tokio::test(start_paused = true)]
async fn a_new_store_deletes_what_no_node_claims() {
    let world = new_world().await;
    world.link("n1", &Arc::new(Edge::default())).await;
    world.link("n2", &Arc::new(Edge::default())).await;
    assert!(!world.discovery().discover_deleted(&volume()).await.unwrap());
    assert!(world.delete(&volume()).await.is_ok());
    world.tasks.stop();
}

#[tokio::test(start_paused = true)]
async fn the_names_of_all_nodes_end_the_wait_of_a_new_store() {
    for (nodes, is_believed) in [("n1", true), ("n*", false)] {
        let world = new_world().await;
        let nodes = Some(NodeSet::new(vec![nodes.parse().unwrap()]));
        let policy = Policy { nodes, ..Policy::new(None) };
        Authority::new([(driver(), policy)].into()).apply(&world.store);
        let edge = Arc::new(Edge { has: true.into(), ..Edge::default() });
        world.link("n1", &edge).await;
        let found = world.discovery().discover(&volume()).await;
        assert_eq!(found.is_ok(), is_believed, "{found:?}");
        world.tasks.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn a_persistent_volume_of_the_node_ends_the_wait_of_a_new_store() {
    for (key, value, is_believed) in
        [(NODE_SEGMENT, "n1", true), (NODE_SEGMENT, "n2", false), ("rack", "7", false)]
    {
        let world = new_world().await;
        let edge = Arc::new(Edge { has: true.into(), ..Edge::default() });
        world.link("n1", &edge).await;
        let segments = [(NODE_SEGMENT, "n1"), ("rack", "7")];
        let segments = segments.map(|(key, value)| Arc::new((key.to_owned(), value.to_owned())));
        let at = NodeDriver { segments: segments.into(), ..NodeDriver::default() };
        let write = move |txn: &mut Txn<'_>| {
            txn.set_at(&driver(), &"n1".parse().unwrap(), Some(at));
        };
        world.store.write(write).await.unwrap();
        let affinity = Affinity::new(vec![[(key.to_owned(), value.to_owned())].into()]);
        let facts = VolumeFacts { affinity: Some(affinity), ..VolumeFacts::default() };
        let answer = VolumeAnswer::Known(vec![facts]);
        world.links.look_up_by(Arc::new(move |_, _, _| Box::pin(ready(answer.clone()))));
        let found = world.discovery().discover(&volume()).await;
        assert_eq!(found.is_ok(), is_believed, "{key}={value}: {found:?}");
        world.tasks.stop();
    }
}

#[tokio::test]
async fn only_an_empty_store_is_new() {
    let world = World::new();
    world.know("n1", 0).await;
    world.store.secrets().await.unwrap();
    assert_eq!(world.store.read(|state| state.adopts_from(&driver(), 0)), None);
    let world = new_world().await;
    let from = world.store.read(|state| state.adopts_from(&driver(), now())).unwrap();
    assert!(from > now() && from <= now() + 600_000, "{from}");
    let adopts_from = |now| world.store.read(|state| state.adopts_from(&driver(), now));
    assert_eq!(adopts_from(0), Some(from), "a clock that was put back");
    assert_eq!((adopts_from(from - 1), adopts_from(from)), (Some(from), None));
}
