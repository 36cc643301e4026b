//! The store over any backend: many writes per commit, failed commits, and callers that leave.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::{join, join_all};

use crate::state::store::tests::*;
use crate::state::store::writer::SecretsError;

/// Counts commits.
struct Counting(Memory, Arc<AtomicUsize>);

impl Backend for Counting {
    fn load(&mut self, each: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        self.0.load(each)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.commit(changes)
    }
}

fn opened(backend: impl Backend + 'static) -> Store {
    Store::open(Box::new(backend), &Tasks::default()).unwrap()
}

fn counted() -> (Store, Arc<AtomicUsize>) {
    let commits = Arc::new(AtomicUsize::new(0));
    (opened(Counting(Memory::default(), commits.clone())), commits)
}

fn d() -> DriverName {
    "d.example".parse().unwrap()
}

fn v(id: impl ToString) -> Id {
    Id::Volume(id.to_string())
}

fn homes(store: &Store) -> usize {
    store.read(|state| state.driver(&d()).map_or(0, |driver| driver.homes().len()))
}

/// Records a home, and returns the volume's node before.
async fn keep(store: &Store, id: Id, node: &'static str) -> Result<Option<NodeName>, StoreError> {
    let change = move |txn: &mut Txn<'_>| {
        let before = txn.home(&d(), &id).map(|home| home.node.clone());
        txn.set_home(&d(), &id, Some(home(node)));
        before
    };
    store.write(change).await
}

#[tokio::test]
async fn concurrent_writes_share_commits() {
    let (store, commits) = counted();
    let writes = join_all((0..256).map(|n| keep(&store, v(n), "n1"))).await;
    assert!(writes.iter().all(Result::is_ok));
    assert_eq!(homes(&store), 256);
    let commits = commits.load(Ordering::Relaxed);
    assert!(commits <= 16, "{commits} commits for 256 writes");
}

#[tokio::test]
async fn a_write_sees_those_before_it_in_its_batch() {
    let (store, commits) = counted();
    let (first, second) = join(keep(&store, v("one"), "n1"), keep(&store, v("one"), "n2")).await;
    assert_eq!(commits.load(Ordering::Relaxed), 1);
    assert_eq!((first.unwrap(), second.unwrap()), (None, Some(home("n1").node)));
    assert_eq!(
        store.read(|state| state.driver(&d()).unwrap().home(&v("one")).cloned()),
        Some(home("n2"))
    );
}

