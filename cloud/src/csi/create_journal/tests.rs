//! Intents, homes and quotas of creates.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use proto::csi::Method;
use proto::csi::status::ToStatus;
use proto::host::tasks::Tasks;
use tonic::Code;

use super::*;
use crate::state::quotas::Quotas;
use crate::state::record::{Change, Node, NodeDriver};
use crate::state::store::backend::Backend;
use crate::state::store::memory::Memory;

/// Lets n1 and n2 answer one create with the same id. Returns whether the second answer may be
/// given, and the home node.
async fn made_twice(is_shared: bool) -> (bool, NodeName) {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let id = Id::Volume("v".into());
    let journal = CreateJournal::new(driver.clone(), store.clone());
    let name = Id::Name(Method::CreateVolume, "pvc".into());
    let create = journal.begin(&name);
    let mut answered = true;
    for node in ["n1", "n2"] {
        let made = vec![Made { id: id.clone(), entry: Bytes::new(), source: None }];
        let node = node.parse().unwrap();
        answered = create.made(&node, made, CreateFacts::default(), is_shared).await.is_ok();
    }
    let home = store.read(|state| state.driver(&driver)?.home(&id).map(|home| home.node.clone()));
    (answered, home.unwrap())
}

#[tokio::test]
async fn what_is_kept_of_an_answer_does_not_keep_all_that_was_read_with_it() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let node = "n1".parse().unwrap();
    let journal = CreateJournal::new(driver.clone(), store.clone());
    let name = Id::Name(Method::CreateVolume, "pvc".into());
    let read = Bytes::from(vec![0; 64 * 1024]);
    let made = vec![Made { id: Id::Volume("v".into()), entry: read.slice(..8), source: None }];
    journal.begin(&name).made(&node, made, CreateFacts::default(), false).await.unwrap();
    let found = Id::Volume("found".into());
    crate::state::ingest::discovered(&store, &driver, &found, &node, read.slice(8..16))
        .await
        .unwrap();
    for id in [Id::Volume("v".into()), found] {
        let kept =
            store.read(|state| state.driver(&driver)?.home(&id).map(|home| home.entry.len()));
        assert_eq!(kept, Some(8));
    }
    assert!(read.is_unique());
}

#[tokio::test]
async fn a_create_in_doubt_does_not_move_with_its_node() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let journal = CreateJournal::new(driver.clone(), store.clone());
    let node = "n1".parse::<NodeName>().unwrap();
    let be = async |own: Option<&str>| {
        let (at, machine) = (node.clone(), own.map(MachineId::new));
        let record = Some(Node { since: 1, machine, ..Node::default() });
        store.write(move |txn| txn.set_node(&at, record)).await.unwrap();
    };
    let send = async |name: &str, is_shared| {
        let name = Id::Name(Method::CreateVolume, name.to_owned());
        let target = Target::OneOf(vec![node.clone()]);
        let create = journal.begin(&name);
        create.intend(target, &CreateFacts::default(), is_shared).await
    };
    be(None).await;
    assert_eq!(send("a", false).await.unwrap().machine, None, "an older csi-edge");
    be(Some("board")).await;
    let board = MachineId::new("board");
    for name in ["a", "b"] {
        assert_eq!(send(name, false).await.unwrap().machine, Some(board));
    }
    be(Some("spare")).await;
    for name in ["a", "b"] {
        let refused = send(name, false).await.err().unwrap().to_string();
        assert!(refused.contains("csi-cloud intent resolve"), "{refused}");
        assert!(refused.contains(&board.to_string()), "{refused}");
    }
    let spare = Some(MachineId::new("spare"));
    assert_eq!(send("b", true).await.unwrap().machine, spare, "a shared driver finds it");
    assert_eq!(send("c", false).await.unwrap().machine, spare);
    be(Some("board")).await;
    assert_eq!(send("a", false).await.unwrap().machine, Some(board), "the node is the same again");
}

