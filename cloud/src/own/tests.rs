//! Steps over a store, with the nodes that a driver has.

use proto::stop::Tasks;
use tonic::Code;

use super::*;
use crate::store::{At, Crash, Memory};

fn driver() -> DriverName {
    "d.example".parse().unwrap()
}

fn volume() -> Id {
    Id::Volume("v".into())
}

struct World {
    store: Store,
    links: Links,
    tasks: Tasks,
}

impl World {
    /// Two nodes, whose driver calls them by other names.
    async fn new(memory: Memory) -> Self {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(memory), &tasks).unwrap();
        let links = Links::new(store.clone(), tasks.clone());
        let written = store.write(|txn| {
            for node in ["n1", "n2"] {
                let info = csi::NodeGetInfoResponse { node_id: format!("id-{node}"), ..Default::default() };
                let at = At { info: Some(info.encode_to_vec().into()), ..At::default() };
                txn.set_at(&driver(), &node.parse().unwrap(), Some(at));
            }
        });
        written.await.unwrap();
        Self { store, links, tasks }
    }

    async fn attach(&self, node_id: &str) -> Result<(), Error> {
        attaching(&self.store, &self.links, &driver(), &volume(), node_id).await
    }

    async fn detach(&self, node_id: &str) {
        detached(&self.store, &driver(), &volume(), node_id.into()).await.unwrap();
    }

    async fn say(&self, node: &str, step: Said) -> Option<Answer> {
        let own = Own { id: 1, driver: driver(), volume: "v".into(), step };
        said(&self.store, &self.links, &node.parse().unwrap(), own, || true).await
    }

    async fn ask(&self, node: &str) -> Answer {
        self.say(node, Said::Ask { pod: "p".into() }).await.unwrap()
    }

    fn owner(&self) -> Option<String> {
        self.store.read(|state| owner(state, &driver(), &volume()).map(|owner| owner.node.to_string()))
    }
}

#[tokio::test]
async fn a_driver_calls_nodes_as_it_likes_and_an_unknown_one_is_its_own_to_refuse() {
    let world = World::new(Memory::default()).await;
    world.attach("id-n9").await.unwrap();
    assert_eq!(world.owner(), None);
    world.attach("id-n1").await.unwrap();
    for other in ["id-n2", "id-n9", "n1"] {
        let refused = world.attach(other).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{other}");
        let text = refused.chain();
        assert!(
            text.contains("attached to node n1 since 20")
                && text.contains("csi-cloud volume release d.example v"),
            "{text}"
        );
    }
    assert!(matches!(world.ask("n2").await, Answer::Anothers { .. }));
    world.detach("id-n2").await;
    assert_eq!(world.owner().as_deref(), Some("n1"));
    world.detach("").await;
    assert_eq!(world.owner(), None);
    world.attach("id-n2").await.unwrap();
    world.detach("id-n2").await;
    assert_eq!(world.store.read(|state| state.driver(&driver()).unwrap().owners().len()), 0);
}

#[tokio::test]
async fn of_several_nodes_that_a_driver_calls_alike_the_one_that_asks_is_the_owner() {
    let world = World::new(Memory::default()).await;
    let alike = world.store.write(|txn| {
        let at = txn.at(&driver(), &"n1".parse().unwrap()).cloned();
        txn.set_at(&driver(), &"n3".parse().unwrap(), at);
    });
    alike.await.unwrap();
    world.attach("id-n1").await.unwrap();
    assert_eq!(world.owner(), None);
    assert!(matches!(world.ask("n3").await, Answer::Held { .. }));
    world.attach("id-n1").await.unwrap();
    assert!(world.attach("id-n2").await.is_err());
}

#[tokio::test]
async fn what_is_held_is_not_deleted_and_is_forgotten_with_the_volume() {
    let world = World::new(Memory::default()).await;
    world.attach("id-n1").await.unwrap();
    may_be_deleted(&world.store, &world.links, &driver(), &volume()).unwrap();
    world.ask("n1").await;
    let refused = may_be_deleted(&world.store, &world.links, &driver(), &volume()).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.chain().contains("node n1 has it for pod p"), "{}", refused.chain());
    crate::learn::gone(&world.store, &driver(), &volume()).await.unwrap();
    assert_eq!(world.owner().as_deref(), Some("n1"), "the node says that it has it");
    assert_eq!(world.say("n1", Said::Release).await, Some(Answer::Released));
    crate::learn::gone(&world.store, &driver(), &volume()).await.unwrap();
    assert_eq!(world.store.read(|state| state.driver(&driver()).unwrap().owners().len()), 0);
}

#[tokio::test]
async fn an_epoch_is_given_once_also_when_the_clock_goes_back_and_nothing_is_owned() {
    let memory = Memory::default();
    let world = World::new(memory.clone()).await;
    let far = now() + 1_000_000_000;
    world.store.write(move |txn| txn.set_epoch(far)).await.unwrap();
    assert_eq!(world.ask("n1").await, Answer::Held { epoch: far + 1 });
    world.say("n1", Said::Release).await;
    world.tasks.stop();
    let world = World::new(memory).await;
    let Answer::Held { epoch } = world.ask("n2").await else { panic!("refused") };
    assert!(epoch > far + 1, "{epoch}");
}

#[tokio::test]
async fn what_is_not_durable_is_not_answered_as_if_it_were() {
    let memory = Memory::default();
    let world = World::new(memory.crashing(Crash::After(1))).await;
    assert!(matches!(world.ask("n1").await, Answer::NotNow { .. }));
    world.tasks.stop();
    // It may have become durable all the same: then it is the node's that asked, which asks again.
    let world = World::new(memory).await;
    assert!(matches!(world.ask("n2").await, Answer::Anothers { .. }));
    assert!(matches!(world.ask("n1").await, Answer::Held { .. }));
}

#[tokio::test]
async fn nobody_speaks_of_what_it_cannot_have_or_on_a_link_that_is_gone() {
    let world = World::new(Memory::default()).await;
    assert!(matches!(world.ask("n7").await, Answer::NotNow { why } if why.contains("never had")));
    let long = Own { id: 1, driver: driver(), volume: "v".repeat(5000), step: Said::Release };
    let node = "n1".parse().unwrap();
    let answer = said(&world.store, &world.links, &node, long, || true).await;
    assert!(matches!(answer, Some(Answer::NotNow { .. })));
    let late = Own { id: 1, driver: driver(), volume: "v".into(), step: Said::Ask { pod: String::new() } };
    assert_eq!(said(&world.store, &world.links, &node, late, || false).await, None);
    assert_eq!(world.owner(), None);
}
