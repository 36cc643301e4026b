//! Keeps the ids without a home that nodes list before all nodes have been listed.
//!
//! One node's list is not enough for a home, because a liar could list another node's volume first.
//! So an id is kept only if each other node is known not to have it. Such a node was listed
//! completely before, or its list is here without the id. [`crate::state::home_claims`] has the
//! same rule for questions.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;

use parking_lot::{Mutex, MutexGuard};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::kind::ListKind;
use crate::state::home_claims::is_known_without;
use crate::state::known::State;

/// The first lists of one driver.
#[derive(Default)]
pub(super) struct FirstLists {
    lists: Mutex<Lists>,
    /// Woken when a list was added.
    added: Notify,
    hasher: RandomState,
}

#[derive(Default)]
struct Lists {
    /// The waiting ids of each node's last complete list, as hashes: there may be millions.
    nodes: HashMap<(NodeName, ListKind), Vec<u64>>,
    /// The nodes that list an id.
    claimants: HashMap<u64, Vec<NodeName>>,
    /// The nodes whose snapshots all have homes. For volumes the store knows it.
    without: Vec<NodeName>,
}

/// The reason why a listed id gets no home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// These nodes were not listed yet.
    Unknown(Vec<NodeName>),
    /// These nodes list the id too.
    Disputed(Vec<NodeName>),
    /// Labels select nodes, and are not known yet.
    Unlabelled,
    /// The store is new: until this time, in ms since 1970, other nodes may link.
    New(u64),
}

impl FirstLists {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }

    /// The other nodes that were not listed yet.
    pub(super) fn unknown(
        &self,
        state: &State,
        driver: &DriverName,
        node: &NodeName,
        kind: ListKind,
    ) -> Vec<NodeName> {
        let lists = self.lists();
        let is_known = |other: &NodeName, listed: u64| match kind {
            ListKind::Volumes if listed > 0 => true,
            ListKind::Snapshots if lists.without.contains(other) => true,
            ListKind::Volumes | ListKind::Snapshots => {
                lists.nodes.contains_key(&(other.clone(), kind))
            }
        };
        let others = state.members(driver).filter(|(other, _)| *other != node);
        let unknown = others.filter(|(other, at)| !is_known(other, at.listed));
        unknown.map(|(other, _)| other).chain(state.awaited(driver)).cloned().collect()
    }

    /// The other nodes whose waiting lists have an id.
    pub(super) fn claimants(
        &self,
        state: &State,
        driver: &DriverName,
        node: &NodeName,
        id: &Id,
    ) -> Vec<NodeName> {
        let lists = self.lists();
        let claimants = lists.claimants.get(&self.hasher.hash_one(id));
        let others = claimants.into_iter().flatten().filter(|other| *other != node);
        let driver = state.driver(driver);
        let lacks = |other: &NodeName| {
            driver.is_some_and(|driver| {
                driver.at(other).is_none() || is_known_without(driver, other, id)
            })
        };
        others.filter(|other| !lacks(other)).cloned().collect()
    }

    /// Notes the ids of a complete list that were not kept.
    pub(super) fn note(&self, node: &NodeName, kind: ListKind, held: &[Id]) {
        let mut lists = self.lists();
        lists.remove(node, kind);
        let hashes: Vec<_> = held.iter().map(|id| self.hasher.hash_one(id)).collect();
        for hash in &hashes {
            lists.claimants.entry(*hash).or_default().push(node.clone());
        }
        lists.nodes.insert((node.clone(), kind), hashes);
        drop(lists);
        self.added.notify_waiters();
    }

    /// Notes that all ids of a node have homes.
    pub(super) fn settled(&self, node: &NodeName, kind: ListKind) {
        let mut lists = self.lists();
        lists.remove(node, kind);
        if kind == ListKind::Snapshots && !lists.without.contains(node) {
            lists.without.push(node.clone());
        }
        drop(lists);
        self.added.notify_waiters();
    }

    /// Forgets the lists of a node.
    pub(super) fn forget(&self, node: &NodeName) {
        let mut lists = self.lists();
        lists.remove(node, ListKind::Volumes);
        lists.remove(node, ListKind::Snapshots);
        lists.without.retain(|without| without != node);
    }

    /// Waits until `is_met`, which is asked again after each list. Returns false if the time runs
    /// out.
    pub(super) async fn wait_until(&self, end: Instant, is_met: impl Fn() -> bool) -> bool {
        loop {
            let mut added = pin!(self.added.notified());
            added.as_mut().enable();
            if is_met() {
                return true;
            }
            if timeout_at(end, added).await.is_err() {
                return false;
            }
        }
    }
}