#[tokio::test]
async fn an_id_that_was_made_under_one_name_is_not_made_under_another() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let journal = CreateJournal::new(driver.clone(), store.clone());
    let node = "n1".parse::<NodeName>().unwrap();
    let id = Id::Volume("v".into());
    let [first, second] = ["a", "b"].map(|name| Id::Name(Method::CreateVolume, name.to_owned()));
    let make = async |name: &Id| {
        let create = journal.begin(name);
        let target = Target::OneOf(vec![node.clone()]);
        let _ = create.intend(target, &CreateFacts::default(), false).await.unwrap();
        let made = vec![Made { id: id.clone(), entry: Bytes::new(), source: None }];
        create.made(&node, made, CreateFacts::default(), false).await
    };
    make(&first).await.unwrap();
    assert!(matches!(make(&second).await, Err(Error::NameTaken { .. })));
    make(&first).await.unwrap();
    let kept = store.read(|state| {
        let of = state.driver(&driver).unwrap();
        let made = of.intent(&second).unwrap().made.clone();
        (of.home(&id).unwrap().name.clone(), made)
    });
    assert_eq!(kept, (Some("a".into()), None));
}

#[tokio::test]
async fn only_what_a_shared_driver_made_may_be_made_again_from_another_node() {
    assert_eq!(made_twice(true).await, (true, "n2".parse().unwrap()));
    assert_eq!(made_twice(false).await, (false, "n1".parse().unwrap()));
}

/// The node that a create of this name is sent to, of n1 and n2, within these volumes of a
/// node.
async fn intended(store: &Store, name: &str, is_shared: bool) -> Result<NodeName, Error> {
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let journal = CreateJournal::new(driver, store.clone());
    let name = Id::Name(Method::CreateVolume, name.into());
    let nodes = ["n1", "n2"].map(|node| node.parse().unwrap()).into();
    let target = Target::OneOf(nodes);
    let attempt = journal.begin(&name).intend(target, &CreateFacts::default(), is_shared).await?;
    Ok(attempt.node)
}

#[tokio::test]
async fn a_full_node_gets_no_create_and_if_all_are_full_nothing_is_sent() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let store = store.with_quotas(Quotas { volumes: 1, ..Quotas::default() });
    let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|node| node.parse().unwrap());
    assert_eq!(intended(&store, "a", false).await.unwrap(), n1);
    assert_eq!(intended(&store, "b", false).await.unwrap(), n2);
    let error = intended(&store, "c", false).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.to_string().contains("1 is the quota of a node (volumes in"), "{error}");
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let intents = store.read(|state| state.driver(&driver).map(|of| of.intents().len()));
    assert_eq!(intents, Some(2), "an intent would keep the name at that node");
    // What was sent before goes on, and a shared driver's volumes belong to no node.
    assert_eq!(intended(&store, "a", false).await.unwrap(), n1);
    assert_eq!(intended(&store, "d", true).await.unwrap(), n1);
}

#[tokio::test]
async fn a_store_that_may_lack_creates_sends_none_but_those_of_a_shared_driver() {
    let store = open_store();
    assert_eq!(intended(&store, "a", false).await.unwrap().as_str(), "n1");
    let older = store.clone().with_creates_held(true);
    // The intent of "a" may be one that was refused since, so it proves nothing either.
    for name in ["a", "b"] {
        let error = intended(&older, name, false).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.to_string().contains("new_leases = false"), "{error}");
    }
    let driver = DRIVER.parse::<DriverName>().unwrap();
    let intents = store.read(|state| state.driver(&driver).map(|of| of.intents().len()));
    assert_eq!(intents, Some(1), "a name was kept");
    intended(&older, "c", true).await.unwrap();
    // The operator has looked at the claims.
    intended(&store, "b", false).await.unwrap();
}

const DRIVER: &str = "test.edge-csi.io";

fn open_store() -> Store {
    Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap()
}

fn journal(store: &Store) -> CreateJournal {
    CreateJournal::new(DRIVER.parse().unwrap(), store.clone())
}

fn one_of(names: &[&str]) -> Target {
    Target::OneOf(names.iter().map(|name| name.parse().unwrap()).collect())
}

fn pvc() -> Id {
    Id::Name(Method::CreateVolume, "pvc".into())
}

fn refusal(code: Code) -> Status {
    Status::new(code, "no")
}

/// The node and the attempts of the intent of `pvc`.
fn kept(store: &Store) -> Option<(String, Option<u32>)> {
    let driver = DRIVER.parse().unwrap();
    store.read(|state| {
        let intent = state.driver(&driver)?.intent(&pvc())?;
        Some((intent.node.to_string(), intent.attempts))
    })
}

async fn intend(create: &PendingCreate<'_>, target: Target) -> Attempt {
    create.intend(target, &CreateFacts::default(), false).await.unwrap()
}

