//! Answers the lease requests on a link. The room `nodes` gets this function at wiring.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proto::control::lease::{Reply, Request};
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::names::NodeName;

use crate::lease::request;
use crate::nodes::handle::Handle;
use crate::nodes::links::Links;

/// Answers one request of an edge; none if the link is not its node's any more.
pub fn answer<'a>(
    links: &'a Links,
    node: &'a NodeName,
    handle: &'a Arc<Handle>,
    request: Request,
) -> BoxFuture<'a, Option<Reply>> {
    reply(links, node, handle, request).boxed()
}

async fn reply(
    links: &Links,
    node: &NodeName,
    handle: &Arc<Handle>,
    request: Request,
) -> Option<Reply> {
    let id = request.id;
    let link = handle.clone();
    let is_current = move || link.is_in_use();
    let on_full = || {
        if handle.note_full() {
            let most = request::MOST;
            peer_warn!(
                LogPeer::Node(node), %node, most,
                "a node has as many volumes as may be its own; more are refused it"
            );
        }
    };
    let outcome = request::handle(links, node, request, is_current, on_full).await?;
    Some(Reply { id, outcome })
}

#[cfg(test)]
mod tests {
    use futures_channel::mpsc;
    use proto::control::lease::{LeaseAction, Outcome};
    use proto::csi::Id;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::lease::holder_link::HolderLink;
    use crate::nodes::handle::Peer;
    use crate::nodes::lease_queue::LeaseQueue;
    use crate::state::record::NodeDriver;
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;

    struct World {
        links: Links,
        tasks: Tasks,
        node: NodeName,
    }

    impl World {
        async fn new() -> Self {
            let tasks = Tasks::default();
            let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
            let links = Links::new(store.clone(), tasks.clone(), answer);
            let node: NodeName = "n1".parse().unwrap();
            let at = node.clone();
            let known = move |txn: &mut crate::state::txn::Txn<'_>| {
                txn.set_at(&"d.example".parse().unwrap(), &at, Some(NodeDriver::default()));
            };
            store.write(known).await.unwrap();
            Self { links, tasks, node }
        }

        fn link(&self) -> Arc<Handle> {
            let handle =
                Arc::new(Handle::new(Peer::default(), mpsc::channel(1).0, self.tasks.child()));
            self.links.enter(&self.node, &handle);
            handle
        }

        fn is_held(&self) -> bool {
            let driver = "d.example".parse().unwrap();
            let id = Id::Volume("v".into());
            self.links
                .store()
                .read(|state| state.driver(&driver)?.lease(&id)?.holder.clone())
                .is_some()
        }
    }

    fn saying(id: u64, step: LeaseAction) -> Request {
        Request { id, driver: "d.example".parse().unwrap(), volume: "v".into(), step }
    }

    fn ask() -> LeaseAction {
        LeaseAction::Ask { pod: "p".into() }
    }

    #[tokio::test]
    async fn nothing_that_waits_on_a_link_is_heard_when_a_newer_one_has_replaced_it() {
        let world = World::new().await;
        let older = world.link();
        let mut late = LeaseQueue::new(&world.links, &world.node, &older);
        late.push(saying(1, LeaseAction::Release)).unwrap();
        let newer = world.link();
        let mut asking = LeaseQueue::new(&world.links, &world.node, &newer);
        asking.push(saying(1, ask())).unwrap();
        assert!(matches!(asking.next().await.outcome, Outcome::Held { .. }));
        // Queued later in the store, so the late request has had its turn by then.
        asking.push(saying(2, ask())).unwrap();
        tokio::select! {
            biased;
            answer = late.next() => panic!("answered {answer:?}"),
            answer = asking.next() => assert_eq!(answer.id, 2),
        }
        assert!(world.is_held(), "a word on the older link was taken for a later one");
    }

    #[tokio::test]
    async fn nothing_that_waits_is_heard_when_the_edge_has_said_goodbye() {
        let world = World::new().await;
        let link = world.link();
        let mut asking = LeaseQueue::new(&world.links, &world.node, &link);
        asking.push(saying(1, ask())).unwrap();
        assert!(matches!(asking.next().await.outcome, Outcome::Held { .. }));
        asking.push(saying(2, LeaseAction::Release)).unwrap();
        world.links.remove(&world.node, &link);
        // Queued later in the store, because the request is polled first.
        let behind = async { world.links.store().write(|_| ()).await };
        tokio::select! {
            biased;
            answer = asking.next() => panic!("answered {answer:?}"),
            done = behind => done.unwrap(),
        }
        assert!(world.is_held());
    }

    #[tokio::test]
    async fn a_node_stands_as_its_newest_link_says() {
        let world = World::new().await;
        let of = |removed| HolderLink::of(&world.node, removed, &world.links);
        assert_eq!((of(false), of(true)), (HolderLink::Away, HolderLink::Removed));
        let handle = Handle::new(Peer::default(), mpsc::channel(1).0, world.tasks.child());
        world.links.enter(&world.node, &Arc::new(handle));
        assert_eq!((of(false), of(true)), (HolderLink::Linked, HolderLink::Removed));
    }

    #[tokio::test]
    async fn a_node_that_has_as_many_as_it_may_is_refused_more_and_its_link_knows() {
        let world = World::new().await;
        let node = world.node.clone();
        let fill = world.links.store().write(move |txn| {
            for number in 0..request::MOST {
                let owner = crate::state::record::Holder {
                    node: node.clone(),
                    epoch: 1,
                    pod: "".into(),
                    since: 1,
                    unproven: false,
                };
                let own =
                    crate::state::record::LeaseRecord { holder: Some(owner), ..Default::default() };
                txn.set_lease(
                    &"d.example".parse().unwrap(),
                    &Id::Volume(number.to_string()),
                    Some(own),
                );
            }
        });
        fill.await.unwrap();
        let link = world.link();
        let mut asking = LeaseQueue::new(&world.links, &world.node, &link);
        for _ in 0..2 {
            asking.push(saying(1, ask())).unwrap();
            assert!(matches!(asking.next().await.outcome, Outcome::NotNow { .. }));
            assert!(!link.note_full());
        }
    }
}
