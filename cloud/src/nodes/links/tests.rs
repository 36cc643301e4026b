//! Links that replace each other, end, and are set apart.

use futures_channel::mpsc;
use futures_util::FutureExt;
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::link::Link;
use proto::names::certificate::Identity;

use super::*;
use crate::nodes::link_task;
use crate::state::record::Node;
use crate::state::store::memory::Memory;

fn links(tasks: &Tasks) -> Links {
    let store = Store::open(Box::new(Memory::default()), tasks).unwrap();
    Links::new(store, tasks.clone(), |_, _, _, _| Box::pin(async { None }))
}

fn handle(tasks: &Tasks) -> Arc<Handle> {
    Arc::new(Handle::new(Peer::default(), mpsc::channel(1).0, tasks.child()))
}

#[test]
fn a_larger_fleet_takes_longer_to_come_back() {
    for (linked, seconds) in
        [(0, 2), (1_999, 2), (5_000, 4), (9_000, 8), (20_000, 16), (usize::MAX, 16)]
    {
        assert_eq!(backoff_cap(linked), Duration::from_secs(seconds), "{linked}");
    }
}

#[tokio::test]
async fn edges_are_told_again_when_the_fleet_has_grown() {
    let tasks = Tasks::default();
    let links = links(&tasks);
    let broadcasts = links.broadcasts();
    for name in 0..4_000 {
        assert!(!broadcasts.has_changed().unwrap(), "with {name} links");
        links.enter(&format!("n{name}").parse().unwrap(), &handle(&tasks));
    }
    assert_eq!(broadcasts.borrow().backoff_cap, Duration::from_secs(4));
    assert!(broadcasts.has_changed().unwrap());
}

#[tokio::test]
async fn a_link_ends_with_its_edges_certificate() {
    let tasks = Tasks::default();
    let links = links(&tasks);
    let now = SystemTime::now();
    let linked = |name: &str, expires| {
        let handle = Handle::new(Peer::default(), mpsc::channel(1).0, tasks.child());
        let handle = Arc::new(handle.expiring(expires));
        links.enter(&name.parse().unwrap(), &handle);
        handle
    };
    let ended = linked("n1", Some(now));
    let valid = linked("n2", now.checked_add(Duration::from_secs(1)));
    let unknown = linked("n3", None);
    links.end_expired(now);
    assert!(!ended.is_up() && valid.is_up() && unknown.is_up());
    assert_eq!(ended.why(), Some(EXPIRED));
    links.end(&"n2".parse().unwrap(), REMOVED);
    assert_eq!(valid.why(), Some(REMOVED));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_links_too_often_is_refused_and_keeps_its_link() {
    let tasks = Tasks::default();
    let links = links(&tasks);
    let [node, other]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
    let [honest, copy] = [1, 2].map(|port| Peer {
        run: Some(Run::begin()),
        address: Some(([192, 0, 2, 1], port).into()),
        ..Peer::default()
    });
    let established = Handle::new(honest.clone(), mpsc::channel(1).0, tasks.child());
    let established = Arc::new(established);
    links.enter(&node, &established);
    for number in 0..20 {
        assert_eq!(links.take_link(&node, &copy), Ok(()), "{number}");
    }
    let why = links.take_link(&node, &copy).unwrap_err();
    for peer in [&honest, &copy] {
        assert!(why.contains(&peer.of_run()), "{why}");
    }
    assert!(links.now(&node).is_some_and(|link| Arc::ptr_eq(&link, &established)));
    assert!(established.is_up());
    assert_eq!(links.take_link(&other, &honest), Ok(()), "another node's links are its own");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(links.take_link(&node, &honest), Ok(()), "one a second");
    assert!(links.take_link(&node, &copy).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_sends_too_much_is_set_apart_until_it_has_stopped() {
    let tasks = Tasks::default();
    let links = Arc::new(links(&tasks));
    let node: NodeName = "n1".parse().unwrap();
    let watched = links.clone();
    tasks.spawn_until_stop("watch", async move { watched.watch().await });
    for _ in 0..200 {
        assert_eq!(links.take_message(&node), Ok(()));
    }
    assert_eq!(links.take_message(&node).unwrap_err().setting, "control_messages_at_once");
    let is_apart = || links.store.read(|state| state.apart().at(&node).next().is_some());
    assert!(is_apart());
    assert!(links.store.refusals().counts().contains(&("control_messages_at_once", 1)));
    tokio::time::sleep(Duration::from_secs(2) + LOOK).await;
    assert!(!is_apart(), "all that it sent is paid");
    tasks.stop();
}

#[tokio::test]
async fn a_link_that_was_replaced_does_not_take_its_successor_out() {
    let tasks = Tasks::default();
    let links = links(&tasks);
    let node: NodeName = "n1".parse().unwrap();
    let older = handle(&tasks);
    let newer = handle(&tasks);
    links.enter(&node, &older);
    links.enter(&node, &newer);
    assert!(!older.is_up() && newer.is_up());
    links.remove(&node, &older);
    assert!(links.now(&node).is_some_and(|now| Arc::ptr_eq(&now, &newer)));
    links.remove(&node, &newer);
    assert!(links.now(&node).is_none());
}

#[tokio::test(start_paused = true)]
async fn no_call_waits_for_the_next_link_of_a_removed_node() {
    let tasks = Tasks::default();
    let links = links(&tasks);
    let node: NodeName = "n1".parse().unwrap();
    let lost = handle(&tasks);
    let minute = Duration::from_secs(60);
    let mut waiting = std::pin::pin!(links.next(&node, &lost));
    assert!(tokio::time::timeout(minute, &mut waiting).await.is_err());
    let at = node.clone();
    let removed = Some(Node { since: 1, removed: Some(2), ..Node::default() });
    links.store().write(move |txn| txn.set_node(&at, removed)).await.unwrap();
    links.end_removed(&node);
    assert!(matches!(tokio::time::timeout(minute, waiting).await, Ok(None)));
    let later = tokio::time::timeout(minute, links.next(&node, &lost));
    assert!(matches!(later.await, Ok(None)), "nor does one that comes later");
}

#[tokio::test(start_paused = true)]
async fn no_call_goes_on_at_another_machine() {
    let tasks = Tasks::default();
    let links = links(&tasks);
    let node: NodeName = "n1".parse().unwrap();
    let linked = |own: Option<&str>| {
        let peer = Peer { machine: own.map(MachineId::new), ..Peer::default() };
        Arc::new(Handle::new(peer, mpsc::channel(1).0, tasks.child()))
    };
    let [board, older, next, other] = [Some("1"), None, Some("1"), Some("2")].map(linked);
    for (lost, newer, goes_on) in [
        (&board, &next, true),
        (&board, &older, true),
        (&older, &other, true),
        (&board, &other, false),
    ] {
        links.enter(&node, lost);
        let mut waiting = std::pin::pin!(links.next(&node, lost));
        assert!(waiting.as_mut().now_or_never().is_none());
        links.enter(&node, newer);
        assert_eq!(waiting.await.is_some(), goes_on, "a call that waits");
        assert_eq!(links.next(&node, lost).await.is_some(), goes_on, "one that comes later");
    }
}

/// With what runs it, the task of an idle link is one allocation of 1,280 bytes.
#[test]
fn the_future_of_an_idle_link_stays_small() {
    fn size<T>(_: impl FnOnce(&'static Links, Box<Identity<NodeName>>, Link) -> T) -> usize {
        size_of::<T>()
    }
    let size = size(|links, peer, link| link_task::run(links, peer, link, None));
    assert!(size <= 1_100, "it has {size} bytes");
}