#[tokio::test]
async fn a_name_is_free_when_every_attempt_was_refused_before_the_driver_got_it() {
    let store = open_store();
    let journal = journal(&store);
    let name = pvc();
    let first = journal.begin(&name);
    let second = journal.begin(&name);
    let one = intend(&first, one_of(&["n1"])).await;
    // It is at n1 meanwhile, whatever the plan of the second one was.
    let other = intend(&second, one_of(&["n2"])).await;
    assert_eq!(other.node.as_str(), "n1");
    assert_eq!(kept(&store), Some(("n1".into(), Some(2))));
    first.not_dispatched(one).await;
    assert_eq!(kept(&store), Some(("n1".into(), Some(1))), "the other may have arrived");
    second.not_dispatched(other).await;
    assert_eq!(kept(&store), None);
    let anew = intend(&second, one_of(&["n2"])).await;
    assert_eq!(anew.node.as_str(), "n2");
}

#[tokio::test]
async fn a_refusal_frees_no_name_of_which_another_attempt_has_begun() {
    let store = open_store();
    let journal = journal(&store);
    let name = pvc();
    let first = journal.begin(&name);
    let refused = intend(&first, one_of(&["n1"])).await;
    // The other one begins after the refusal was found to be the only call.
    let second = journal.begin(&name);
    drop(intend(&second, one_of(&["n1"])).await);
    assert!(!first.free((refused.since, 1)).await.unwrap());
    assert_eq!(kept(&store), Some(("n1".into(), Some(2))));
    drop(first);
    let last = intend(&second, one_of(&["n1"])).await;
    second.refused(&refusal(Code::ResourceExhausted), last).await.unwrap();
    assert_eq!(kept(&store), None);
}

#[tokio::test]
async fn calls_that_one_run_refused_free_their_name_in_any_order() {
    for is_second_first in [false, true] {
        let store = open_store();
        let journal = journal(&store);
        let name = pvc();
        let mut calls = Vec::new();
        for _ in 0..2 {
            let create = journal.begin(&name);
            let attempt = intend(&create, one_of(&["n1"])).await;
            calls.push((create, attempt));
        }
        if is_second_first {
            calls.reverse();
        }
        for (create, attempt) in calls {
            assert!(kept(&store).is_some(), "the other may yet be made");
            create.refused(&refusal(Code::ResourceExhausted), attempt).await.unwrap();
        }
        assert_eq!(kept(&store), None);
    }
}

#[tokio::test]
async fn a_refusal_beside_an_attempt_that_was_never_sent_frees_the_name_or_is_not_given() {
    for is_unsent_first in [false, true] {
        let store = open_store();
        let journal = journal(&store);
        let name = pvc();
        let [first, second] = [journal.begin(&name), journal.begin(&name)];
        let one = intend(&first, one_of(&["n1"])).await;
        let other = intend(&second, one_of(&["n1"])).await;
        if is_unsent_first {
            first.not_dispatched(one).await;
            drop(first);
            let error = second.refused(&refusal(Code::InvalidArgument), other).await.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable);
            let again = intend(&second, one_of(&["n1"])).await;
            second.refused(&refusal(Code::InvalidArgument), again).await.unwrap();
        } else {
            first.refused(&refusal(Code::InvalidArgument), one).await.unwrap();
            drop(first);
            second.not_dispatched(other).await;
        }
        assert_eq!(kept(&store), None);
    }
}

/// A store that refuses its second commit, as etcd does while it is full, and takes all others.
#[derive(Default)]
struct FullOnce(usize);

impl Backend for FullOnce {
    fn load(&mut self, _: &mut dyn FnMut(Change)) -> Result<(), StoreError> {
        Ok(())
    }

