//! Remembers which nodes had no room for a volume, so that its next attempt goes to another one.
//!
//! In memory only: what is forgotten costs one more refusal.

use std::time::Duration;

use ahash::HashMap;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::Id;
use proto::names::NodeName;
use tokio::time::Instant;

/// How long a node is passed over for a name: longer than a provisioner waits between two attempts.
const KEPT: Duration = Duration::from_secs(600);
/// The most names that are remembered of a driver.
const MAX_NAMES: usize = 4096;

/// The nodes that refused a create with RESOURCE_EXHAUSTED, by its name.
#[derive(Default)]
pub(crate) struct ExhaustedNodes(Mutex<HashMap<Id, NamesRefusals>>);

/// The refusals of one name.
struct NamesRefusals {
    last: Instant,
    nodes: Vec<NodeName>,
}

impl ExhaustedNodes {
    fn names(&self) -> MutexGuard<'_, HashMap<Id, NamesRefusals>> {
        self.0.lock()
    }

    /// The nodes that refused a create of this name lately.
    pub(crate) fn of(&self, name: &Id) -> Vec<NodeName> {
        let names = self.names();
        let of = names.get(name).filter(|of| of.last.elapsed() < KEPT);
        of.map(|of| of.nodes.clone()).unwrap_or_default()
    }

    /// Notes that these nodes refused a create of this name. Beyond so many names nothing is noted.
    pub(crate) fn note(&self, name: &Id, nodes: &[NodeName]) {
        let mut names = self.names();
        if names.len() >= MAX_NAMES {
            names.retain(|_, of| of.last.elapsed() < KEPT);
        }
        if names.len() >= MAX_NAMES && !names.contains_key(name) {
            return;
        }
        let now = Instant::now();
        let of = names
            .entry(name.clone())
            .or_insert_with(|| NamesRefusals { last: now, nodes: Vec::new() });
        if of.last.elapsed() >= KEPT {
            of.nodes.clear();
        }
        of.last = now;
        of.nodes.extend_from_slice(nodes);
        of.nodes.sort();
        of.nodes.dedup();
    }

    /// Forgets a name: it was made, or every node refused it.
    pub(crate) fn forget(&self, name: &Id) {
        self.names().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::Method;

    use super::*;

    fn pvc(number: usize) -> Id {
        Id::Name(Method::CreateVolume, format!("pvc-{number}"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_passed_over_for_ten_minutes_and_for_so_many_names() {
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|node| node.parse().unwrap());
        let exhausted = ExhaustedNodes::default();
        exhausted.note(&pvc(0), std::slice::from_ref(&n2));
        exhausted.note(&pvc(0), &[n1.clone(), n2.clone()]);
        assert_eq!(exhausted.of(&pvc(0)), [n1.clone(), n2.clone()]);
        assert!(exhausted.of(&pvc(1)).is_empty());
        for number in 1..=MAX_NAMES {
            exhausted.note(&pvc(number), std::slice::from_ref(&n1));
        }
        assert!(exhausted.of(&pvc(MAX_NAMES)).is_empty() && !exhausted.of(&pvc(1)).is_empty());
        exhausted.forget(&pvc(1));
        assert!(exhausted.of(&pvc(1)).is_empty());
        tokio::time::advance(KEPT).await;
        assert!(exhausted.of(&pvc(0)).is_empty());
        exhausted.note(&pvc(0), std::slice::from_ref(&n2));
        assert_eq!(exhausted.of(&pvc(0)), [n2]);
    }
}
