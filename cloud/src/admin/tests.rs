//! The admin commands, over a store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::admin::command::Command;
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::csi::{Id, Key, Method};
use proto::host::tasks::Tasks;
use proto::names::{DriverName, NodeName};
use tonic::Code;

use crate::admin::admin_state::AdminState;
use crate::admin::adopt_volume::AdoptVolume;
use crate::admin::forget_volume::ForgetVolume;
use crate::admin::intents::IntentsQuery;
use crate::admin::leases::{LeaseHolder, LeasesQuery};
use crate::admin::node_machine::AcceptNode;
use crate::admin::node_removal::{AdmitNode, RemoveNode};
use crate::admin::nodes::{NodeView, NodesQuery};
use crate::admin::page::Cursor;
use crate::admin::rebuild_homes::{GivenHome, RebuildHomes};
use crate::admin::release_volume::ReleaseVolume;
use crate::admin::resolve_intent::ResolveIntent;
use crate::admin::server;
use crate::admin::volumes::VolumesQuery;
use crate::lease::answer;
use crate::lease::decide::Step;
use crate::lease::step;
use crate::nodes::links::Links;
use crate::state::policy::Policy;
use crate::state::record::{Cordon, Home, Intent, Node, NodeDriver};
use crate::state::store::backend::Backend;
use crate::state::store::memory::Memory;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;
use crate::telemetry::ended::Outcome;

mod purge;
pub(crate) mod replicas;
mod trust;

/// The state of one driver, over an empty store.
pub(crate) fn admin_state(tasks: &Tasks) -> AdminState {
    admin_state_into(Box::new(Memory::default()), tasks)
}

/// Refuses a create for a claim, because its node has no link.
pub(crate) fn refuse(state: &AdminState, claim: &str, volume: &str, node: &str) {
    let ongoing = state.calls.clone().begin("CreateVolume", &driver(), 7.into());
    let running = ongoing.running();
    let (namespace, name) = claim.split_once('/').unwrap();
    running.is_for(namespace, name);
    running.is_about(&Key::Create {
        name: volume.into(),
        source: None,
        topology: Vec::new(),
        required: false,
    });
    running.refused_for(&node.parse().unwrap());
    let message = format!("node {node} has no link");
    ongoing.ended(&Outcome { code: Code::Unavailable, message });
}

/// The state of one driver.
pub(crate) fn admin_state_into(backend: Box<dyn Backend>, tasks: &Tasks) -> AdminState {
    admin_state_over(Store::open(backend, tasks).unwrap(), tasks)
}

/// The state of one driver, over a store.
pub(crate) fn admin_state_over(store: Store, tasks: &Tasks) -> AdminState {
    let links = Arc::new(Links::new(store.clone(), tasks.clone(), answer::answer));
    let policies = BTreeMap::from([(driver(), Policy::new(None))]);
    AdminState {
        store,
        links,
        calls: Arc::default(),
        policies,
        fronts: BTreeMap::new(),
        credentials: None,
        advertise: None,
        kubernetes: None,
        doctor: None,
        installation: None,
    }
}

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn volume(id: &str) -> Id {
    Id::Volume(id.into())
}

fn name(name: &str) -> Id {
    Id::Name(Method::CreateVolume, name.into())
}

fn cursor(id: &str) -> Option<Cursor> {
    Some(Cursor { driver: driver(), kind: "volume".into(), id: id.into() })
}

