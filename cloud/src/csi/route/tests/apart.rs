//! Nodes that are set apart.

use super::*;
use crate::state::node_set::NodeSet;

#[test]
fn a_node_that_is_set_apart_gets_nothing_new_and_serves_what_it_has() {
    let world = World { apart: vec!["n3"], ..World::default() };
    let create = |topology: &[Segments]| Key::Create {
        name: "pvc".into(),
        source: None,
        topology: topology.to_vec(),
        required: true,
    };
    let name = Id::Name(Method::CreateVolume, "pvc".into());
    let at = |name: &str| topology(&[("node", name)]);
    // It is passed over, where another node may do.
    let spread = world.route(Method::CreateVolume, &create(&[]));
    let Ok(Plan::Create(_, nodes)) = spread else { panic!("{spread:?}") };
    assert!(!nodes.contains(&node("n3")), "{nodes:?}");
    let other = world.route(Method::CreateVolume, &create(&[at("n3")]));
    let apart = Unclear::Apart { node: node("n3"), why: "why".into(), was_sent: false };
    assert_eq!(other, Err(apart));
    // Its capacity counts 0.
    let capacity = world.route(Method::GetCapacity, &Key::Capacity(Some(at("n3"))));
    assert_eq!(capacity, Ok(Plan::Capacity(Vec::new())));
    // Its volumes are served, also for a snapshot, but no volume is made from them.
    let expand = world.route(Method::ControllerExpandVolume, &Key::Home(volume("v3")));
    assert_eq!(expand, Ok(Plan::Node(node("n3"))));
    let delete = world.route(Method::DeleteVolume, &Key::Delete(volume("v3")));
    assert_eq!(delete, Ok(Plan::Node(node("n3"))));
    let snapshot = Key::Snapshot { name: "s".into(), volumes: vec![volume("v3")] };
    let taken = Id::Name(Method::CreateSnapshot, "s".into());
    assert_eq!(
        world.route(Method::CreateSnapshot, &snapshot),
        Ok(Plan::Create(taken, vec![node("n3")]))
    );
    let clone = Key::Create {
        name: "pvc".into(),
        source: Some(volume("v3")),
        topology: Vec::new(),
        required: false,
    };
    assert!(matches!(
        world.route(Method::CreateVolume, &clone),
        Err(Unclear::Apart { was_sent: false, .. })
    ));
    // What was sent to it goes to no other node, and to it only if it made the volume.
    let sent = |made| World {
        apart: vec!["n3"],
        ..World::with([intent(Method::CreateVolume, "pvc", "n3", 0, made)])
    };
    let unknown = sent(None).route(Method::CreateVolume, &create(&[]));
    assert!(matches!(unknown, Err(Unclear::Apart { was_sent: true, .. })), "{unknown:?}");
    let made = sent(Some("v9")).route(Method::CreateVolume, &create(&[]));
    assert_eq!(made, Ok(Plan::CreateAgain(name, node("n3"))));
}

#[test]
fn while_the_nodes_are_not_known_only_what_has_a_home_has_a_node() {
    let world = World { uncounted: Some("not known"), ..World::default() };
    let of = |key: &Key| world.route(Method::DeleteVolume, key);
    assert_eq!(of(&Key::Delete(volume("v3"))), to("n3"));
    let keys = [Key::Delete(volume("?")), Key::Home(volume("?")), Key::All, Key::Capacity(None)];
    for key in &keys {
        assert!(reason(of(key)).contains("not known"), "{key:?}");
    }
    assert!(reason(world.place(Some(volume("?")), vec![])).contains("not known"));
    assert!(matches!(world.place(None, vec![]), Ok(Plan::Create(..))), "allowed by name");
    // The only node that is known may not be the only one.
    let changes = vec![at("n1", "a")];
    let alone = World { changes, uncounted: Some("not known"), ..World::default() };
    let deleted = alone.route(Method::DeleteVolume, &Key::Delete(volume("?")));
    assert!(reason(deleted).contains("not known"));
}

#[test]
fn only_controllers_carry_out_a_shared_drivers_calls() {
    let controllers = |names: &[&str]| {
        let names = names.iter().map(|name| name.parse().unwrap()).collect();
        Some(Controllers::Of(NodeSet::new(names)))
    };
    let elected = |controllers| World {
        scope: Scope::Shared,
        controllers,
        ..World::with([Change::Elected(driver(), Some(Elected::first(node("n3"))))])
    };
    let expand =
        |world: &World| world.route(Method::ControllerExpandVolume, &Key::Home(volume("v")));
    assert_eq!(expand(&elected(Some(Controllers::Any))), Ok(Plan::Node(node("n3"))));
    assert_eq!(expand(&elected(controllers(&["n3"]))), Ok(Plan::Node(node("n3"))));
    // It was elected before the operator named another one.
    let other = expand(&elected(controllers(&["n9"])));
    assert!(matches!(&other, Err(Unclear::Yet(why)) if why.contains("controllers")), "{other:?}");
}
