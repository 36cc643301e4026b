//! What edges and answers report is recorded, and what they may not report is not.

use proto::control::hello::Protobuf;
use proto::host::tasks::Tasks;

use super::*;
use crate::state::node_set::NodeSet;
use crate::state::policy::Policy;
use crate::state::quotas::Quotas;
use crate::state::store::memory::Memory;

fn hello(names: &[&str]) -> Vec<Driver> {
    let driver = |name: &&str| Driver {
        name: name.parse().unwrap(),
        answers: BTreeMap::new(),
        health: None,
    };
    names.iter().map(driver).collect()
}

#[tokio::test]
async fn a_driver_that_is_not_named_any_more_is_kept_and_marked_until_it_is_back() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let node = "n1".parse().unwrap();
    let gone = |name: &str| {
        let name = name.parse().unwrap();
        store.read(|state| state.driver(&name).unwrap().at(&node).unwrap().gone.is_some())
    };
    drivers(&store, &Authority::default(), &node, hello(&["a.example", "b.example"]))
        .await
        .unwrap();
    drivers(&store, &Authority::default(), &node, hello(&["b.example"])).await.unwrap();
    assert!(gone("a.example") && !gone("b.example"));
    drivers(&store, &Authority::default(), &node, hello(&["a.example", "b.example"]))
        .await
        .unwrap();
    assert!(!gone("a.example"));
}

#[tokio::test]
async fn a_nodes_half_alone_says_nothing_of_the_controller() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let node = "n1".parse().unwrap();
    let said = async |methods: &[Local], node_id: &str| {
        let info = csi::NodeGetInfoResponse { node_id: node_id.into(), ..Default::default() };
        let info = Protobuf(info.encode_to_vec().into());
        let plugin = csi::GetPluginInfoResponse { name: "a.example".into(), ..Default::default() };
        let plugin = Protobuf(plugin.encode_to_vec().into());
        let answer = |local: &Local| match local {
            Local::NodeInfo => (Method::answering(*local).name().to_owned(), info.clone()),
            _ => (Method::answering(*local).name().to_owned(), plugin.clone()),
        };
        let mut hello = hello(&["a.example"]);
        hello[0].answers = methods.iter().map(answer).collect();
        drivers(&store, &Authority::default(), &node, hello).await.unwrap();
        store.read(|state| state.driver(&"a.example".parse().unwrap()).unwrap().at(&node).cloned())
    };
    let half = said(&[Local::NodeInfo], "id-1").await.unwrap();
    assert!(half.answer(Local::NodeInfo).is_some() && !half.has_spoken());
    let whole = said(&[Local::Info, Local::NodeInfo], "id-1").await.unwrap();
    assert!(whole.has_spoken());
    let again = said(&[Local::NodeInfo], "id-2").await.unwrap();
    assert_eq!(again.answers, whole.answers, "what it said before is kept");
    assert_ne!(again.info, whole.info);
}

#[tokio::test]
async fn a_nodes_former_ids_are_kept_until_it_has_them_again() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let node = "n1".parse().unwrap();
    let former = async |node_id: &str| {
        let info = csi::NodeGetInfoResponse { node_id: node_id.into(), ..Default::default() };
        let info = Protobuf(info.encode_to_vec().into());
        let mut hello = hello(&["a.example"]);
        hello[0].answers = [(Method::answering(Local::NodeInfo).name().to_owned(), info)].into();
        drivers(&store, &Authority::default(), &node, hello).await.unwrap();
        store.read(|state| {
            let at = state.driver(&"a.example".parse().unwrap()).unwrap().at(&node).unwrap();
            at.former_ids.iter().map(ToString::to_string).collect::<Vec<_>>()
        })
    };
    assert_eq!(former("id-1").await, [""; 0]);
    assert_eq!(former("id-1").await, [""; 0], "it is the same id");
    assert_eq!(former("id-2").await, ["id-1"]);
    assert_eq!(former("id-1").await, ["id-2"]);
    assert_eq!(former("").await, ["id-2", "id-1"]);
    for n in 0..20 {
        former(&format!("many-{n}")).await;
    }
    assert_eq!(former("last").await.len(), MAX_FORMER_IDS);
    former(&"x".repeat(MAX_NODE_ID + 1)).await;
    assert_eq!(former("id-1").await.last().unwrap(), "last", "a driver may not have such an id");
}