/// Two nodes, n1 with the volumes v0000… and n2 with w.
async fn filled(tasks: &Tasks, volumes: usize) -> AdminState {
    let admin = admin_state(tasks);
    let written = admin.store.write(move |txn| {
        for at in ["n1", "n2"].map(node) {
            txn.set_node(&at, Some(Node { since: 1, ..Node::default() }));
            txn.set_at(&driver(), &at, Some(NodeDriver::default()));
        }
        for number in 0..volumes {
            let id = volume(&format!("v{number:04}"));
            txn.set_home(&driver(), &id, Some(Home::at(node("n1"), 1)));
        }
        txn.set_home(&driver(), &volume("w"), Some(Home::at(node("n2"), 1)));
        txn.set_home(&driver(), &Id::Snapshot("s".into()), Some(Home::at(node("n2"), 1)));
        let intent = Intent {
            node: node("n1"),
            since: 1,
            until: 0,
            made: None,
            claim: None,
            attempts: None,
            direct: None,
            narrowed: None,
            machine: None,
        };
        txn.set_intent(&driver(), &name("open"), Some(intent.clone()));
        txn.set_intent(&driver(), &name("made"), Some(Intent { made: Some("w".into()), ..intent }));
    });
    written.await.unwrap();
    admin
}

fn remove(yes: bool) -> RemoveNode {
    RemoveNode { node: node("n1"), yes }
}

fn states(admin: &AdminState) -> Vec<(String, String)> {
    let page = admin.volumes(&VolumesQuery::default());
    page.items.into_iter().map(|volume| (volume.id, volume.state)).collect()
}

fn state(id: &str, state: &str) -> (String, String) {
    (id.into(), state.into())
}

#[tokio::test]
async fn a_list_of_any_length_comes_in_pages_that_neither_miss_nor_repeat() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 2500).await;
    let mut ids = Vec::new();
    let mut query = VolumesQuery { all: true, ..VolumesQuery::default() };
    let mut pages = 0;
    loop {
        let page = admin.volumes(&query);
        assert!(page.items.len() <= 1000);
        ids.extend(page.items.into_iter().map(|volume| volume.id));
        pages += 1;
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!((ids.len(), pages), (2502, 3));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 2502);
}

#[tokio::test]
async fn a_page_goes_on_where_the_last_one_ended_though_that_is_gone() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 3).await;
    let page = admin.volumes(&VolumesQuery { after: cursor("v0000x"), ..VolumesQuery::default() });
    let ids: Vec<_> = page.items.iter().map(|volume| volume.id.as_str()).collect();
    assert_eq!(ids, ["v0001", "v0002", "w"]);
    let of_node = |at: &str, after| {
        let page =
            admin.volumes(&VolumesQuery { node: Some(node(at)), after, ..VolumesQuery::default() });
        page.items.into_iter().map(|volume| volume.id).collect::<Vec<_>>()
    };
    assert_eq!(of_node("n2", None), ["w"]);
    assert_eq!(of_node("n1", cursor("v0000")), ["v0001", "v0002"]);
    let other = VolumesQuery { driver: "other.example".parse().ok(), ..VolumesQuery::default() };
    assert!(admin.volumes(&other).items.is_empty());
}

#[tokio::test]
async fn nodes_and_drivers_say_how_many_volumes_they_have() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 3).await;
    let nodes = admin.nodes(&NodesQuery::default()).items;
    let shown: Vec<_> =
        nodes.iter().map(|node| (node.name.as_str(), node.state.as_str(), node.volumes)).collect();
    assert_eq!(shown, [("n1", "away", 4), ("n2", "away", 1)], "an open create counts");
    let drivers = admin.drivers();
    assert_eq!((drivers[0].nodes, drivers[0].homes, drivers[0].intents_open), (2, 5, 1));
    assert_eq!((drivers[0].scope.as_str(), drivers[0].scope_inferred), ("node", true));
    assert!(admin.metrics().contains("edge_csi_intents_open{driver=\"d.example\"} 1"));
}