#[tokio::test]
async fn who_only_looks_waits_for_no_commit() {
    let (store, commits) = counted();
    assert!(store.write(|txn| txn.home(&d(), &v("one")).is_none()).await.unwrap());
    assert_eq!(commits.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_failed_commit_is_seen_by_nobody_and_is_the_last() {
    let memory = Memory::default();
    let store = opened(memory.crashing(Crash::Before(1)));
    keep(&store, v("one"), "n1").await.unwrap();
    assert!(matches!(keep(&store, v("two"), "n1").await, Err(StoreError::Closed)));
    assert!(matches!(keep(&store, v("three"), "n1").await, Err(StoreError::Closed)));
    assert_eq!(homes(&store), 1);
    assert_eq!(homes(&opened(memory)), 1);
}

/// A disk that refuses one commit, and then two trials.
#[derive(Default)]
struct FullAtFirst {
    commits: usize,
    trials: usize,
}

impl Backend for FullAtFirst {
    fn load(&mut self, _: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&mut self, _: &[Change]) -> Result<(), StoreError> {
        self.commits += 1;
        if self.commits > 1 {
            return Ok(());
        }
        Err(StoreError::Commit(Arc::new(std::io::Error::other("full"))))
    }

    fn try_again(&mut self) -> Option<std::io::Result<()>> {
        self.trials += 1;
        Some(if self.trials <= 2 { Err(std::io::Error::other("full")) } else { Ok(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_stays_closed_when_its_disk_is_good_again_and_says_so() {
    let store = opened(FullAtFirst::default());
    assert!(matches!(keep(&store, v("one"), "n1").await, Err(StoreError::Commit(_))));
    let failed = tokio::time::Instant::now();
    let again = tokio::time::timeout(std::time::Duration::from_secs(60), store.writable_again());
    again.await.unwrap();
    assert_eq!(failed.elapsed().as_secs(), 10, "two trials more, one each five seconds");
    assert!(!store.is_open());
    assert!(matches!(keep(&store, v("two"), "n1").await, Err(StoreError::Closed)));
    assert_eq!(homes(&store), 0);
}

#[tokio::test]
async fn a_commit_that_nobody_heard_of_is_found_at_the_next_start() {
    let memory = Memory::default();
    let store = opened(memory.crashing(Crash::After(1)));
    keep(&store, v("one"), "n1").await.unwrap();
    assert!(matches!(keep(&store, v("two"), "n1").await, Err(StoreError::Closed)));
    assert!(matches!(keep(&store, v("three"), "n1").await, Err(StoreError::Closed)));
    assert_eq!(homes(&store), 1);
    assert_eq!(homes(&opened(memory)), 2);
}

#[tokio::test]
async fn the_change_of_a_writer_who_left_is_made() {
    let (store, _) = counted();
    assert!(keep(&store, v("one"), "n1").now_or_never().is_none());
    keep(&store, v("two"), "n1").await.unwrap();
    assert_eq!(homes(&store), 2);
}

#[tokio::test]
async fn what_is_read_was_committed() {
    let (store, _) = counted();
    let mut write = Box::pin(keep(&store, v("one"), "n1"));
    assert!(write.as_mut().now_or_never().is_none());
    assert_eq!(homes(&store), 0);
    write.await.unwrap();
    assert_eq!(homes(&store), 1);
}

/// Volumes and running creates at each node, counted one by one.
fn loads(kept: &Kept) -> HashMap<(DriverName, NodeName), u64> {
    let mut loads = HashMap::new();
    for change in kept.values() {
        let counted = match change {
            Change::Home(driver, Id::Volume(_), Some(home)) if !home.lost => {
                Some((driver, &home.node))
            }
            Change::Intent(driver, _, Some(intent)) if intent.made.is_none() => {
                Some((driver, &intent.node))
            }
            _ => None,
        };
        if let Some((driver, node)) = counted {
            *loads.entry((driver.clone(), node.clone())).or_default() += 1;
        }
    }
    loads
}

fn agree(state: &State, kept: &Kept) -> Result<(), TestCaseError> {
    let loads = loads(kept);
    for (driver, of) in state.drivers() {
        let load =
            |node: &NodeName| loads.get(&(driver.clone(), node.clone())).copied().unwrap_or(0);
        for node in (0..4).map(|n| format!("n{n}").parse().unwrap()) {
            prop_assert_eq!(of.load(&node), load(&node), "{} at {}", driver, node);
        }
        let mut sorted: Vec<_> = of.nodes().keys().map(|node| (load(node), node)).collect();
        sorted.sort();
        let sorted: Vec<_> = sorted.into_iter().map(|(_, node)| node).collect();
        prop_assert_eq!(of.by_load().collect::<Vec<_>>(), sorted);
    }
    Ok(())
}

fn make(txn: &mut Txn<'_>, change: &Change) {
    match change.clone() {
        Change::Home(driver, id, home) => txn.set_home(&driver, &id, home),
        // None is generated: `ended_homes` has the tests.
        Change::EndedHome(..) => {}
        Change::Intent(driver, name, intent) => txn.set_intent(&driver, &name, intent),
        Change::NodeDriver(driver, node, at) => txn.set_at(&driver, &node, at),
        Change::Node(name, node) => txn.set_node(&name, node),
        Change::Elected(driver, elected) => txn.set_elected(&driver, elected),
        Change::Lease(driver, id, own) => txn.set_lease(&driver, &id, own),
        Change::Epoch(last) => txn.set_epoch(last),
        // No transaction changes it.
        Change::LeaderEpoch(_) => {}
        Change::Start(start, record) => txn.set_start(start, record),
        Change::Profile(driver, profile) => txn.set_profile(&driver, profile),
        Change::Trust(change) => txn.set_trust(change),
    }
}

proptest! {
    #[test]
    fn loads_are_what_there_is(durable in vec(change(), 0..40), more in vec(change(), 0..40)) {
        let mut state = State::of(durable.clone());
        agree(&state, &expected(&durable))?;
        let mut txn = Txn::new(&state);
        more.iter().for_each(|change| make(&mut txn, change));
        let all = expected(&[durable, more].concat());
        for ((driver, node), load) in loads(&all) {
            prop_assert_eq!(txn.load(&driver, &node), load, "{} at {}", driver, node);
        }
        for change in txn.changes().0 {
            state.apply(change);
        }
        agree(&state, &all)?;
    }
}

#[tokio::test]
async fn secret_keys_are_made_once_and_outlive_a_restart() {
    let kept = Memory::default();
    let store = opened(kept.clone());
    let (one, other) = join(store.secrets(), store.secrets()).await;
    let one = one.unwrap();
    assert_eq!(one, other.unwrap());
    assert_eq!(opened(kept).secrets().await.unwrap(), one);
    let failing = opened(Memory::default().crashing(Crash::Before(0)));
    let failed = failing.secrets().await;
    let closed = matches!(failed, Err(SecretsError::Store(StoreError::Closed)));
    assert!(closed, "what is not durable is not used");
}