#[tokio::test]
async fn a_groups_deletion_takes_no_snapshot_of_another_node() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver: DriverName = "a.example".parse().unwrap();
    let [n1, liar]: [NodeName; 2] = ["n1", "liar"].map(|name| name.parse().unwrap());
    let snapshot = |id: &str| Id::Snapshot(id.into());
    let names = |id: &str| csi::Snapshot { snapshot_id: id.into(), ..Default::default() };
    let group = csi::VolumeGroupSnapshot {
        snapshots: vec![names("of n1"), names("own")],
        ..Default::default()
    };
    let entry = csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group) };
    let of = driver.clone();
    let write = store.write(move |txn| {
        txn.set_home(&of, &snapshot("of n1"), Some(Home::at(n1, 1)));
        txn.set_home(&of, &snapshot("own"), Some(Home::at(liar.clone(), 1)));
        let entry = entry.encode_to_vec().into();
        let home = Home { entry, ..Home::at(liar, 1) };
        txn.set_home(&of, &Id::Group("g".into()), Some(home));
    });
    write.await.unwrap();
    deleted(&store, &driver, &Id::Group("g".into()), Deleted::At("liar".parse().unwrap()))
        .await
        .unwrap();
    let has = |id: &Id| store.read(|state| state.driver(&driver).unwrap().home(id).is_some());
    assert!(has(&snapshot("of n1")), "the group's node has no say about it");
    assert!(!has(&snapshot("own")) && !has(&Id::Group("g".into())));
}

#[tokio::test]
async fn nothing_is_kept_of_drivers_that_have_no_front_or_that_the_node_may_not_have() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver: DriverName = "a.example".parse().unwrap();
    let nodes = vec!["n1".parse().unwrap()];
    let policy = Policy { nodes: Some(NodeSet::new(nodes)), ..Policy::new(None) };
    let authority = Authority::new([(driver.clone(), policy)].into());
    let [n1, thief]: [NodeName; 2] = ["n1", "thief"].map(|name| name.parse().unwrap());
    let mut names = vec!["a.example".to_owned()];
    names.extend((0..200).map(|number| format!("invented-{number}.example")));
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for node in [&n1, &thief] {
        let unserved = drivers(&store, &authority, node, hello(&names)).await.unwrap();
        let first = &unserved[0].name;
        assert_eq!((unserved.len(), first.as_str()), (64, "invented-0.example"));
    }
    store.read(|state| {
        assert_eq!(state.drivers().len(), 1);
        let of = state.driver(&driver).unwrap();
        assert_eq!(of.nodes().keys().collect::<Vec<_>>(), [&n1]);
    });
    assert_eq!(store.why_apart(&thief, &driver), Some(Reason::NotAllowed));
    assert_eq!(store.why_apart(&n1, &driver), None);
}

#[tokio::test]
async fn a_node_that_may_not_have_a_driver_any_more_keeps_its_record_and_counts_for_nothing() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver: DriverName = "a.example".parse().unwrap();
    let n1: NodeName = "n1".parse().unwrap();
    drivers(&store, &Authority::default(), &n1, hello(&["a.example"])).await.unwrap();
    let members = |driver: &DriverName| {
        store.read(|state| state.driver(driver).map(|of| of.members().count()))
    };
    let policy = |patterns: &[&str]| {
        let nodes = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        Policy { nodes: Some(NodeSet::new(nodes)), ..Policy::new(None) }
    };
    Authority::new([(driver.clone(), policy(&["n2"]))].into()).apply(&store);
    assert_eq!(members(&driver), Some(0));
    assert_eq!(store.read(|state| state.driver(&driver).map(|of| of.nodes().len())), Some(1));
    assert_eq!(store.why_apart(&n1, &driver), Some(Reason::NotAllowed));
    Authority::new([(driver.clone(), policy(&["n*"]))].into()).apply(&store);
    assert_eq!((members(&driver), store.why_apart(&n1, &driver)), (Some(1), None));
}

#[tokio::test]
async fn what_was_found_by_its_id_has_that_id_in_lists_when_it_is_attached() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver = "test.edge-csi.io".parse().unwrap();
    let node = "n1".parse().unwrap();
    let id = Id::Volume("v".into());
    discovered(&store, &driver, &id, &node, Bytes::new()).await.unwrap();
    update(&store, &driver, &id, |entry| crate::state::list_entry::attach(entry, "n1"))
        .await
        .unwrap();
    let entry = store.read(|state| state.driver(&driver)?.home(&id).map(|home| home.entry.clone()));
    let entry = csi::list_volumes_response::Entry::decode(entry.unwrap()).unwrap();
    assert_eq!(entry.volume.unwrap().volume_id, "v");
    assert_eq!(entry.status.unwrap().published_node_ids, ["n1"]);
}

