//! Leases over a store, with the nodes of a driver.

use std::cell::Cell;
use std::collections::BTreeMap;

use prost::Message;
use proto::control::lease::{LeaseAction, Outcome, Request};
use proto::csi;
use proto::csi::Id;
use proto::csi::status::ToStatus;
use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};
use tonic::Code;

use crate::error::Error;
use crate::lease::attach::{check_delete, detached, is_in_use, reserve};
use crate::lease::decide::Step;
use crate::lease::holder_link::explain;
use crate::lease::mac::Granted;
use crate::lease::request::{LAST, MOST, handle};
use crate::lease::step::step;
use crate::nodes::links::Links;
use crate::state::clock::now;
use crate::state::ingest;
use crate::state::ingest::Deleted;
use crate::state::known::State;
use crate::state::policy::{Policy, Scope};
use crate::state::record::{Broken, Holder, Home, LeaseRecord, Node, NodeDriver};
use crate::state::store::memory::{Crash, Memory};
use crate::state::store::writer::Store;

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

fn volume() -> Id {
    Id::Volume("v".into())
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

struct World {
    store: Store,
    links: Links,
    tasks: Tasks,
}

impl World {
    /// Two nodes, whose ids at the driver are not their names.
    async fn new(memory: Memory) -> Self {
        Self::of_scope(memory, None).await
    }

    async fn of_scope(memory: Memory, scope: Option<Scope>) -> Self {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(memory), &tasks).unwrap();
        store.secrets().await.unwrap();
        let world = Self::over(store, tasks, scope);
        for node in ["n1", "n2"] {
            world.call(node, Some(&format!("id-{node}"))).await;
        }
        world
    }

    fn over(store: Store, tasks: Tasks, scope: Option<Scope>) -> Self {
        let policy = Policy { scope, ..Policy::new(None) };
        let links = Links::new(store.clone(), tasks.clone(), crate::lease::answer::answer)
            .scoped(&[(driver(), policy)].into());
        Self { store, links, tasks }
    }

    /// The same, of which the operator says that the store may be older.
    fn in_older_store(self) -> Self {
        Self::over(self.store.with_creates_held(true), self.tasks, None)
    }

    /// Sets the node's id at the driver.
    async fn call(&self, at: &str, node_id: Option<&str>) {
        let at = node(at);
        let node_id = node_id.map(str::to_owned);
        let info =
            node_id.map(|node_id| csi::NodeGetInfoResponse { node_id, ..Default::default() });
        let info = info.map(|info| info.encode_to_vec().into());
        self.store
            .write(move |txn| {
                txn.set_at(&driver(), &at, Some(NodeDriver { info, ..NodeDriver::default() }))
            })
            .await
            .unwrap();
    }

    /// Records a home at a node, with these parameters for csi-cloud; without a name it was
    /// discovered there.
    async fn home(&self, at: &str, name: Option<&str>, keys: &[&str]) {
        let parameters: BTreeMap<_, _> =
            keys.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect();
        let parameters = Some(parameters).filter(|ours| !ours.is_empty()).map(Box::new);
        let home = Home { name: name.map(Into::into), parameters, ..Home::at(node(at), 1) };
        self.store.write(|txn| txn.set_home(&driver(), &volume(), Some(home))).await.unwrap();
    }

    async fn attach(&self, node_id: &str) -> Result<(), Error> {
        reserve(&self.store, &self.links, (&driver(), &volume()), node_id, true).await
    }

    async fn attach_as_ordinary(&self, node_id: &str) -> Result<(), Error> {
        reserve(&self.store, &self.links, (&driver(), &volume()), node_id, false).await
    }

    async fn detach(&self, node_id: &str) {
        detached(&self.store, &driver(), &volume(), node_id.into()).await.unwrap();
    }

    async fn delete(&self) {
        let by = Deleted::Everywhere;
        ingest::deleted(&self.store, &driver(), &volume(), by).await.unwrap();
    }

    async fn say_of(&self, at: &str, volume: &str, step: LeaseAction) -> Outcome {
        let request = Request { id: 1, driver: driver(), volume: volume.into(), step };
        handle(&self.links, &node(at), request, || true, || {}).await.unwrap()
    }

    async fn say(&self, at: &str, step: LeaseAction) -> Outcome {
        self.say_of(at, "v", step).await
    }

    async fn ask(&self, at: &str) -> Outcome {
        self.say(at, LeaseAction::Ask { pod: "p".into() }).await
    }

    /// Without a MAC.
    async fn hold(&self, at: &str, epoch: u64) -> Outcome {
        self.say(at, LeaseAction::Hold { epoch, pod: "p".into(), mac: None }).await
    }

    async fn hold_with(&self, at: &str, epoch: u64, mac: &str) -> Outcome {
        self.say(at, LeaseAction::Hold { epoch, pod: "p".into(), mac: Some(mac.into()) }).await
    }

    fn mac(&self, of: &str, epoch: u64) -> String {
        let key = self.store.read(|state| state.trust().secrets().unwrap().leases.clone());
        Granted { node: &node(of), driver: &driver(), id: &volume(), epoch }.mac(&key)
    }

    /// A lease that csi-cloud granted.
    fn granted(&self, at: &str, epoch: u64) -> Outcome {
        Outcome::Held { epoch, mac: Some(self.mac(at, epoch)) }
    }

    async fn take_from(&self, at: &'static str) {
        self.store
            .write(move |txn| step(txn, &driver(), &volume(), &node(at), Step::Break))
            .await
            .unwrap();
    }

    /// How many volumes have a record of a lease.
    fn leases(&self) -> usize {
        self.store.read(|state| state.driver(&driver()).unwrap().leases().len())
    }

    fn record(&self) -> Option<LeaseRecord> {
        self.store.read(|state| state.driver(&driver())?.lease(&volume()).cloned())
    }

    fn holder(&self) -> Option<String> {
        Some(self.record()?.holder?.node.to_string())
    }

    fn attached(&self) -> Option<String> {
        Some(self.record()?.attached?.node.to_string())
    }
}

