//! Lists against a model: an entry that exists during a whole list appears in it exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use proto::csi;
use proto::csi::Id;
use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};

use super::first_lists::FirstLists;
use super::kind::{ENTRIES, ListKind};
use super::whole::{ListEnd, ListPage, Recorded, WholeList};
use super::{page, token};
use crate::state::known::State;
use crate::state::quotas::Quotas;
use crate::state::record::{Change, Home, Node, NodeDriver};
use crate::state::store::memory::Memory;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;
use crate::state::{ingest, list_entry};

mod excluded;
mod quotas;

const NODES: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    /// csi-cloud creates a volume at a node.
    Create(usize, u8),
    /// csi-cloud deletes a volume.
    Delete(u8),
    /// A volume appears at a node without a call.
    Appear(usize, u8),
    /// A volume vanishes at a node without a call.
    Vanish(usize, u8),
    /// A node begins its list.
    Begin(usize),
    /// The list is recorded.
    End(usize),
    /// A caller reads a page.
    Page(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let node = 0..NODES;
    let id = 0..12u8;
    let op = prop_oneof![
        (node.clone(), id.clone()).prop_map(|(node, id)| Op::Create(node, id)),
        id.clone().prop_map(Op::Delete),
        (node.clone(), id.clone()).prop_map(|(node, id)| Op::Appear(node, id)),
        (node.clone(), id).prop_map(|(node, id)| Op::Vanish(node, id)),
        node.clone().prop_map(Op::Begin),
        node.prop_map(Op::End),
        (1..5usize).prop_map(Op::Page),
    ];
    proptest::collection::vec(op, 0..80)
}

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

fn name(node: usize) -> NodeName {
    format!("n{node}").parse().unwrap()
}

/// An entry with a field that CSI does not have.
fn entry_of(id: &str) -> Bytes {
    let volume = csi::Volume { volume_id: id.into(), ..Default::default() };
    let entry = csi::list_volumes_response::Entry { volume: Some(volume), status: None };
    let mut entry = entry.encode_to_vec();
    csi::wire::append(&mut entry, &[777], b"newer");
    entry.into()
}

fn made(ids: impl IntoIterator<Item = String>) -> Vec<csi::Made> {
    let entries = ids.into_iter().map(|id| entry_of(&id));
    entries.map(|entry| ListKind::Volumes.read(&entry).unwrap().unwrap()).collect()
}

/// The ids of a page, and its token.
fn read(page: &[u8]) -> (Vec<String>, String) {
    let page = csi::ListVolumesResponse::decode(page).unwrap();
    let ids = page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id);
    (ids.collect(), page.next_token)
}

/// One listing by a caller.
#[derive(Default)]
struct Listing {
    token: String,
    seen: Vec<String>,
    /// The ids shown at its beginning and at every moment since.
    stayed: BTreeSet<String>,
}

struct World {
    store: Store,
    first_lists: Arc<FirstLists>,
    /// The ids at each node. No two nodes share an id.
    existing: [BTreeSet<String>; NODES],
    /// Created by csi-cloud, and neither deleted nor vanished since.
    created: BTreeSet<String>,
    /// Deleted by csi-cloud, and not there again.
    deleted: BTreeSet<String>,
    begun: [Option<WholeList>; NODES],
    listing: Option<Listing>,
}

