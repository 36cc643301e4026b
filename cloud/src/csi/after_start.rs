//! The first seconds after a start, when nobody knows yet whether the store is an older copy.
//!
//! A node to which a create was sent that the store lacks says so when it links. Before that, the
//! same create would make a second volume at another node.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::nodes::links::Links;

/// The longest time after a start for which a create with a new name waits.
const WAIT: Duration = Duration::from_secs(5);

/// True while creates with new names may have to wait. The store of several csi-clouds is not a
/// file that is put back.
pub(super) fn is_early(links: &Links) -> bool {
    links.leading().age() < WAIT && links.store().cluster().is_none()
}

/// Waits until half of the nodes that the store knows have linked, but no longer than the first
/// seconds and the caller's deadline.
pub(super) async fn half_linked(links: &Links, deadline: Option<Instant>) {
    let end = Instant::now() + WAIT.saturating_sub(links.leading().age());
    let end = deadline.map_or(end, |callers| callers.min(end));
    let mut linking = links.linking();
    let half = async { while !links.has_half() && linking.changed().await.is_ok() {} };
    // The create goes on without them then: nodes may be away for long.
    let _ = timeout_at(end, half).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_channel::mpsc;
    use futures_util::FutureExt;
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::nodes::handle::{Handle, Peer};
    use crate::state::record::Node;
    use crate::state::store::memory::Memory;
    use crate::state::store::writer::Store;

    async fn links(tasks: &Tasks, nodes: &[(&str, Node)]) -> Links {
        let store = Store::open(Box::new(Memory::default()), tasks).unwrap();
        for (name, node) in nodes {
            let (name, node) = (name.parse().unwrap(), Some(node.clone()));
            store.write(move |txn| txn.set_node(&name, node)).await.unwrap();
        }
        Links::new(store, tasks.clone(), |_, _, _, _| Box::pin(async { None }))
    }

    fn link(links: &Links, tasks: &Tasks, node: &str) {
        let handle = Handle::new(Peer::default(), mpsc::channel(1).0, tasks.child());
        links.enter(&node.parse().unwrap(), &Arc::new(handle));
    }

    #[tokio::test(start_paused = true)]
    async fn creates_of_new_names_wait_for_half_of_the_nodes_after_a_start() {
        let tasks = Tasks::default();
        let removed = Node { removed: Some(1), ..Node::default() };
        let staying = ["n1", "n2", "n3"].map(|name| (name, Node::default()));
        let nodes = [&staying[..], &[("gone", removed.clone()), ("lost", removed)]].concat();
        let links = links(&tasks, &nodes).await;
        assert!(is_early(&links));
        link(&links, &tasks, "n1");
        let mut waiting = std::pin::pin!(half_linked(&links, None));
        assert!(waiting.as_mut().now_or_never().is_none());
        link(&links, &tasks, "n2");
        let begun = Instant::now();
        waiting.await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_for_nodes_than_five_seconds_after_a_start() {
        let tasks = Tasks::default();
        let links = links(&tasks, &[("n1", Node::default())]).await;
        let begun = Instant::now();
        half_linked(&links, Some(begun + Duration::from_secs(2))).await;
        assert_eq!(begun.elapsed().as_secs(), 2);
        half_linked(&links, None).await;
        assert_eq!(begun.elapsed().as_secs(), 5);
        assert!(!is_early(&links));
    }
}