fn not_now(answer: Outcome) -> String {
    let Outcome::NotNow { why } = answer else { panic!("{answer:?}") };
    why
}

#[tokio::test]
async fn a_driver_calls_nodes_as_it_likes_and_an_unknown_one_is_its_own_to_refuse() {
    let world = World::new(Memory::default()).await;
    world.attach("id-n9").await.unwrap();
    assert_eq!(world.record(), None);
    world.attach("id-n1").await.unwrap();
    for other in ["id-n2", "id-n9", "n1"] {
        let refused = world.attach(other).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{other}");
        let text = refused.chain();
        assert!(
            text.contains("attached to node n1 since 20")
                && text.contains("csi-cloud volume release d.example v --node n1"),
            "{text}"
        );
    }
    assert!(matches!(world.ask("n2").await, Outcome::HeldElsewhere { .. }));
    world.detach("id-n2").await;
    assert_eq!(world.attached().as_deref(), Some("n1"));
    world.detach("").await;
    assert_eq!(world.record(), None);
    world.attach("id-n2").await.unwrap();
    world.detach("id-n2").await;
    assert_eq!(world.record(), None);
}

#[tokio::test]
async fn a_node_whose_name_has_changed_or_is_not_known_is_detached_all_the_same() {
    let world = World::new(Memory::default()).await;
    for (before, now, by) in [
        ("id-n1", Some("other"), "id-n1"),
        ("id-n1", Some("other"), "other"),
        ("id-n1", None, "id-n1"),
    ] {
        world.call("n1", Some(before)).await;
        world.attach(before).await.unwrap();
        world.ask("n1").await;
        world.call("n1", now).await;
        world.attach(before).await.unwrap();
        let refused = world.attach("id-n2").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{now:?}");
        world.detach(by).await;
        assert_eq!(
            (world.attached(), world.holder().as_deref()),
            (None, Some("n1")),
            "{now:?} {by}"
        );
        // Maybe the holder's own node: the driver has to refuse.
        if now.is_none() {
            world.attach(before).await.unwrap();
        }
        world.say("n1", LeaseAction::Release).await;
        world.detach("").await;
        assert_eq!(world.record(), None, "{now:?} {by}");
    }
}