impl World {
    fn id(node: usize, id: u8) -> String {
        format!("v{id}-{node}")
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Create(node, id) => self.create(node, Self::id(node, id)).await,
            Op::Delete(id) => {
                for node in 0..NODES {
                    self.delete(node, Self::id(node, id)).await;
                }
            }
            Op::Appear(node, id) => {
                let id = Self::id(node, id);
                self.deleted.remove(&id);
                self.existing[node].insert(id);
            }
            Op::Vanish(node, id) => {
                let id = Self::id(node, id);
                self.existing[node].remove(&id);
                self.created.remove(&id);
            }
            Op::Begin(node) => self.begun[node] = Some(self.list(node)),
            Op::End(node) => self.record(node).await,
            Op::Page(most) => self.page(most),
        }
        let shown = self.shown();
        if let Some(listing) = &mut self.listing {
            listing.stayed.retain(|id| shown.contains(id));
        }
        assert!(self.created.is_subset(&shown), "made here and not shown: {:?}", self.created);
        let homes = self.homes();
        assert!(
            self.deleted.is_disjoint(&homes),
            "deleted, and has a home again: {:?}",
            self.deleted
        );
    }

    async fn create(&mut self, node: usize, id: String) {
        self.existing[node].insert(id.clone());
        self.deleted.remove(&id);
        self.created.insert(id.clone());
        let home = Home { entry: entry_of(&id), ..Home::at(name(node), 1) };
        self.store
            .write(move |txn| txn.set_home(&driver(), &Id::Volume(id), Some(home)))
            .await
            .unwrap();
    }

    async fn delete(&mut self, node: usize, id: String) {
        self.existing[node].remove(&id);
        self.created.remove(&id);
        let volume = Id::Volume(id.clone());
        if self.homes().contains(&id) {
            ingest::deleted(&self.store, &driver(), &volume, ingest::Deleted::Everywhere)
                .await
                .unwrap();
            self.deleted.insert(id);
        }
    }

    fn list(&self, node: usize) -> WholeList {
        let since =
            self.store.read(|state| state.driver(&driver()).map_or(0, |driver| driver.changes()));
        WholeList { kind: ListKind::Volumes, since, entries: made(self.existing[node].clone()) }
    }

    /// Records a list as it streams in: two pages and the end, each a change of its own.
    async fn record(&mut self, node: usize) {
        let Some(list) = self.begun[node].take() else { return };
        let WholeList { kind, since, mut entries } = list;
        let ids = entries.iter().map(|entry| entry.id.clone()).collect();
        let second = entries.split_off(entries.len() / 2);
        let mut is_complete = true;
        for entries in [entries, second] {
            let page = ListPage { kind, since, entries };
            let first = self.first_lists.clone();
            let write = move |txn: &mut Txn<'_>| {
                page.record(txn, &driver(), &name(node), &Quotas::default(), &first)
            };
            is_complete &= self.store.write(write).await.unwrap() == Recorded::Complete;
        }
        let end = ListEnd { kind, since, ids, is_complete, held: None };
        self.store.write(move |txn| end.record(txn, &driver(), &name(node))).await.unwrap();
    }

    fn page(&mut self, most: usize) {
        let shown = self.shown();
        let mut listing = match self.listing.take() {
            Some(listing) => listing,
            None => Listing { stayed: shown, ..Listing::default() },
        };
        let after = (!listing.token.is_empty()).then(|| token::read(b'v', &listing.token).unwrap());
        let (ids, next) = self.read_page(after.as_deref(), most);
        assert!(ids.len() <= most);
        listing.seen.extend(ids);
        if next.is_empty() {
            let seen: BTreeSet<_> = listing.seen.iter().cloned().collect();
            assert_eq!(seen.len(), listing.seen.len(), "doubled: {:?}", listing.seen);
            assert!(listing.stayed.is_subset(&seen), "lost of {:?}: {:?}", listing.stayed, seen);
        } else {
            self.listing = Some(Listing { token: next, ..listing });
        }
    }

    fn read_page(&self, after: Option<&str>, most: usize) -> (Vec<String>, String) {
        let page = self
            .store
            .read(|state| page::page(state.driver(&driver()), ListKind::Volumes, after, most));
        read(&page)
    }

    fn shown(&self) -> BTreeSet<String> {
        self.read_page(None, 0).0.into_iter().collect()
    }

    fn homes(&self) -> BTreeSet<String> {
        self.store.read(|state| {
            let homes = state.driver(&driver()).map(|driver| driver.homes().keys());
            homes.into_iter().flatten().map(|id| id.text().to_owned()).collect()
        })
    }

    /// Whether a node's volumes were listed completely.
    fn is_listed(&self, node: usize) -> bool {
        self.store
            .read(|state| state.driver(&driver()).unwrap().at(&name(node)).unwrap().listed > 0)
    }
}

fn set_nodes(txn: &mut Txn<'_>) {
    for node in 0..NODES {
        txn.set_node(&name(node), Some(Node { since: 1, ..Node::default() }));
        txn.set_at(&driver(), &name(node), Some(NodeDriver::default()));
    }
}

/// Each node was listed, so that no id is held back.
fn first_lists() -> Arc<FirstLists> {
    let first_lists = FirstLists::default();
    (0..NODES).for_each(|node| first_lists.note(&name(node), ListKind::Volumes, &[]));
    first_lists.into()
}

async fn world(tasks: &Tasks) -> World {
    let store = Store::open(Box::new(Memory::default()), tasks).unwrap();
    store.write(set_nodes).await.unwrap();
    World {
        store,
        first_lists: first_lists(),
        existing: Default::default(),
        created: BTreeSet::new(),
        deleted: BTreeSet::new(),
        begun: Default::default(),
        listing: None,
    }
}

fn run(ops: Vec<Op>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks = Tasks::default();
        let mut world = world(&tasks).await;
        for op in ops {
            world.step(op).await;
        }
        // After a list of every node without later changes, all is correct.
        for node in 0..NODES {
            world.begun[node] = Some(world.list(node));
            world.record(node).await;
        }
        let existing: BTreeSet<_> = world.existing.iter().flatten().cloned().collect();
        assert_eq!(world.shown(), existing);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_stays_is_listed_once_while_volumes_come_and_go(ops in ops()) {
        run(ops);
    }
}

