//! Whose word counts: leases with a MAC, and without one.

use crate::lease::tests::*;
use crate::state::older_store;

#[tokio::test]
async fn what_a_node_proves_of_epochs_counts_and_what_it_only_says_does_not() {
    let world = World::new(Memory::default()).await;
    let Outcome::Held { epoch, mac } = world.ask("n1").await else { panic!("refused") };
    assert_eq!(mac, Some(world.mac("n1", epoch)));
    let later = now() + 1_000_000_000;
    for mac in ["", "*", &world.mac("n1", later), &world.mac("n2", later - 1)] {
        let why = not_now(world.hold_with("n2", later, mac).await);
        for word in ["n2 cannot prove that this volume is its own", "node n1 has it"] {
            assert!(why.contains(word), "{why}");
        }
    }
    not_now(world.hold("n2", LAST).await);
    assert_eq!(world.holder().as_deref(), Some("n1"));
    assert!(world.store.read(State::epoch) < later, "an invented epoch moves no other");
    // An older copy was put back.
    let mac = world.mac("n2", later);
    assert_eq!(world.hold_with("n2", later, &mac).await, world.granted("n2", later));
    assert_eq!(world.store.read(State::epoch), later + 1);
    assert!(matches!(
        world.hold("n1", epoch).await,
        Outcome::Fenced { why } if why.contains("node n2 has it")
    ));
    for epoch in [u64::MAX, LAST + 1] {
        assert!(not_now(world.hold("n2", epoch).await).contains("never given"));
    }
    assert_eq!(world.hold("n2", LAST).await, world.granted("n2", later), "it is confirmed");
    assert!(not_now(world.ask("n2").await).contains("`csi-cloud store accept`"));
    assert_eq!(older_store::accept(&world.store).await.unwrap(), 1);
    assert_eq!(world.ask("n2").await, world.granted("n2", later + 2));
}

#[tokio::test]
async fn without_new_leases_nodes_keep_what_they_hold_and_get_no_more() {
    let world = World::new(Memory::default()).await;
    world.ask("n1").await;
    let world = world.in_older_store();
    for node in ["n1", "n2"] {
        assert!(not_now(world.ask(node).await).contains("new_leases = false"), "{node}");
    }
    let later = now() + 1_000_000;
    let mac = world.mac("n2", later);
    assert_eq!(world.hold_with("n2", later, &mac).await, world.granted("n2", later));
    assert_eq!(world.say("n2", LeaseAction::Release).await, Outcome::Released);
    not_now(world.ask("n2").await);
}

#[tokio::test]
async fn what_two_nodes_only_say_is_nobodys_and_an_operator_is_told() {
    let world = World::new(Memory::default()).await;
    assert_eq!(world.hold("n1", 7).await, Outcome::Held { epoch: 7, mac: None });
    let why = not_now(world.hold("n2", 9).await);
    for word in [
        "node n1 says that it has it",
        "node n2 says that it has it",
        "csi-cloud volume release d.example v --node n1",
        "--node n2",
    ] {
        assert!(why.contains(word), "{word} is not in {why}");
    }
    assert_eq!(world.holder(), None);
    assert!(matches!(
        world.ask("n3").await,
        Outcome::HeldElsewhere { .. } | Outcome::NotNow { .. }
    ));
    assert_eq!(world.attach("id-n1").await.unwrap_err().code(), Code::FailedPrecondition);
    let refused = check_delete(&world.store, &world.links, &driver(), &volume()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    world.take_from("n2").await;
    assert_eq!(world.hold("n1", 7).await, Outcome::Held { epoch: 7, mac: None });
    assert!(matches!(world.hold("n2", LAST).await, Outcome::Fenced { .. }));
    // Its next lease is a grant.
    assert_eq!(world.say("n1", LeaseAction::Release).await, Outcome::Released);
    assert!(matches!(world.ask("n1").await, Outcome::Held { mac: Some(_), .. }));
}
