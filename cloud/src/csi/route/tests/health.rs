//! Nodes whose driver is not up, or that have been away for long.

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

fn of_node(name: &str) -> Segments {
    topology(&[("node", name)])
}

fn of_zone(name: &str) -> Segments {
    topology(&[("zone", name)])
}

#[test]
fn a_node_without_a_link_is_chosen_for_none_and_waited_for_if_it_is_the_one() {
    let world = World::default();
    assert_eq!(world.place(None, vec![topology(&[("zone", "b")])]), make(["n3"]));
    let n4 = topology(&[("node", "n4")]);
    assert_eq!(
        world.place(None, vec![n4.clone(), topology(&[("zone", "a")])]),
        Err(Unclear::Away(node("n4")))
    );
    // A create that was sent to a node goes nowhere else, even while the node has no link.
    let sent = World::with([intent(Method::CreateVolume, "pvc-1", "n4", 0, None)]);
    for topology in [vec![], vec![n4], vec![topology(&[("zone", "a")])]] {
        assert_eq!(sent.place(None, topology), again(Method::CreateVolume, "pvc-1", "n4"));
    }
    assert_eq!(sent.place(Some(volume("v1")), vec![]), again(Method::CreateVolume, "pvc-1", "n4"));
    let elsewhere = World::with([intent(Method::CreateVolume, "pvc-1", "out", 0, None)]);
    assert_eq!(elsewhere.place(None, vec![]), Err(Unclear::Removed(node("out"))));
}

#[test]
fn a_node_whose_driver_is_not_up_gets_nothing_new_while_another_may_have_it() {
    let mut world = World { down: vec!["n2"], ..World::default() };
    assert_eq!(world.place(None, vec![]), make(["n1", "n3"]));
    assert_eq!(world.place(None, vec![of_zone("a")]), make(["n1"]));
    assert_eq!(world.place(None, vec![of_node("n2"), of_zone("b")]), make(["n3"]));
    // If no other may have it, its edge decides.
    assert_eq!(world.place(None, vec![of_node("n2")]), make(["n2"]));
    assert_eq!(world.place(Some(volume("v1")), vec![]), make(["n1"]));
    world.down = vec!["n1", "n2", "n3"];
    assert_eq!(world.place(None, vec![]), make(["n2", "n1", "n3"]));
    assert_eq!(world.place(None, vec![of_zone("c"), of_zone("a")]), make(["n1", "n2"]));
    assert_eq!(world.place(Some(volume("v3")), vec![]), make(["n3"]), "only it has the source");
    world.placement = Placement::Pinned(node("n1"));
    assert_eq!(world.place(None, vec![]), make(["n1"]));
}

#[test]
fn a_claim_is_given_back_if_the_driver_of_its_node_is_down_for_long() {
    let world = World { down: vec!["n2"], reschedule: true, ..World::default() };
    assert_eq!(world.place(None, vec![of_node("n2")]), Err(Unclear::Down(node("n2"))));
    // Another one of the same topology, or of the next one, can do it.
    assert_eq!(world.place(None, vec![of_zone("a")]), make(["n1"]));
    assert_eq!(world.place(None, vec![of_node("n2"), of_zone("b")]), make(["n3"]));
    // What was sent there stays there.
    let sent = World {
        down: vec!["n2"],
        reschedule: true,
        ..World::with([intent(Method::CreateVolume, "pvc-1", "n2", 0, None)])
    };
    assert_eq!(sent.place(None, vec![of_node("n2")]), again(Method::CreateVolume, "pvc-1", "n2"));
}

#[test]
fn a_topology_whose_node_has_been_away_for_long_is_passed_over() {
    let mut world = World::default();
    let asked = || vec![of_node("n4"), of_zone("a")];
    assert_eq!(world.place(None, asked()), Err(Unclear::Away(node("n4"))), "it may be back");
    world.just_left = vec![];
    assert_eq!(world.place(None, asked()), make(["n1", "n2"]));
    assert_eq!(world.place(None, vec![of_node("n4")]), Err(Unclear::Away(node("n4"))));
    // A node whose driver is not up is better than one that is away.
    world.linked = vec!["n1"];
    world.down = vec!["n1"];
    assert_eq!(world.place(None, asked()), make(["n1"]));
    // Within a topology, a node that may be back is waited for before that.
    world.just_left = vec!["n2"];
    assert_eq!(world.place(None, asked()), Err(Unclear::Away(node("n2"))));
    // A node that is set apart is passed over too.
    let apart = World { apart: vec!["n3"], ..World::default() };
    assert_eq!(apart.place(None, vec![of_node("n3"), of_zone("a")]), make(["n1", "n2"]));
}

#[test]
fn what_was_sent_to_a_node_goes_there_however_its_driver_is() {
    let sent = World {
        down: vec!["n1"],
        ..World::with([intent(Method::CreateVolume, "pvc-1", "n1", 0, None)])
    };
    assert_eq!(sent.place(None, vec![of_zone("b")]), again(Method::CreateVolume, "pvc-1", "n1"));
    let home = sent.route(Method::ControllerExpandVolume, &Key::Home(volume("v1")));
    assert_eq!(home, to("n1"));
    let delete = sent.route(Method::DeleteVolume, &Key::Delete(volume("v1")));
    assert_eq!(delete, to("n1"));
}

proptest! {
    /// A create goes to the first topology with a node that can do it now, or that is waited for.
    #[test]
    fn a_create_goes_to_a_node_that_can_do_it_now(
        linked in subsequence(NODES.to_vec(), 0..=4),
        down in subsequence(NODES.to_vec(), 0..=4),
        apart in subsequence(NODES.to_vec(), 0..=4),
        just_left in subsequence(NODES.to_vec(), 0..=4),
        asked in subsequence(NODES.to_vec(), 0..=4).prop_shuffle(),
    ) {
        let just_left: Vec<_> =
            just_left.into_iter().filter(|node| !linked.contains(node)).collect();
        let world = World { linked, down, apart, just_left, ..World::default() };
        let is_free = |node: &str| world.linked.contains(&node) && !world.apart.contains(&node);
        let is_able = |node: &str| is_free(node) && !world.down.contains(&node);
        let is_waited_for =
            |node: &str| world.just_left.contains(&node) && !world.apart.contains(&node);
        let planned = world.place(None, asked.iter().map(|node| of_node(node)).collect());
        let nodes = match &planned {
            Ok(Plan::Create(_, nodes)) => nodes.clone(),
            Ok(plan) => panic!("{plan:?}"),
            Err(_) => Vec::new(),
        };
        prop_assert!(nodes.iter().all(|node| is_free(node.as_str())));
        if asked.is_empty() {
            let able = NODES.iter().filter(|node| is_able(node)).count();
            prop_assert!(able == 0 || nodes.len() == able);
            return Ok(());
        }
        let first = asked.iter().find(|node| is_able(node) || is_waited_for(node));
        match first {
            Some(first) if is_able(first) => prop_assert_eq!(planned, make([*first])),
            Some(first) => prop_assert_eq!(planned, Err(Unclear::Away(node(first)))),
            None => {
                let free = asked.iter().find(|node| is_free(node));
                prop_assert_eq!(nodes.first().map(NodeName::as_str), free.copied());
            }
        }
    }
}