#[tokio::test]
async fn two_nodes_with_one_id_are_told_apart_and_the_first_keeps_it() {
    let world = world(&Tasks::default()).await;
    for node in [1, 0, 0] {
        let list =
            WholeList { kind: ListKind::Volumes, since: 0, entries: made(["same".to_owned()]) };
        let first = world.first_lists.clone();
        let write = move |txn: &mut Txn<'_>| {
            list.record(txn, &driver(), &name(node), &Quotas::default(), &first)
        };
        world.store.write(write).await.unwrap();
    }
    world.store.read(|state| {
        let home = state.driver(&driver()).unwrap().home(&Id::Volume("same".into())).unwrap();
        assert_eq!((&home.node, &*home.conflicts), (&name(1), &[name(0)][..]));
    });
    assert_eq!(world.shown(), BTreeSet::from(["same".to_owned()]));
}

#[tokio::test]
async fn a_list_that_is_known_changes_nothing_and_the_first_is_remembered() {
    let mut world = world(&Tasks::default()).await;
    world.existing[0].extend(["a".to_owned(), "b".to_owned()]);
    let mut changes = Vec::new();
    for _ in 0..2 {
        world.begun[0] = Some(world.list(0));
        world.record(0).await;
        changes.push(world.store.read(|state| state.driver(&driver()).unwrap().changes()));
    }
    assert_eq!(changes, [2, 2]);
    assert!(world.is_listed(0) && !world.is_listed(1));
}

#[tokio::test]
async fn nothing_is_recorded_of_a_node_that_was_removed_meanwhile() {
    let mut world = world(&Tasks::default()).await;
    world.existing[0].insert("a".to_owned());
    let list = world.list(0);
    let removed = Node { since: 1, removed: Some(2), ..Node::default() };
    world.store.write(move |txn| txn.set_node(&name(0), Some(removed))).await.unwrap();
    assert_eq!(record_within(&world.store, list, Quotas::default()).await, Recorded::NotCounted);
    assert_eq!((world.homes(), world.is_listed(0)), (BTreeSet::new(), false));
}

#[tokio::test]
async fn what_a_list_no_longer_has_is_not_shown_and_keeps_its_home() {
    let mut world = world(&Tasks::default()).await;
    for existing in [vec!["a", "b"], vec!["b"], vec!["a", "b"]] {
        world.existing[0] = existing.iter().map(|id| (*id).to_owned()).collect();
        world.begun[0] = Some(world.list(0));
        world.record(0).await;
        assert_eq!(world.shown(), world.existing[0]);
        assert_eq!(world.homes().len(), 2);
    }
}

/// The state with these homes.
fn with(homes: impl IntoIterator<Item = (Id, Home)>) -> State {
    State::of(homes.into_iter().map(|(id, home)| Change::Home(driver(), id, Some(home))))
}

fn first_page(state: &State, kind: ListKind, most: usize) -> Vec<u8> {
    page::page(state.driver(&driver()), kind, None, most)
}

#[test]
fn entries_are_as_they_came_and_each_kind_has_its_own() {
    let entry = entry_of("v");
    let volume = Home { entry: entry.clone(), ..Home::at(name(0), 1) };
    let lost = Home { lost: true, ..Home::at(name(1), 1) };
    let absent = Home { absent: true, ..Home::at(name(0), 1) };
    let state = with([
        (Id::Volume("v".into()), volume),
        (Id::Volume("w".into()), lost),
        (Id::Volume("x".into()), absent),
        (Id::Snapshot("s".into()), Home::at(name(0), 1)),
        (Id::Group("g".into()), Home::at(name(0), 1)),
    ]);
    let volumes = first_page(&state, ListKind::Volumes, 0);
    let first = csi::wire::fields(&volumes).next().unwrap().unwrap();
    assert_eq!((first.number, first.content), (ENTRIES, Some(&*entry)));
    assert_eq!(read(&volumes), (vec!["v".to_owned(), "w".to_owned()], String::new()));
    let snapshots =
        csi::ListSnapshotsResponse::decode(&*first_page(&state, ListKind::Snapshots, 0)).unwrap();
    let ids: Vec<_> =
        snapshots.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect();
    assert_eq!(ids, ["s"]);
}