#[tokio::test]
async fn who_asks_for_an_ordinary_volume_does_not_get_what_a_guest_has_elsewhere() {
    let world = World::new(Memory::default()).await;
    for node in ["id-n1", "id-n2"] {
        world.attach_as_ordinary(node).await.unwrap();
        assert_eq!(world.record(), None);
    }
    world.ask("n1").await;
    assert!(is_in_use(&world.store, &driver(), &volume()));
    let refused = world.attach_as_ordinary("id-n2").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    world.attach_as_ordinary("id-n1").await.unwrap();
    assert_eq!(world.attached().as_deref(), Some("n1"));
    world.detach("id-n1").await;
    // A revoked lease leaves the volume free.
    world.take_from("n1").await;
    assert!(!is_in_use(&world.store, &driver(), &volume()));
    world.attach_as_ordinary("id-n2").await.unwrap();
    assert_eq!(world.attached(), None);
}

#[tokio::test]
async fn of_several_nodes_that_a_driver_calls_alike_the_one_that_asks_is_the_owner() {
    let world = World::new(Memory::default()).await;
    world.call("n3", Some("id-n1")).await;
    world.attach("id-n1").await.unwrap();
    assert_eq!(world.record(), None);
    assert!(matches!(world.ask("n3").await, Outcome::Held { .. }));
    world.attach("id-n1").await.unwrap();
    let refused = world.attach("id-n2").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.chain().contains("node n3 has it"), "{}", refused.chain());
}

#[tokio::test]
async fn what_is_held_is_not_deleted_and_is_forgotten_with_the_volume() {
    let world = World::new(Memory::default()).await;
    world.attach("id-n1").await.unwrap();
    check_delete(&world.store, &world.links, &driver(), &volume()).unwrap();
    world.ask("n1").await;
    let refused = check_delete(&world.store, &world.links, &driver(), &volume()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.chain().contains("node n1 has it for pod p"), "{}", refused.chain());
    world.delete().await;
    assert_eq!(world.holder().as_deref(), Some("n1"), "the node says that it has it");
    world.take_from("n1").await;
    ingest::forget(&world.store, &driver(), &volume()).await.unwrap();
    assert!(matches!(world.hold("n1", 0).await, Outcome::Fenced { .. }), "nothing was deleted");
    assert_eq!(world.leases(), 1);
    world.delete().await;
    assert_eq!(world.leases(), 0);
}

#[tokio::test]
async fn an_epoch_is_given_once_also_when_the_clock_goes_back_and_nothing_is_owned() {
    let memory = Memory::default();
    let world = World::new(memory.clone()).await;
    let far = now() + 1_000_000_000;
    world.store.write(move |txn| txn.set_epoch(far)).await.unwrap();
    assert_eq!(world.ask("n1").await, world.granted("n1", far + 1));
    world.say("n1", LeaseAction::Release).await;
    world.tasks.stop();
    let world = World::new(memory).await;
    let Outcome::Held { epoch, .. } = world.ask("n2").await else { panic!("refused") };
    assert!(epoch > far + 1, "{epoch}");
}

/// After an older store was put back the holder may not have linked yet, whoever asks.
/// Nobody knows what is durable when csi-cloud is killed during an answer. The node repeats its
/// request, and no other node held the volume in between.
#[tokio::test]
async fn a_cloud_that_is_killed_between_a_write_and_its_answer_is_asked_again() {
    // Commits 0 and 1 set up the world, but for its keys.
    for (crash, durable) in [(Crash::Before(2), false), (Crash::After(2), true)] {
        let memory = Memory::default();
        World::new(memory.clone()).await.tasks.stop();
        let world = World::new(memory.crashing(crash)).await;
        not_now(world.ask("n1").await);
        world.tasks.stop();
        let world = World::new(memory.clone()).await;
        let other = world.ask("n2").await;
        assert_eq!(matches!(other, Outcome::HeldElsewhere { .. }), durable, "{other:?}");
        let asker = if durable { "n1" } else { "n2" };
        assert!(matches!(world.ask(asker).await, Outcome::Held { .. }), "{crash:?}");
        world.tasks.stop();

        let world = World::new(memory.crashing(crash)).await;
        not_now(world.say(asker, LeaseAction::Release).await);
        world.tasks.stop();
        let world = World::new(memory).await;
        assert_eq!(world.holder().is_none(), durable, "{crash:?}");
        assert_eq!(world.say(asker, LeaseAction::Release).await, Outcome::Released);
        assert!(matches!(world.ask("n2").await, Outcome::Held { .. }));
        world.tasks.stop();
    }
}

