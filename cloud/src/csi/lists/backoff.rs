//! Backoff after an unusable list: 1 s, and 1 s more for each whole MiB of the list, but at most
//! 30 s. So no node keeps its line and csi-cloud busy with lists that are not kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::names::NodeName;
use tokio::time::Instant;

use super::kind::ListKind;
use crate::nodes::query::QueryError;

/// The backoff after a list of no bytes.
const FIRST: Duration = Duration::from_secs(1);
/// The longest backoff. It is shorter than the time between two checks of nodes that are set apart.
const LAST: Duration = Duration::from_secs(30);
/// The bytes for which the backoff is a second longer.
const SECOND: usize = 1 << 20;

/// The nodes in backoff, and those whose lists are being read.
#[derive(Default)]
pub(super) struct Backoffs {
    nodes: Mutex<HashMap<(NodeName, ListKind), Backoff>>,
}

#[derive(Default)]
struct Backoff {
    /// The bytes that it sent since its last backoff.
    bytes: usize,
    /// Until when it is not asked, and why its last list was unusable.
    until: Option<(Instant, Arc<QueryError>)>,
}

impl Backoffs {
    fn nodes(&self) -> MutexGuard<'_, HashMap<(NodeName, ListKind), Backoff>> {
        self.nodes.lock()
    }

    /// The fault of the node's last list, during the node's backoff.
    pub(super) fn why(&self, node: &NodeName, kind: ListKind) -> Option<Arc<QueryError>> {
        let nodes = self.nodes();
        let (until, why) = nodes.get(&(node.clone(), kind))?.until.as_ref()?;
        (Instant::now() < *until).then(|| why.clone())
    }

    /// Counts the bytes of a page.
    pub(super) fn count(&self, node: &NodeName, kind: ListKind, bytes: usize) {
        let mut nodes = self.nodes();
        let rest = nodes.entry((node.clone(), kind)).or_default();
        rest.bytes = rest.bytes.saturating_add(bytes);
    }

    /// Begins a node's backoff after an unusable list.
    pub(super) fn begin(&self, node: &NodeName, kind: ListKind, why: Arc<QueryError>) {
        let mut nodes = self.nodes();
        let rest = nodes.entry((node.clone(), kind)).or_default();
        let seconds = u32::try_from(std::mem::take(&mut rest.bytes) / SECOND).unwrap_or(u32::MAX);
        let time = FIRST.saturating_add(FIRST.saturating_mul(seconds)).min(LAST);
        rest.until = Some((Instant::now() + time, why));
    }

    /// Ends a node's backoff after a good list.
    pub(super) fn end(&self, node: &NodeName, kind: ListKind) {
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
    use crate::error::Error;

    const KIND: ListKind = ListKind::Volumes;

    /// How long a node rests that sent so many bytes in two pages, in seconds.
    async fn rest(backoffs: &Backoffs, bytes: usize) -> u64 {
        let node: NodeName = "n1".parse().unwrap();
        let why = Error::OverQuota { node: node.clone(), why: "w".into() };
        backoffs.count(&node, KIND, bytes / 2);
        backoffs.count(&node, KIND, bytes - bytes / 2);
        backoffs.begin(&node, KIND, Arc::new(why.into()));
        assert!(backoffs.why(&node, ListKind::Snapshots).is_none(), "another list");
        let begun = Instant::now();
        while backoffs.why(&node, KIND).is_some() {
            tokio::time::advance(FIRST).await;
        }
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_rests_longer_the_more_it_sent_for_nothing() {
        let backoffs = Backoffs::default();
        assert_eq!(rest(&backoffs, 0).await, 1);
        assert_eq!(rest(&backoffs, 16 << 20).await, 17);
        assert_eq!(rest(&backoffs, 0).await, 1, "what it sent before counts no more");
        assert_eq!(rest(&backoffs, 36 << 20).await, 30);
        assert_eq!(rest(&backoffs, usize::MAX).await, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_good_list_or_a_purge_ends_a_rest() {
        let backoffs = Backoffs::default();
        let node: NodeName = "n1".parse().unwrap();
        let why: Arc<QueryError> = Arc::new(Error::Removed { node: node.clone() }.into());
        for end in
            [|backoffs: &Backoffs, node: &NodeName| backoffs.end(node, KIND), Backoffs::forget]
        {
            backoffs.begin(&node, KIND, why.clone());
            assert!(backoffs.why(&node, KIND).is_some());
            end(&backoffs, &node);
            assert!(backoffs.why(&node, KIND).is_none());
        }
    }
}