#[tokio::test]
async fn a_node_is_removed_only_when_that_is_meant_and_can_come_back() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let said = remove(false).carry_out(&admin).await.unwrap();
    assert!(!said.done && said.text.contains("--yes"), "{}", said.text);
    assert_eq!(states(&admin), [state("v0000", "ok"), state("w", "ok")]);

    assert!(remove(true).carry_out(&admin).await.unwrap().done);
    assert!(admin.store.read(|state| state.is_removed(&node("n1"))));
    assert_eq!(states(&admin), [state("v0000", "lost"), state("w", "ok")]);
    assert_eq!(admin.nodes(&NodesQuery::default()).items[0].state, "removed");

    assert!(AdmitNode { node: node("n1") }.carry_out(&admin).await.unwrap().done);
    assert_eq!(states(&admin), [state("v0000", "ok"), state("w", "ok")]);
    let unknown = RemoveNode { node: node("n9"), yes: true }.carry_out(&admin).await.unwrap_err();
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn a_node_moves_to_a_machine_by_an_operators_word_and_stays_removed() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let [board, spare] = ["board", "spare"].map(MachineId::new);
    let accept = |machine| accept_machine("n1", machine).carry_out(&admin);
    let shown = || admin.nodes(&NodesQuery::default()).items[0].machine;
    assert_eq!(shown(), None);
    let first = accept(board).await.unwrap();
    assert!(first.done && first.text.contains("any other one is refused"), "{}", first.text);
    assert!(remove(true).carry_out(&admin).await.unwrap().done);
    let moved = accept(spare).await.unwrap();
    for part in [format!("machine {board} is refused"), "1 creates there are open".into()] {
        assert!(moved.text.contains(&part), "{}", moved.text);
    }
    assert_eq!(shown(), Some(spare));
    assert!(admin.store.read(|state| state.is_removed(&node("n1"))));
    assert!(accept(spare).await.unwrap().text.contains("already"));
    let unknown = accept_machine("n9", board).carry_out(&admin).await;
    assert_eq!(unknown.unwrap_err().status, 404);
}

fn first_node(admin: &AdminState) -> NodeView {
    admin.nodes(&NodesQuery::default()).items.remove(0)
}

fn accept_machine(at: &str, machine: MachineId) -> AcceptNode {
    AcceptNode { node: node(at), machine: Some(machine), run: None }
}

#[tokio::test]
async fn of_two_csi_edges_that_are_alive_an_operator_accepts_one() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let [run, other] = [Run::begin(), Run::begin()];
    let accept = |machine, run| AcceptNode { node: node("n1"), machine, run }.carry_out(&admin);
    assert_eq!(accept(None, Some(run)).await.unwrap_err().status, 409, "it is not cordoned");
    assert_eq!(accept(None, None).await.unwrap_err().status, 400);
    let cordon = admin.store.write(move |txn| {
        let known = txn.node(&node("n1")).cloned().unwrap();
        let cordon = Cordon { alive: vec![run, other], refused: Vec::new() };
        txn.set_node(&node("n1"), Some(Node { cordon: Some(Box::new(cordon)), ..known }));
    });
    cordon.await.unwrap();
    assert_eq!(first_node(&admin).certificate_fault.as_deref(), Some("cordoned"));
    assert_eq!(first_node(&admin).cordoned_runs, [run, other]);
    let done = accept(None, Some(run)).await.unwrap();
    assert!(done.text.contains("1 creates there are open"), "{}", done.text);
    assert_eq!(first_node(&admin).certificate_fault, None);
    let known = admin.store.read(|state| state.node(&node("n1")).cloned()).unwrap();
    let accepted = Cordon { alive: Vec::new(), refused: vec![other] };
    assert_eq!(known.cordon.as_deref(), Some(&accepted));
    let open = admin.store.read(|state| {
        let intents = state.driver(&driver())?.intents();
        intents.values().find(|intent| intent.made.is_none()).cloned()
    });
    let elsewhere = MachineId::new(&other.to_string());
    assert_eq!(open.unwrap().machine.as_deref(), Some(&elsewhere), "it is not sent to this one");
}

fn resolve(name: &str, made: Option<&str>) -> ResolveIntent {
    let method = "CreateVolume".into();
    let made = made.map(str::to_owned);
    ResolveIntent { driver: driver(), method, name: name.into(), not_made: made.is_none(), made }
}