#[tokio::test]
async fn nobody_speaks_of_what_it_cannot_have_or_on_a_link_that_is_gone() {
    let world = World::new(Memory::default()).await;
    assert!(not_now(world.ask("n7").await).contains("never had"));
    for step in [LeaseAction::Ask { pod: "p".into() }, LeaseAction::Release] {
        let long = not_now(world.say_of("n1", &"v".repeat(5000), step).await);
        assert!(long.contains("the id of a volume has 1 to"), "{long}");
    }
    let late = Request {
        id: 1,
        driver: driver(),
        volume: "v".into(),
        step: LeaseAction::Ask { pod: String::new() },
    };
    assert_eq!(handle(&world.links, &node("n1"), late, || false, || {}).await, None);
    assert_eq!(world.leases(), 0);
    // On a link that is there, the same is granted.
    assert!(matches!(world.ask("n1").await, Outcome::Held { .. }));
    assert_eq!(world.leases(), 1);
}

#[tokio::test]
async fn nobody_claims_what_lives_elsewhere_or_is_an_ordinary_volume() {
    for (scope, elsewhere) in [(Scope::Node, true), (Scope::Shared, false)] {
        let world = World::of_scope(Memory::default(), Some(scope)).await;
        world.home("n1", None, &[]).await;
        for said in [
            LeaseAction::Ask { pod: "p".into() },
            LeaseAction::Hold { epoch: 0, pod: "p".into(), mac: None },
        ] {
            let answer = world.say("n2", said).await;
            assert_eq!(matches!(answer, Outcome::Held { .. }), !elsewhere, "{answer:?}");
            if let Outcome::HeldElsewhere { why } | Outcome::NotNow { why } = answer {
                assert!(why.contains("lives at node n1") && why.contains("\"shared\""), "{why}");
            }
            world.say("n2", LeaseAction::Release).await;
        }
        assert!(matches!(world.ask("n1").await, Outcome::Held { .. }));
        let refused = world.ask("n2").await;
        assert!(
            matches!(&refused, Outcome::HeldElsewhere { why } if why.contains("node n1 has it")),
            "{refused:?}"
        );
        // The holder keeps its lease, wherever the home is recorded later.
        world.home("n2", None, &[]).await;
        assert!(matches!(world.hold("n1", 1).await, Outcome::Held { .. }));
    }
    // Where the driver says it is accessible too, for example in the same zone.
    for (zone, can) in [("z1", true), ("z2", false)] {
        let world = World::of_scope(Memory::default(), Some(Scope::Node)).await;
        let topology = csi::Topology { segments: [("zone".to_owned(), "z1".to_owned())].into() };
        let volume_of = csi::Volume { accessible_topology: vec![topology], ..Default::default() };
        let entry =
            csi::list_volumes_response::Entry { volume: Some(volume_of), ..Default::default() };
        let home = Home { entry: entry.encode_to_vec().into(), ..Home::at(node("n1"), 1) };
        let at = NodeDriver {
            segments: [std::sync::Arc::new(("zone".to_owned(), zone.to_owned()))].into(),
            ..NodeDriver::default()
        };
        let known = world.store.write(|txn| {
            txn.set_home(&driver(), &volume(), Some(home));
            txn.set_at(&driver(), &node("n2"), Some(at));
        });
        known.await.unwrap();
        // A node's word on its own zone does not make its word on the lease count.
        assert!(matches!(world.hold("n2", 0).await, Outcome::NotNow { .. }), "{zone}");
        assert_eq!(matches!(world.ask("n2").await, Outcome::Held { .. }), can, "{zone}");
    }
    for (scope, by_hand) in [(Scope::Shared, false), (Scope::Node, true)] {
        let world = World::of_scope(Memory::default(), Some(scope)).await;
        for (name, keys, can) in [
            (Some("pvc"), &[][..], by_hand),
            (Some("pvc"), &["edge-csi.io/other"], by_hand),
            (Some("pvc"), &[csi::direct::KEY], true),
            (None, &[], true),
        ] {
            world.home("n1", name, keys).await;
            let answer = world.ask("n1").await;
            assert_eq!(matches!(answer, Outcome::Held { .. }), can, "{answer:?}");
            world.say("n1", LeaseAction::Release).await;
        }
    }
}