    fn commit(&mut self, _: &[Change]) -> Result<(), StoreError> {
        self.0 += 1;
        match self.0 {
            2 => Err(StoreError::Refused(Arc::new(std::io::Error::other("full")))),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn no_refusal_is_given_while_the_store_keeps_the_intent() {
    let store = Store::open(Box::<FullOnce>::default(), &Tasks::default()).unwrap();
    let journal = journal(&store);
    let name = pvc();
    let create = journal.begin(&name);
    let attempt = intend(&create, one_of(&["n1"])).await;
    let error = create.refused(&refusal(Code::InvalidArgument), attempt).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "its caller sends it again: {error}");
    assert_eq!(kept(&store), Some(("n1".into(), Some(1))));
    let again = intend(&create, one_of(&["n1"])).await;
    create.refused(&refusal(Code::InvalidArgument), again).await.unwrap();
    assert_eq!(kept(&store), None);
}

#[tokio::test]
async fn a_refusal_says_nothing_of_the_node_that_a_shared_drivers_create_has_left() {
    for lost_at in ["n1", "n2"] {
        let store = open_store();
        let journal = journal(&store);
        let name = pvc();
        let create = journal.begin(&name);
        let sent_to = async |node| {
            create.intend(one_of(&[node]), &CreateFacts::default(), true).await.unwrap()
        };
        // It hangs there, and may end as a volume.
        drop(sent_to(lost_at).await);
        for _ in 0..2 {
            let full = sent_to("n2").await;
            assert_eq!(full.node.as_str(), "n2");
            let refused = create.refused(&refusal(Code::ResourceExhausted), full).await;
            let code = refused.map_err(|error| error.code());
            let expected = if lost_at == "n1" { Err(Code::Unavailable) } else { Ok(()) };
            assert_eq!(code, expected, "after a final code nobody asks for the one at n1");
        }
        let is_kept = kept(&store) == Some(("n2".into(), None));
        assert_eq!(is_kept, lost_at == "n1", "{:?}", kept(&store));
    }
}

/// A node whose driver has this topology of its own.
fn at(node: &str) -> NodeDriver {
    use proto::csi;
    use proto::csi::plugin_capability::{Service, Type, service};

    let constrained = Service { r#type: service::Type::VolumeAccessibilityConstraints.into() };
    let has = csi::PluginCapability { r#type: Some(Type::Service(constrained)) };
    let plugin = csi::GetPluginCapabilitiesResponse { capabilities: vec![has] };
    let own = Segments::from([("d.example/node".to_owned(), node.to_owned())]);
    let topology = csi::Topology { segments: own.clone().into_iter().collect() };
    let info =
        csi::NodeGetInfoResponse { accessible_topology: Some(topology), ..Default::default() };
    let plugin = ("GetPluginCapabilities".to_owned(), plugin.encode_to_vec().into());
    NodeDriver {
        answers: Arc::new([plugin].into()),
        info: Some(info.encode_to_vec().into()),
        segments: own.into_iter().map(Arc::new).collect(),
        ..NodeDriver::default()
    }
}

#[tokio::test]
async fn each_attempt_asks_for_the_topology_of_its_node_alone_as_the_first_did() {
    let store = open_store();
    let reports = async |node: &str, topology: &str| {
        let driver: DriverName = DRIVER.parse().unwrap();
        let (node, at) = (node.parse().unwrap(), at(topology));
        store.write(move |txn| txn.set_at(&driver, &node, Some(at))).await.unwrap();
    };
    reports("n1", "n1").await;
    reports("n2", "n2").await;
    let journal = journal(&store);
    let asked = async |name: &str, is_shared, requests_topology| {
        let name = Id::Name(Method::CreateVolume, name.into());
        let create = journal.begin(&name);
        let facts = CreateFacts { requests_topology, ..CreateFacts::default() };
        let attempt = create.intend(one_of(&["n1"]), &facts, is_shared).await.unwrap();
        attempt.narrowed.map(|asked| asked["d.example/node"].clone())
    };
    assert_eq!(asked("a", false, true).await.as_deref(), Some("n1"));
    assert_eq!(asked("b", false, false).await, None, "none was requested");
    assert_eq!(asked("c", true, true).await, None, "it is all nodes' backend");
    // The node's topology is another one now, and the driver may be carrying out the first attempt.
    reports("n1", "moved").await;
    assert_eq!(asked("a", false, true).await.as_deref(), Some("n1"));
    assert_eq!(asked("d", false, true).await.as_deref(), Some("moved"));
    reports("n1", "n2").await;
    assert_eq!(asked("e", false, true).await, None, "it does not tell the nodes apart");
}

#[tokio::test]
async fn an_attempt_of_unknown_outcome_keeps_the_name_at_its_node() {
    let store = open_store();
    let journal = journal(&store);
    let name = pvc();
    // The first one was lost, as in a crash.
    drop(intend(&journal.begin(&name), one_of(&["n1"])).await);
    for _ in 0..3 {
        let again = journal.begin(&name);
        let attempt = intend(&again, Target::SentTo("n1".parse().unwrap())).await;
        assert_eq!(kept(&store), Some(("n1".into(), Some(2))));
        again.not_dispatched(attempt).await;
    }
    assert_eq!(kept(&store), Some(("n1".into(), Some(1))));
}

#[tokio::test]
async fn an_intent_of_an_older_csi_cloud_is_never_freed() {
    let store = open_store();
    let driver: DriverName = DRIVER.parse().unwrap();
    let node: NodeName = "n1".parse().unwrap();
    let older = Intent {
        node,
        since: 1,
        until: 0,
        made: None,
        claim: None,
        attempts: None,
        direct: None,
        narrowed: None,
        machine: None,
    };
    let written = store.write(move |txn| txn.set_intent(&driver, &pvc(), Some(older)));
    written.await.unwrap();
    let journal = journal(&store);
    let name = pvc();
    let again = journal.begin(&name);
    let attempt = intend(&again, Target::SentTo("n1".parse().unwrap())).await;
    again.not_dispatched(attempt).await;
    assert_eq!(kept(&store), Some(("n1".into(), None)));
}

#[tokio::test]
async fn all_attempts_of_a_name_are_made_by_one_decision() {
    let store = open_store();
    let journal = journal(&store);
    let name = pvc();
    let create = journal.begin(&name);
    let decided = async |direct| {
        let facts = CreateFacts { direct, ..CreateFacts::default() };
        create.intend(one_of(&["n1"]), &facts, false).await
    };
    let attempt = decided(Some(true)).await.unwrap();
    for other in [Some(false), None] {
        let error = decided(other).await.err().unwrap();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
    }
    let again = decided(Some(true)).await.unwrap();
    create.not_dispatched(attempt).await;
    create.not_dispatched(again).await;
    assert_eq!(kept(&store), None);
    let _ = decided(Some(false)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_taken_back_from_its_own_intent_only() {
    let store = open_store();
    let journal = journal(&store);
    let name = pvc();
    let create = journal.begin(&name);
    let late = intend(&create, one_of(&["n1"])).await;
    let made = vec![Made { id: Id::Volume("v".into()), entry: Bytes::new(), source: None }];
    create.made(&late.node, made, CreateFacts::default(), false).await.unwrap();
    let repeated = intend(&create, Target::SentTo("n1".parse().unwrap())).await;
    create.not_dispatched(repeated).await;
    assert_eq!(kept(&store), Some(("n1".into(), Some(1))), "it was made there");
    let driver = DRIVER.parse().unwrap();
    crate::state::ingest::deleted(
        &store,
        &driver,
        &Id::Volume("v".into()),
        crate::state::ingest::Deleted::Everywhere,
    )
    .await
    .unwrap();
    assert_eq!(kept(&store), None);
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    let anew = intend(&create, one_of(&["n2"])).await;
    create.not_dispatched(late).await;
    assert_eq!(kept(&store), Some(("n2".into(), Some(1))));
    create.not_dispatched(anew).await;
    assert_eq!(kept(&store), None);
}

/// What one caller of a name meets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Met {
    /// The edge refused it before the driver got it.
    Refused,
    /// Its outcome is lost.
    Lost,
}

proptest! {
    /// However attempts overlap: the name is free exactly if each was refused before dispatch.
    #[test]
    fn no_name_is_freed_that_a_driver_may_have(
        met in vec(prop_oneof![Just(Met::Refused), Just(Met::Lost)], 1..8),
        order in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let freed = runtime.block_on(async {
            let store = open_store();
            let journal = journal(&store);
            let name = pvc();
            let mut open = Vec::new();
            let mut bits = order;
            for met in &met {
                let create = journal.begin(&name);
                let attempt = intend(&create, one_of(&["n1"])).await;
                open.push((create, attempt, *met));
                if bits & 1 == 1 {
                    let at = usize::try_from(bits >> 1).unwrap_or(0) % open.len();
                    end(open.swap_remove(at)).await;
                }
                bits = bits.rotate_right(5);
            }
            for each in open {
                end(each).await;
            }
            kept(&store).is_none()
        });
        prop_assert_eq!(freed, met.iter().all(|met| *met == Met::Refused));
    }
}

async fn end((create, attempt, met): (PendingCreate<'_>, Attempt, Met)) {
    if met == Met::Refused {
        create.not_dispatched(attempt).await;
    }
}