#[test]
fn a_page_of_large_entries_fits_in_a_message_and_the_next_goes_on() {
    let context: BTreeMap<_, _> = [("padding".to_owned(), "x".repeat(1 << 20))].into();
    let homes = (0..7).map(|n| {
        let volume_context = context.clone().into_iter().collect();
        let volume =
            csi::Volume { volume_id: format!("v{n}"), volume_context, ..Default::default() };
        let entry = csi::list_volumes_response::Entry { volume: Some(volume), status: None };
        let home = Home { entry: entry.encode_to_vec().into(), ..Home::at(name(0), 1) };
        (Id::Volume(format!("v{n}")), home)
    });
    let state = with(homes);
    let mut after = None;
    let mut seen = Vec::new();
    loop {
        let page = page::page(state.driver(&driver()), ListKind::Volumes, after.as_deref(), 0);
        assert!(page.len() < 4 << 20);
        let (ids, next) = read(&page);
        seen.extend(ids);
        if next.is_empty() {
            break;
        }
        after = token::read(b'v', &next);
    }
    assert_eq!(seen, (0..7).map(|n| format!("v{n}")).collect::<Vec<_>>());
}

#[test]
fn a_page_that_ends_with_the_last_entry_has_no_next() {
    let state = with((0..4).map(|n| (Id::Volume(format!("v{n}")), Home::at(name(0), 1))));
    assert_eq!(read(&first_page(&state, ListKind::Volumes, 4)).1, "");
    assert_ne!(read(&first_page(&state, ListKind::Volumes, 3)).1, "");
    assert_eq!(read(&page::page(None, ListKind::Volumes, None, 0)), (Vec::new(), String::new()));
}

/// Adds a node that the volume is published to, in the status of an entry.
fn publish<E>(entry: &[u8]) -> Result<Vec<u8>, E> {
    let mut entry = entry.to_vec();
    csi::wire::append(&mut entry, &[2, 1], b"n9");
    Ok(entry)
}

/// How many nodes the volumes of a page are published to.
fn attached_to(page: &[u8]) -> usize {
    let page = csi::ListVolumesResponse::decode(page).unwrap();
    let statuses = page.entries.into_iter().filter_map(|entry| entry.status);
    statuses.map(|status| status.published_node_ids.len()).sum()
}

#[tokio::test]
async fn what_a_call_changed_since_is_newer_than_a_list() {
    let mut world = world(&Tasks::default()).await;
    world.create(0, "v".into()).await;
    world.begun[0] = Some(world.list(0));
    let volume = Id::Volume("v".into());
    ingest::update(&world.store, &driver(), &volume, publish).await.unwrap();
    world.record(0).await;
    let page = world.store.read(|state| first_page(state, ListKind::Volumes, 0));
    assert_eq!(attached_to(&page), 1, "the list undid it");
    // The next list replaces the entry again.
    world.begun[0] = Some(world.list(0));
    world.record(0).await;
    let page = world.store.read(|state| first_page(state, ListKind::Volumes, 0));
    assert_eq!(attached_to(&page), 0);
}

/// Records a list of the first node, and returns whether that is complete.
async fn record(store: &Store, list: WholeList) -> bool {
    record_within(store, list, Quotas::default()).await == Recorded::Complete
}

async fn record_within(store: &Store, list: WholeList, quotas: Quotas) -> Recorded {
    let first = first_lists();
    store.write(move |txn| list.record(txn, &driver(), &name(0), &quotas, &first)).await.unwrap()
}

#[tokio::test]
async fn a_list_older_than_a_call_about_what_has_no_home_is_asked_for_again() {
    let mut world = world(&Tasks::default()).await;
    let first = NodeDriver::default();
    world.store.write(move |txn| txn.set_at(&driver(), &name(0), Some(first))).await.unwrap();
    world.step(Op::Appear(0, 1)).await;
    let id = World::id(0, 1);
    let older = world.list(0);
    let attach = |entry: &[u8]| list_entry::attach(entry, "n9");
    ingest::update(&world.store, &driver(), &Id::Volume(id), attach).await.unwrap();
    assert!(!record(&world.store, older).await);
    assert_eq!(
        (world.homes(), world.is_listed(0)),
        (BTreeSet::new(), false),
        "it may be at no node, as if deleted"
    );
    assert!(record(&world.store, world.list(0)).await);
    assert_eq!((world.homes().len(), world.is_listed(0)), (1, true));
}

#[tokio::test]
async fn what_a_call_found_as_it_was_is_newer_than_a_list_too() {
    let mut world = world(&Tasks::default()).await;
    world.create(0, "v".into()).await;
    // The answer of an attachment was lost. Only the list shows it, after the detachment.
    let mut list = world.list(0);
    let entry = list_entry::attach(&list.entries[0].entry, "n9").unwrap();
    list.entries[0].entry = entry.into();
    world.begun[0] = Some(list);
    let detach = |entry: &[u8]| list_entry::detach(entry, "n9");
    ingest::update(&world.store, &driver(), &Id::Volume("v".into()), detach).await.unwrap();
    world.record(0).await;
    let page = world.store.read(|state| first_page(state, ListKind::Volumes, 0));
    assert_eq!(attached_to(&page), 0, "the list undid it");
}
