//! Intents, homes and quotas of creates.

use proto::csi::Method;
use proto::csi::status::ToStatus;
use proto::host::tasks::Tasks;

use super::*;
use crate::state::quotas::Quotas;
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
async fn an_id_that_was_made_under_one_name_is_not_made_under_another() {
    let store = Store::open(Box::new(Memory::default()), &Tasks::default()).unwrap();
    let driver = "test.edge-csi.io".parse::<DriverName>().unwrap();
    let journal = CreateJournal::new(driver.clone(), store.clone());
    let node = "n1".parse::<NodeName>().unwrap();
    let id = Id::Volume("v".into());
    let [first, second] = ["a", "b"].map(|name| Id::Name(Method::CreateVolume, name.to_owned()));
    let make = async |name: &Id| {
        let create = journal.begin(name);
        create.intend(vec![node.clone()], &CreateFacts::default(), false).await.unwrap();
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
    journal.begin(&name).intend(nodes, &CreateFacts::default(), is_shared).await
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
