//! What a home gets that is its own node's word alone.

use proto::csi::topology::NODE_SEGMENT;

use super::*;
use crate::state::affinity::{Affinity, VolumeFacts};

/// A home of this id at n1, which nobody but n1 knows of.
fn claimed(id: &Id) -> Change {
    Change::Home(driver(), id.clone(), Some(Home::at(node("n1"), 0)))
}

fn world(id: &Id) -> World {
    World::with([claimed(id), named("n1"), named("n2")])
}

/// This node, with our segment.
fn named(name: &str) -> Change {
    let segment = Arc::new((NODE_SEGMENT.to_owned(), name.to_owned()));
    let at = NodeDriver { segments: [segment].into(), ..NodeDriver::default() };
    Change::NodeDriver(driver(), node(name), Some(at))
}

fn with_secrets() -> std::collections::HashMap<String, String> {
    [("key".to_owned(), "secret".to_owned())].into()
}

fn attach(has_secrets: bool) -> Vec<u8> {
    let secrets = if has_secrets { with_secrets() } else { Default::default() };
    csi::ControllerPublishVolumeRequest { secrets, ..Default::default() }.encode_to_vec()
}

fn pv_at(name: &str) -> VolumeAnswer {
    let term = [(NODE_SEGMENT.to_owned(), name.to_owned())].into();
    VolumeAnswer::Known(vec![VolumeFacts {
        affinity: Some(Affinity::new(vec![term])),
        ..VolumeFacts::default()
    }])
}

fn why(plan: Result<Plan, Unclear>) -> String {
    match plan {
        Err(Unclear::Yet(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn to_n1() -> Result<Plan, Unclear> {
    Ok(Plan::Node(node("n1")))
}

#[test]
fn a_call_with_secrets_needs_a_home_that_somebody_else_confirms() {
    let id = volume("claimed");
    let key = Key::Home(id.clone());
    let mut world = world(&id);
    world.request = attach(true);
    let method = Method::ControllerPublishVolume;
    for (said, words) in [
        (VolumeAnswer::Unknown, "no PersistentVolume has it"),
        (VolumeAnswer::Silent, "Kubernetes cannot be asked"),
        (pv_at("n2"), "does not say the same"),
    ] {
        world.kubernetes = [("claimed".to_owned(), said)].into();
        let why = why(world.route(method, &key));
        assert!(why.contains(words) && why.contains("volume adopt"), "{why}");
        world.request = attach(false);
        assert_eq!(world.route(method, &key), to_n1(), "without secrets it goes");
        world.request = attach(true);
    }
    world.kubernetes = [("claimed".to_owned(), pv_at("n1"))].into();
    assert_eq!(world.route(method, &key), to_n1());
    world.kubernetes.clear();
    world.changes.push(home(&id, "n1"));
    assert_eq!(world.route(method, &key), to_n1(), "adopted");
}

#[test]
fn nothing_is_copied_from_what_only_its_node_says_that_it_has() {
    let id = volume("claimed");
    let key = Key::Snapshot { name: "s".into(), volumes: vec![volume("v1"), id.clone()] };
    let mut world = world(&id);
    let why = why(world.route(Method::CreateSnapshot, &key));
    assert!(why.contains("nothing is copied"), "{why}");
    world.kubernetes = [("claimed".to_owned(), pv_at("n1"))].into();
    let name = Id::Name(Method::CreateSnapshot, "s".into());
    let plan = Plan::Create(name, vec![node("n1")]);
    assert_eq!(world.route(Method::CreateSnapshot, &key), Ok(plan));
}

#[test]
fn a_volume_with_secrets_is_made_beside_a_confirmed_source_only() {
    let id = Id::Snapshot("claimed".into());
    let mut world = world(&id);
    let secrets = with_secrets();
    world.request = csi::CreateVolumeRequest { secrets, ..Default::default() }.encode_to_vec();
    let why = why(world.place(Some(id.clone()), Vec::new()));
    assert!(why.contains("snapshot \"claimed\""), "{why}");
    world.request.clear();
    assert!(matches!(world.place(Some(id), Vec::new()), Ok(Plan::Create(..))));
}

#[test]
fn a_delete_of_what_one_node_claims_goes_there_without_secrets() {
    let id = volume("claimed");
    let world = world(&id);
    let key = Key::Delete(id);
    assert_eq!(world.route(Method::DeleteVolume, &key), Ok(Plan::Claimed(node("n1"))));
}

/// No other node can have it, and the scope `shared` is the operator's word.
#[test]
fn the_only_node_a_front_of_its_own_and_a_shared_driver_get_all() {
    let id = volume("claimed");
    let key = Key::Home(id.clone());
    let method = Method::ControllerPublishVolume;
    let request = attach(true);
    let own = World { only: Some(node("n1")), request: request.clone(), ..world(&id) };
    assert_eq!(own.route(method, &key), to_n1());
    let shared = World { scope: Scope::Shared, request: request.clone(), ..world(&id) };
    assert!(!matches!(shared.route(method, &key), Err(Unclear::Yet(why)) if why.contains("only")));
    let alone = vec![at("n1", "a"), claimed(&id)];
    let alone = World { changes: alone, request, ..World::default() };
    assert_eq!(alone.route(method, &key), to_n1());
}

#[test]
fn while_other_nodes_may_link_the_only_one_is_asked_first() {
    let id = volume("old");
    let mut world = World { changes: vec![named("n1")], ..World::default() };
    for may_grow in [false, true] {
        world.may_grow = may_grow;
        let discover = || Ok(Plan::Discover(vec![id.clone()]));
        let home = world.route(Method::ControllerPublishVolume, &Key::Home(id.clone()));
        assert_eq!(home, if may_grow { discover() } else { to_n1() });
        let beside = world.place(Some(id.clone()), Vec::new());
        assert_eq!(beside.is_ok_and(|plan| plan == discover().unwrap()), may_grow);
        let deleted = world.route(Method::DeleteVolume, &Key::Delete(id.clone()));
        assert_eq!(deleted, to_n1(), "it rests on no home");
    }
}