#[tokio::test]
async fn a_create_is_resolved_either_way_and_only_while_it_is_open() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    assert_eq!(admin.intents(&IntentsQuery::default()).items.len(), 1);
    assert_eq!(
        admin.intents(&IntentsQuery { all: true, ..IntentsQuery::default() }).items.len(),
        2
    );
    for (name, made, status) in [("made", None, 409), ("none", None, 404), ("open", Some("w"), 409)]
    {
        let refused = resolve(name, made).carry_out(&admin).await.unwrap_err();
        assert_eq!(refused.status, status, "{name}: {}", refused.text);
    }
    assert!(resolve("open", Some("new")).carry_out(&admin).await.unwrap().done);
    let home =
        admin.store.read(|state| state.driver(&driver())?.home(&volume("new")).cloned()).unwrap();
    assert_eq!((home.node, home.name.as_deref()), (node("n1"), Some("open")));
    assert!(admin.intents(&IntentsQuery::default()).items.is_empty());

    let admin = filled(&tasks, 0).await;
    assert!(resolve("open", None).carry_out(&admin).await.unwrap().done);
    assert!(
        admin.store.read(|state| state.driver(&driver())?.intent(&name("open")).cloned()).is_none()
    );
}

#[tokio::test]
async fn a_create_that_is_in_flight_is_not_resolved() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let ongoing = admin.calls.clone().begin("CreateVolume", &driver(), 1.into());
    let key =
        Key::Create { name: "open".into(), source: None, topology: Vec::new(), required: false };
    ongoing.running().is_about(&key);
    assert_eq!(resolve("open", None).carry_out(&admin).await.unwrap_err().status, 409);
    drop(ongoing);
    assert!(resolve("open", None).carry_out(&admin).await.unwrap().done);
}

#[tokio::test]
async fn only_what_is_lost_is_forgotten_without_force() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let forget = |id: &str, force| ForgetVolume {
        driver: driver(),
        kind: "volume".into(),
        id: id.into(),
        force,
    };
    assert_eq!(forget("v0000", false).carry_out(&admin).await.unwrap_err().status, 409);
    assert!(forget("w", true).carry_out(&admin).await.unwrap().done);
    remove(true).carry_out(&admin).await.unwrap();
    assert!(forget("v0000", false).carry_out(&admin).await.unwrap().done);
    assert!(states(&admin).is_empty());
    assert_eq!(forget("v0000", false).carry_out(&admin).await.unwrap_err().status, 404);
}

fn release(id: &str, at: &str, yes: bool) -> ReleaseVolume {
    ReleaseVolume { driver: driver(), id: id.into(), node: node(at), yes }
}

#[tokio::test]
async fn a_volume_is_taken_from_its_owner_and_from_no_other_and_only_when_that_is_meant() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let own = |id: &'static str, held: Option<&'static str>| {
        let step = move |txn: &mut Txn<'_>| {
            let owner = Step::Attach("id-n1");
            step::step(txn, &driver(), &volume(id), &node("n1"), owner);
            if let Some(pod) = held {
                let ask = Step::Ask(pod);
                step::step(txn, &driver(), &volume(id), &node("n1"), ask);
            }
        };
        admin.store.write(step)
    };
    own("v0000", Some("p")).await.unwrap();
    own("by-hand", None).await.unwrap();
    let owners = |ask| admin.leases(&ask).items;
    let shown = owners(LeasesQuery::default());
    assert_eq!(shown.iter().map(|owner| &*owner.id).collect::<Vec<_>>(), ["by-hand", "v0000"]);
    let holder = &shown[1].holder;
    assert_eq!(
        (holder.holder_node.clone(), holder.holder_pod.as_deref()),
        (Some(node("n1")), Some("p"))
    );
    assert_eq!((shown[0].holder.holder_pod.as_deref(), shown[0].linked), (None, Some(false)));
    assert!(owners(LeasesQuery { node: Some(node("n2")), ..LeasesQuery::default() }).is_empty());
    let volumes = admin.volumes(&VolumesQuery::default()).items;
    assert_eq!(volumes[0].holder, *holder);
    assert_eq!(volumes[1].holder, LeaseHolder::default());

    for (id, at, status) in [("v0000", "n2", 409), ("w", "n1", 404), ("none", "n1", 404)] {
        for yes in [false, true] {
            let refused = release(id, at, yes).carry_out(&admin).await.unwrap_err();
            assert_eq!(refused.status, status, "{id} {}", refused.text);
        }
    }
    let said = remove(false).carry_out(&admin).await.unwrap();
    assert!(said.text.contains("1 volumes that one guest owns stay its own"), "{}", said.text);
    assert!(said.text.contains("1 direct volumes stay attached"), "{}", said.text);
    let said = release("v0000", "n1", false).carry_out(&admin).await.unwrap();
    assert!(
        !said.done && said.text.contains("pod p has it") && said.text.contains("--yes"),
        "{}",
        said.text
    );
    assert_eq!(owners(LeasesQuery::default()), shown);
    assert!(release("v0000", "n1", true).carry_out(&admin).await.unwrap().done);
    assert!(release("by-hand", "n1", true).carry_out(&admin).await.unwrap().done);
    let broken = owners(LeasesQuery::default());
    assert!(
        broken
            .iter()
            .all(|owner| owner.broken > holder.holder_epoch
                && owner.holder == LeaseHolder::default())
    );
    assert_eq!(release("v0000", "n1", true).carry_out(&admin).await.unwrap_err().status, 404);
}

