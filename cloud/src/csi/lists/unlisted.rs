//! Nodes without a complete list, for which the lists of all nodes wait, but not for ever.
//!
//! A caller gets UNAVAILABLE at first, because a list that lacks volumes misleads it. After a
//! minute lists go on without what only such a node may have. Otherwise one node could end them for
//! all.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::names::{DriverName, NodeName};
use tokio::time::Instant;
use tracing::warn;

use super::kind::ListKind;

/// The time for which lists wait for one node.
const PATIENCE: Duration = Duration::from_secs(60);

/// The nodes for whose first lists callers waited.
#[derive(Default)]
pub(super) struct Unlisted {
    nodes: Mutex<HashMap<(NodeName, ListKind), Waited>>,
}

struct Waited {
    since: Instant,
    /// True if the log says that it is over.
    is_logged: bool,
}

impl Unlisted {
    fn nodes(&self) -> MutexGuard<'_, HashMap<(NodeName, ListKind), Waited>> {
        self.nodes.lock()
    }

    /// True if callers wait for this node; the first question begins the minute.
    pub(super) fn is_awaited(&self, node: &NodeName, kind: ListKind, driver: &DriverName) -> bool {
        let mut nodes = self.nodes();
        let first = || Waited { since: Instant::now(), is_logged: false };
        let waited = nodes.entry((node.clone(), kind)).or_insert_with(first);
        if waited.since.elapsed() < PATIENCE {
            return true;
        }
        if !waited.is_logged {
            let rpc = kind.method().name();
            warn!(
                %node, %driver, rpc,
                "was not listed completely for a minute; the lists of all nodes go on without \
                 what only this node may have. `csi-cloud homes rebuild` says why"
            );
            waited.is_logged = true;
        }
        false
    }

    /// Notes a complete list.
    pub(super) fn listed(&self, node: &NodeName, kind: ListKind) {
        self.nodes().remove(&(node.clone(), kind));
    }

    /// Forgets a node.
    pub(super) fn forget(&self, node: &NodeName) {
        self.nodes().retain(|(of, _), _| of != node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lists_wait_a_minute_for_a_node_and_again_after_it_was_listed() {
        let unlisted = Unlisted::default();
        let node: NodeName = "n1".parse().unwrap();
        let driver = "d.example".parse().unwrap();
        let is_awaited = || unlisted.is_awaited(&node, ListKind::Volumes, &driver);
        assert!(is_awaited());
        tokio::time::advance(PATIENCE - Duration::from_secs(1)).await;
        assert!(is_awaited());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!is_awaited());
        assert!(unlisted.is_awaited(&node, ListKind::Snapshots, &driver), "another list");
        unlisted.listed(&node, ListKind::Volumes);
        assert!(is_awaited());
        tokio::time::advance(PATIENCE).await;
        unlisted.forget(&node);
        assert!(is_awaited());
    }
}