#[tokio::test]
async fn a_node_that_is_full_cannot_claim_more_and_is_set_apart() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let store = store.with_quotas(Quotas { volumes: 1, ..Quotas::default() });
    let driver = "test.edge-csi.io".parse().unwrap();
    let node = "n1".parse().unwrap();
    let claim = async |id: &str| {
        let id = Id::Volume(id.into());
        let said = FoundEntry { entry: Bytes::new(), since: 0, is_in_kubernetes: false };
        found(&store, &driver, &id, &node, said).await.unwrap()
    };
    assert_eq!((claim("a").await, claim("a").await), (FindOutcome::Home, FindOutcome::Home));
    assert_eq!(store.why_apart(&node, &driver), None);
    assert_eq!(claim("b").await, FindOutcome::Nothing);
    assert!(store.why_apart(&node, &driver).is_some());
    let homes = store.read(|state| state.driver(&driver).map(|of| of.homes().len()));
    assert_eq!(homes, Some(1));
    // An operator's word is not bounded.
    discovered(&store, &driver, &Id::Volume("c".into()), &node, Bytes::new()).await.unwrap();
    assert_eq!(store.read(|state| state.usage(&node).things), 2);
}

#[tokio::test]
async fn an_end_is_confirmed_if_the_home_was_or_an_earlier_end_there() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver: DriverName = "a.example".parse().unwrap();
    let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
    let ends = async |id: &str, node: &NodeName, adopted| {
        let id = Id::Volume(id.into());
        let home = Home { adopted, ..Home::at(node.clone(), 1) };
        let (of, volume) = (driver.clone(), id.clone());
        store.write(move |txn| txn.set_home(&of, &volume, Some(home))).await.unwrap();
        deleted(&store, &driver, &id, Deleted::At(node.clone())).await.unwrap();
        store.read(|state| state.driver(&driver)?.ended().get(&id).map(|of| of.confirmed))
    };
    assert_eq!(ends("claimed", &n1, false).await, Some(false));
    assert_eq!(ends("made", &n1, true).await, Some(true));
    assert_eq!(ends("made", &n1, false).await, Some(true), "claimed again by an older list");
    assert_eq!(ends("made", &n2, false).await, Some(false), "nobody else says it of n2");
}

/// The node was asked before the delete, and another one only answered after it.
#[tokio::test]
async fn a_claim_from_before_a_delete_makes_no_home() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver: DriverName = "a.example".parse().unwrap();
    let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
    let id = Id::Volume("v".into());
    let claim = async |node: &NodeName, since, is_in_kubernetes| {
        let said = FoundEntry { entry: Bytes::new(), since, is_in_kubernetes };
        found(&store, &driver, &id, node, said).await.unwrap()
    };
    assert_eq!(claim(&n1, 0, false).await, FindOutcome::Home);
    let since = store.read(|state| state.driver(&driver).unwrap().changes());
    deleted(&store, &driver, &id, Deleted::At(n2.clone())).await.unwrap();
    let home = || store.read(|state| state.driver(&driver)?.home(&id).map(|of| of.node.clone()));
    assert_eq!(home(), Some(n1.clone()), "n2 has no say about it");
    deleted(&store, &driver, &id, Deleted::At(n1.clone())).await.unwrap();
    assert_eq!(claim(&n1, since, false).await, FindOutcome::Nothing);
    let now = store.read(|state| state.driver(&driver).unwrap().changes());
    assert_eq!(claim(&n2, now, false).await, FindOutcome::EndedElsewhere(n1.clone()));
    assert_eq!(home(), None);
    assert_eq!(claim(&n1, now, false).await, FindOutcome::Home);
    deleted(&store, &driver, &id, Deleted::At(n1)).await.unwrap();
    let now = store.read(|state| state.driver(&driver).unwrap().changes());
    assert_eq!(claim(&n2, now, true).await, FindOutcome::Home, "Kubernetes says so");
    assert_eq!(home(), Some(n2));
    let (is_confirmed, ended) = store.read(|state| {
        let of = state.driver(&driver).unwrap();
        (of.home(&id).unwrap().is_confirmed(), of.ended().all().len())
    });
    assert!(!is_confirmed && ended == 1, "Kubernetes is asked anew before a delete");
}