#[tokio::test]
async fn homes_that_are_given_are_learned_and_the_first_one_stays() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let given = |at: &str, id: &str| GivenHome { driver: driver(), node: node(at), id: id.into() };
    let homes = Some(vec![given("n2", "of-before"), given("n3", "far away"), given("n1", "w")]);
    let said = RebuildHomes { homes, ..RebuildHomes::default() }.carry_out(&admin).await.unwrap();
    assert!(said.text.contains("3 homes") && said.text.contains("n3"), "{}", said.text);
    let expected = [
        state("far away", "ok"),
        state("of-before", "ok"),
        state("v0000", "ok"),
        state("w", "claimed"),
    ];
    assert_eq!(states(&admin), expected);
}

#[tokio::test]
async fn a_home_is_adopted_where_the_operator_says_and_another_one_stays() {
    let tasks = Tasks::default();
    let admin = filled(&tasks, 1).await;
    let adopt = |id: &str, at: &str| AdoptVolume {
        driver: driver(),
        kind: "volume".into(),
        id: id.into(),
        node: node(at),
    };
    // v0000 lives at n1, and n2 claims it too.
    let homes = Some(vec![GivenHome { driver: driver(), node: node("n2"), id: "v0000".into() }]);
    RebuildHomes { homes, ..RebuildHomes::default() }.carry_out(&admin).await.unwrap();
    assert_eq!(states(&admin)[0], state("v0000", "claimed"));
    for (id, at, status) in [("v0000", "n2", 409), ("new", "n9", 404), ("", "n1", 400)] {
        let refused = adopt(id, at).carry_out(&admin).await.unwrap_err();
        assert_eq!(refused.status, status, "{id} {}", refused.text);
    }
    assert!(adopt("v0000", "n1").carry_out(&admin).await.unwrap().done);
    assert!(adopt("new", "n2").carry_out(&admin).await.unwrap().done);
    let shown = admin.volumes(&VolumesQuery::default()).items;
    assert_eq!(shown.iter().find(|volume| volume.id == "new").unwrap().node, node("n2"));
    let first = shown.iter().find(|volume| volume.id == "v0000").unwrap();
    assert_eq!((first.node.clone(), first.claimed_by.len()), (node("n1"), 0));
}

#[tokio::test]
async fn what_is_no_command_is_refused_and_says_so() {
    let tasks = Tasks::default();
    let admin = admin_state(&tasks);
    assert_eq!(server::answer(&admin, "/nodes/remove", b"").await.unwrap_err().status, 404);
    assert_eq!(server::answer(&admin, "/node/remove", b"").await.unwrap_err().status, 400);
    assert_eq!(server::answer(&admin, "/volumes", b"[1").await.unwrap_err().status, 400);
    assert!(server::answer(&admin, "/volumes", b"").await.is_ok());
}
