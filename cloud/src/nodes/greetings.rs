//! Links that are not welcomed yet, by node: few at a time, and the newest wins.
//!
//! A certificate can open any number of connections. So those of one node replace each other, and a
//! node that is removed loses them at once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::names::NodeName;
use tokio_util::sync::CancellationToken;

/// Links of one node that may wait for their hello: one for each endpoint that an edge races.
const WAITING: usize = 4;

/// All links that are not welcomed yet. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Greetings(Arc<Mutex<HashMap<NodeName, Vec<Waiting>>>>);

struct Waiting {
    ended: CancellationToken,
    hello_received: bool,
    number: u64,
}

/// The place of one such link; free again when dropped.
pub(super) struct Greeting {
    all: Greetings,
    node: NodeName,
    ended: CancellationToken,
    number: u64,
}

impl Greetings {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Vec<Waiting>>> {
        self.0.lock()
    }

    /// A place for one more link of the node. The oldest ends if there are too many.
    pub(super) fn begin(&self, node: &NodeName) -> Greeting {
        let ended = CancellationToken::new();
        let mut all = self.lock();
        let of_node = all.entry(node.clone()).or_default();
        let number = of_node.last().map_or(0, |entry| entry.number + 1);
        of_node.push(Waiting { ended: ended.clone(), hello_received: false, number });
        let waiting = of_node.iter().filter(|entry| !entry.hello_received);
        for entry in waiting.rev().skip(WAITING) {
            entry.ended.cancel();
        }
        Greeting { all: self.clone(), node: node.clone(), ended, number }
    }

    /// Ends all links of a node that are not welcomed yet.
    pub(super) fn end(&self, node: &NodeName) {
        for entry in self.lock().get(node).into_iter().flatten() {
            entry.ended.cancel();
        }
    }
}

impl Greeting {
    /// Notes that the hello is there. The node's older links that are not welcomed yet end.
    pub(super) fn hello_received(&self) {
        let mut all = self.all.lock();
        for entry in all.get_mut(&self.node).into_iter().flatten() {
            if entry.number < self.number {
                entry.ended.cancel();
            }
            entry.hello_received |= entry.number == self.number;
        }
    }

    /// Ends when another link of the node takes the place, or the node is removed.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(of_node) = all.get_mut(&self.node) {
            of_node.retain(|entry| entry.number != self.number);
            if of_node.is_empty() {
                all.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ended(greeting: &Greeting) -> bool {
        greeting.ended.is_cancelled()
    }

    #[test]
    fn a_node_has_few_links_without_a_welcome_and_the_newest_win() {
        let all = Greetings::default();
        let [node, other]: [NodeName; 2] = ["n1".parse().unwrap(), "n2".parse().unwrap()];
        let others = all.begin(&other);
        let places: Vec<_> = (0..6).map(|_| all.begin(&node)).collect();
        let ended = || places.iter().map(is_ended).collect::<Vec<_>>();
        assert_eq!(ended(), [true, true, false, false, false, false]);
        places[4].hello_received();
        assert_eq!(ended(), [true, true, true, true, false, false], "one hello at a time");
        all.end(&node);
        assert_eq!(ended(), [true; 6]);
        assert!(!is_ended(&others), "another node's are its own");
        drop((places, others));
        assert!(all.lock().is_empty(), "nothing is kept of who is gone");
    }
}