#[tokio::test]
async fn a_node_has_only_so_many_volumes() {
    let world = World::new(Memory::default()).await;
    let fill = world.store.write(|txn| {
        for number in 0..MOST {
            let owner =
                Holder { node: node("n1"), epoch: 1, pod: "p".into(), since: 1, unproven: false };
            let own = LeaseRecord { holder: Some(owner), ..LeaseRecord::default() };
            txn.set_lease(&driver(), &Id::Volume(number.to_string()), Some(own));
        }
    });
    fill.await.unwrap();
    let times_full = Cell::new(0);
    for step in [
        LeaseAction::Ask { pod: "p".into() },
        LeaseAction::Hold { epoch: 0, pod: "p".into(), mac: None },
    ] {
        let request = Request { id: 1, driver: driver(), volume: "v".into(), step };
        let full = || times_full.set(times_full.get() + 1);
        let answer = handle(&world.links, &node("n1"), request, || true, full).await.unwrap();
        assert!(not_now(answer).contains("has 10000 volumes"));
    }
    assert_eq!(times_full.get(), 2);
    assert!(matches!(
        world.say_of("n1", "7", LeaseAction::Hold { epoch: 1, pod: "p".into(), mac: None }).await,
        Outcome::Held { .. }
    ));
    assert_eq!(world.say_of("n1", "7", LeaseAction::Release).await, Outcome::Released);
    assert!(matches!(world.ask("n1").await, Outcome::Held { .. }));
    assert!(matches!(world.say_of("n2", "8", LeaseAction::Release).await, Outcome::Released));
    assert_eq!(world.store.read(|state| state.held_by(&node("n1"))), MOST);
}

#[tokio::test]
async fn an_operator_is_told_what_to_do_about_each_kind_of_owner() {
    let world = World::new(Memory::default()).await;
    let owner = Holder { node: node("n1"), epoch: 1, pod: "p".into(), since: 1, unproven: false };
    let own = LeaseRecord {
        holder: Some(owner),
        broken: vec![Broken { node: node("n2"), epoch: 1 }],
        ..LeaseRecord::default()
    };
    let text = || explain(&driver(), &volume(), &own, &world.store, &world.links);
    assert!(text().contains("has no link: it lets go when it has linked"), "{}", text());
    let removed = Node { since: 1, removed: Some(1), ..Node::default() };
    world.store.write(|txn| txn.set_node(&node("n1"), Some(removed))).await.unwrap();
    assert!(text().contains("was removed, so it never says"), "{}", text());
}

#[tokio::test]
async fn a_pod_with_a_long_uid_gets_no_lease_and_its_node_is_set_apart() {
    let world = World::new(Memory::default()).await;
    let pod = "x".repeat(129);
    for step in
        [LeaseAction::Ask { pod: pod.clone() }, LeaseAction::Hold { epoch: 0, pod, mac: None }]
    {
        let Outcome::NotNow { why } = world.say("n1", step).await else { panic!("granted") };
        assert!(why.contains("129 bytes in the UID of a pod, and 128 is the quota"), "{why}");
    }
    assert_eq!(world.leases(), 0);
    assert!(world.store.why_apart(&node("n1"), &driver()).is_some());
}

mod words;