impl Lists {
    fn remove(&mut self, node: &NodeName, kind: ListKind) {
        for hash in self.nodes.remove(&(node.clone(), kind)).unwrap_or_default() {
            if let Some(claimants) = self.claimants.get_mut(&hash) {
                claimants.retain(|claimant| claimant != node);
                if claimants.is_empty() {
                    self.claimants.remove(&hash);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use proto::csi::Made;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::csi::lists::whole::{Recorded, WholeList};
    use crate::state::clock::now;
    use crate::state::quotas::Quotas;
    use crate::state::record::{Home, Node, NodeDriver};
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;
    use crate::state::trust::{Secrets, TrustChange};
    use crate::state::txn::Txn;

    struct World {
        store: Store,
        first_lists: Arc<FirstLists>,
    }

    fn driver() -> DriverName {
        "d.example".parse().unwrap()
    }

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    async fn world(nodes: &[&str]) -> World {
        let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
        let nodes: Vec<_> = nodes.iter().map(|node| name(node)).collect();
        let write = move |txn: &mut Txn<'_>| {
            for node in nodes {
                txn.set_node(&node, Some(Node { since: 1, ..Node::default() }));
                txn.set_at(&driver(), &node, Some(NodeDriver::default()));
            }
        };
        store.write(write).await.unwrap();
        World { store, first_lists: Arc::default() }
    }

    impl World {
        async fn record(&self, node: &NodeName, ids: &[&str], quotas: Quotas) -> Recorded {
            let made = |id: &&str| Made {
                id: Id::Volume((*id).to_owned()),
                entry: Bytes::from_static(b"\x0a\x00"),
                source: None,
            };
            let entries = ids.iter().map(made).collect();
            let kind = ListKind::Volumes;
            let since = self
                .store
                .read(|state| state.driver(&driver()).map_or(0, |driver| driver.changes()));
            let list = WholeList { kind, since, entries };
            let at = node.clone();
            let first = self.first_lists.clone();
            let write = move |txn: &mut Txn<'_>| list.record(txn, &driver(), &at, &quotas, &first);
            self.store.write(write).await.unwrap()
        }

        /// Records a node's list of volumes. Returns why its first id is held back.
        async fn list(&self, node: &str, ids: &[&str]) -> Option<Held> {
            let kind = ListKind::Volumes;
            let node = name(node);
            match self.record(&node, ids, Quotas::default()).await {
                Recorded::Held(held) => {
                    self.first_lists.note(&node, kind, &held.ids);
                    Some(held.why)
                }
                recorded => {
                    assert_eq!(recorded, Recorded::Complete);
                    self.first_lists.settled(&node, kind);
                    None
                }
            }
        }

        fn homes(&self) -> HashSet<(String, String)> {
            self.store.read(|state| {
                let homes = state.driver(&driver()).into_iter().flat_map(|of| of.homes());
                homes.map(|(id, home)| (id.text().into(), home.node.to_string())).collect()
            })
        }

        fn is_listed(&self, node: &str) -> bool {
            self.store
                .read(|state| state.driver(&driver()).unwrap().at(&name(node)).unwrap().listed > 0)
        }
    }

    fn unknown(nodes: &[&str]) -> Option<Held> {
        Some(Held::Unknown(nodes.iter().map(|node| name(node)).collect()))
    }

    fn at(homes: &[(&str, &str)]) -> HashSet<(String, String)> {
        homes.iter().map(|(id, node)| ((*id).to_owned(), (*node).to_owned())).collect()
    }

    #[tokio::test]
    async fn what_is_held_back_counts_for_the_quota() {
        let world = world(&["n1", "n2"]).await;
        let two = Quotas { volumes: 2, ..Quotas::default() };
        let held = world.record(&name("n1"), &["a", "b"], two).await;
        assert!(matches!(held, Recorded::Held(_)), "{held:?}");
        let over = world.record(&name("n1"), &["a", "b", "c"], two).await;
        let Recorded::Over(over) = over else { panic!("{over:?}") };
        assert_eq!(over.found, 3);
    }

    #[tokio::test]
    async fn what_another_node_may_have_is_kept_when_all_were_listed() {
        let world = world(&["n1", "n2", "n3"]).await;
        assert_eq!(world.list("n1", &["a"]).await, unknown(&["n2", "n3"]));
        assert!(world.homes().is_empty() && !world.is_listed("n1"));
        // An empty list needs nobody's word.
        assert_eq!(world.list("n2", &[]).await, None);
        assert!(world.is_listed("n2"));
        assert_eq!(world.list("n1", &["a"]).await, unknown(&["n3"]));
        assert_eq!(world.list("n3", &["c"]).await, None, "n1 and n2 do not list it");
        assert_eq!(world.list("n1", &["a"]).await, None);
        assert_eq!(world.homes(), at(&[("a", "n1"), ("c", "n3")]));
        assert!(world.is_listed("n1") && world.is_listed("n3"));
        // Later the list of each is known.
        assert_eq!(world.list("n2", &["b"]).await, None);
    }

    #[tokio::test]
    async fn before_labels_are_known_no_listed_id_gets_a_home() {
        let world = world(&["n1", "n2"]).await;
        world.store.set_awaits_labels(&driver(), true);
        assert_eq!(world.list("n1", &[]).await, None);
        assert_eq!(world.list("n2", &["a"]).await, Some(Held::Unlabelled));
        assert!(world.homes().is_empty());
        world.store.set_awaits_labels(&driver(), false);
        assert_eq!(world.list("n2", &["a"]).await, None);
        assert_eq!(world.homes(), at(&[("a", "n2")]));
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_store_is_new_no_listed_id_gets_a_home() {
        let world = world(&["n1"]).await;
        let secrets = Secrets { begun: now() / 1000, ..Secrets::generate().unwrap() };
        let begin = move |txn: &mut Txn<'_>| txn.set_trust(TrustChange::Secrets(secrets));
        world.store.write(begin).await.unwrap();
        let held = world.list("n1", &["a"]).await;
        assert!(matches!(held, Some(Held::New(from)) if from > now()), "{held:?}");
        assert!(world.homes().is_empty() && !world.is_listed("n1"));
        tokio::time::advance(Duration::from_secs(601)).await;
        assert_eq!(world.list("n1", &["a"]).await, None);
        assert_eq!(world.homes(), at(&[("a", "n1")]));
        assert!(world.is_listed("n1"));
    }

    #[tokio::test]
    async fn of_two_nodes_that_list_an_id_first_none_gets_it() {
        let world = world(&["liar", "n1"]).await;
        assert_eq!(world.list("liar", &["a", "x"]).await, unknown(&["n1"]));
        let disputed = |other: &str| Some(Held::Disputed(vec![name(other)]));
        assert_eq!(world.list("n1", &["a", "b"]).await, disputed("liar"));
        assert_eq!(world.list("liar", &["a", "x"]).await, disputed("n1"));
        assert_eq!(world.homes(), at(&[("b", "n1"), ("x", "liar")]));
        assert!(!world.is_listed("n1") && !world.is_listed("liar"));
        // The operator says whose it is.
        let home = Home::at(name("n1"), 1);
        let adopt = move |txn: &mut Txn<'_>| {
            txn.set_home(&driver(), &Id::Volume("a".into()), Some(home));
        };
        world.store.write(adopt).await.unwrap();
        assert_eq!(world.list("liar", &["a", "x"]).await, None);
        assert_eq!(world.list("n1", &["a", "b"]).await, None);
        assert_eq!(world.homes(), at(&[("a", "n1"), ("b", "n1"), ("x", "liar")]));
        assert!(world.is_listed("n1"));
    }

    #[tokio::test]
    async fn a_claim_that_is_taken_back_disputes_nothing() {
        let world = world(&["liar", "n1"]).await;
        assert_eq!(world.list("liar", &["a"]).await, unknown(&["n1"]));
        world.first_lists.forget(&name("liar"));
        assert_eq!(world.list("n1", &["a"]).await, unknown(&["liar"]));
        assert_eq!(world.list("liar", &[]).await, None);
        assert_eq!(world.list("n1", &["a"]).await, None);
        assert_eq!(world.homes(), at(&[("a", "n1")]));
    }
}
