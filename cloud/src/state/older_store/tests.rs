//! Stores that go back, and the nodes that show it.

use proto::csi::Id;
use proto::host::tasks::Tasks;
use proto::names::DriverName;

use super::*;
use crate::state::record::{Intent, NodeDriver};
use crate::state::starts::Lack;
use crate::state::store::memory::Memory;

async fn open(memory: &Memory) -> Store {
    let store = Store::open(Box::new(memory.clone()), &Tasks::default()).unwrap();
    store.secrets().await.unwrap();
    store
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

/// A create is about to be sent to a node, which is told the watermark.
async fn create(store: &Store, at: &NodeName, name: &str) -> Watermark {
    let driver: DriverName = "d.example".parse().unwrap();
    let name = Id::Name(proto::csi::Method::CreateVolume, name.into());
    let intent = Intent {
        node: at.clone(),
        since: 1,
        until: 2,
        made: None,
        claim: None,
        attempts: Some(1),
        direct: None,
        narrowed: None,
        machine: None,
    };
    let write = store.write(move |txn| {
        txn.set_intent(&driver, &name, Some(intent));
        txn.count_create();
    });
    write.await.unwrap();
    watermark(store, at).unwrap()
}

#[tokio::test]
async fn a_store_that_goes_on_is_never_older() {
    let memory = Memory::default();
    let n1 = node("n1");
    let mut told = Vec::new();
    for _ in 0..3 {
        let store = open(&memory).await;
        for known in &told {
            assert!(!take(&store, &n1, known).await.unwrap(), "{known:?}");
        }
        told.push(create(&store, &n1, "a").await);
        told.push(create(&store, &n1, "b").await);
        assert_eq!(store.may_lack_creates(), None);
    }
    assert_eq!(told.iter().map(|told| told.number).collect::<Vec<_>>(), [1, 2, 1, 2, 1, 2]);
}

/// The copies: of the same start, and of an earlier one.
#[tokio::test]
async fn an_older_copy_creates_nothing_until_an_operator_accepts_what_is_missing() {
    for restarts in [false, true] {
        let memory = Memory::default();
        let (n1, n2) = (node("n1"), node("n2"));
        let store = open(&memory).await;
        let first = create(&store, &n1, "a").await;
        let copy = memory.copied();
        let store = if restarts { open(&memory).await } else { store };
        let later = create(&store, &n1, "b").await;
        let others = watermark(&store, &n2).unwrap();
        drop(store);

        let older = open(&copy).await;
        assert!(!take(&older, &n1, &first).await.unwrap());
        assert!(watermark(&older, &n1).is_some());
        assert!(take(&older, &n1, &later).await.unwrap(), "the first that shows it");
        assert!(!take(&older, &n1, &later).await.unwrap(), "it is known");
        assert_eq!(older.may_lack_creates(), Some(Lack::ShownBy(n1.clone())));
        assert_eq!(watermark(&older, &n1), None, "the nodes keep what they know");
        drop(older);
        let again = open(&copy).await;
        assert_eq!(again.may_lack_creates(), Some(Lack::ShownBy(n1.clone())), "it is durable");

        assert_eq!(accept(&again).await.unwrap(), 1);
        assert_eq!(again.may_lack_creates(), None);
        assert!(!take(&again, &n1, &later).await.unwrap());
        assert!(!take(&again, &n2, &others).await.unwrap(), "another node of the same time");
        let next = create(&again, &n1, "c").await;
        assert!(next.follows(&later));
        assert_eq!(accept(&again).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn what_csi_cloud_did_not_tell_this_node_counts_for_nothing() {
    let memory = Memory::default();
    let (n1, n2) = (node("n1"), node("n2"));
    let store = open(&memory).await;
    let told = create(&store, &n1, "a").await;
    let beyond = Watermark { number: 9, ..told.clone() };
    let start = Watermark { start: Uuid::from_u128(5), ..told.clone() };
    let leases = Watermark { start: LEASES, ..told.clone() };
    let odd = Watermark { mac: "*".into(), ..told.clone() };
    for lie in [beyond, start, leases, odd] {
        assert!(!take(&store, &n1, &lie).await.unwrap(), "{lie:?}");
    }
    let copy = Memory::default();
    let lost = open(&copy).await;
    assert!(!take(&lost, &n1, &told).await.unwrap(), "a store that was lost has another key");
    // Another node's, at an older store.
    let key = store.read(|state| state.trust().secrets().cloned()).unwrap();
    let set = lost.write(move |txn| txn.set_trust(crate::state::trust::TrustChange::Secrets(key)));
    set.await.unwrap();
    assert!(!take(&lost, &n2, &told).await.unwrap());
    assert!(take(&lost, &n1, &told).await.unwrap());
}

#[tokio::test]
async fn a_proven_lease_that_the_store_lacks_shows_an_older_copy_once() {
    let store = open(&Memory::default()).await;
    let n1 = node("n1");
    let note = |epoch| {
        let at = n1.clone();
        store.write(move |txn| {
            let is_news = note_lease(txn, &at, epoch);
            txn.set_epoch(epoch);
            is_news
        })
    };
    assert!(note(7).await.unwrap());
    assert_eq!(store.may_lack_creates(), Some(Lack::ShownBy(n1.clone())));
    assert!(!note(9).await.unwrap(), "it is known");
    assert_eq!(accept(&store).await.unwrap(), 1);
    assert_eq!(store.may_lack_creates(), None);
    assert!(!note(9).await.unwrap());
    assert!(note(10).await.unwrap(), "another older copy");
}

#[tokio::test]
async fn of_an_older_copy_no_node_counts_as_listed() {
    let store = open(&Memory::default()).await;
    let (n1, driver) = (node("n1"), "d.example".parse::<DriverName>().unwrap());
    let (at, of) = (n1.clone(), driver.clone());
    let listed = NodeDriver { listed: 7, ..NodeDriver::default() };
    store.write(move |txn| txn.set_at(&of, &at, Some(listed))).await.unwrap();
    let by = n1.clone();
    assert!(store.write(move |txn| note_lease(txn, &by, 7)).await.unwrap());
    let listed = store.read(|state| state.driver(&driver)?.at(&n1).map(|at| at.listed));
    assert_eq!(listed, Some(0));
}
