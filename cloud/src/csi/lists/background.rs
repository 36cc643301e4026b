//! Lists that no caller waits for: of nodes that are new, and of all of them for an operator.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use proto::host::chain;
use proto::names::NodeName;
use tokio::time::Instant;
use tonic::Code;

use super::kind::{Kind, Secrets};
use super::merged::Lists;
use super::refresh::{LONGEST, Outcome, Refresher};
use crate::csi::questions::{Answer, wait};
use crate::nodes::handle::Handle;

/// Links that come within this time are looked at together.
const SETTLE: Duration = Duration::from_secs(1);
/// How often nodes are looked for that were never listed whole.
const AGAIN: Duration = Duration::from_secs(60);

impl Lists {
    /// Asks nodes that have linked, and were never listed whole, for what they have, until it is dropped: so what
    /// was made before us has a home before it is asked for. `merges` says whether lists are merged at all.
    pub(crate) async fn learn_new(&self, merges: impl Fn() -> bool) {
        let mut linked = self.refresher.asker.links().linking();
        let mut tried = HashMap::new();
        loop {
            tokio::time::sleep(SETTLE).await;
            linked.mark_unchanged();
            if merges() {
                self.ask_new(&mut tried);
            }
            // Not told of: drivers that come while their node's link stays, and nodes that did not answer.
            tokio::select! {
                biased;
                _ = linked.changed() => {}
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    /// What lives at the driver's only node needs no home to be found. A node that failed is asked again when it has
    /// another link, or after some time.
    fn ask_new(&self, tried: &mut HashMap<NodeName, (Weak<Handle>, Instant)>) {
        let nodes = self.nodes();
        let Refresher { asker, store, .. } = &self.refresher;
        tried.retain(|_, (link, at)| link.strong_count() > 0 && at.elapsed() < AGAIN);
        let untried: Vec<_> = nodes.iter().filter(|node| !tried.contains_key(*node)).collect();
        for node in untried.into_iter().filter(|_| nodes.len() > 1) {
            let at = store.read(|state| state.driver(&asker.driver)?.at(node).cloned());
            let (Some(at), Some(link)) = (at, asker.links().now(node)) else { continue };
            let mut kinds = [Kind::Volumes, Kind::Snapshots].into_iter();
            let unknown =
                |kind: &Kind| !self.refresher.is_known(node, *kind, &at) && kind.is_listed(&at);
            if let Some(kind) = kinds.find(unknown) {
                tried.insert(node.clone(), (Arc::downgrade(&link), Instant::now()));
                drop(self.ask(node, kind, &Secrets::new()));
            }
        }
    }

    /// Asks every node for all that it has and keeps it; how much that is, or why it is not known. For an operator
    /// whose store was lost.
    pub async fn rebuild(&self) -> Vec<(NodeName, Result<usize, String>)> {
        let links = self.refresher.asker.links();
        let ask = |node: NodeName| {
            let linked = links.now(&node).is_some();
            let ask = |kind| self.ask(&node, kind, &Secrets::new());
            (linked.then(|| (ask(Kind::Volumes), ask(Kind::Snapshots))), node)
        };
        let asked: Vec<_> = self.nodes().into_iter().map(ask).collect();
        let mut rebuilt = Vec::new();
        for (answers, node) in asked {
            let said = match answers {
                None => Err("it has no link".into()),
                Some((volumes, snapshots)) => self.rebuilt(volumes, snapshots).await,
            };
            rebuilt.push((node, said));
        }
        rebuilt
    }

    async fn rebuilt(
        &self,
        volumes: Answer<Outcome>,
        snapshots: Answer<Outcome>,
    ) -> Result<usize, String> {
        let mut total = 0;
        for answer in [volumes, snapshots] {
            match wait(answer, Instant::now() + LONGEST * 3).await {
                Some(Ok(things)) => total += things,
                // What a driver cannot list it may have all the same; but this is all that can be done.
                Some(Err(error)) if error.code() == Code::Unimplemented => {}
                Some(Err(error)) => return Err(chain(&*error)),
                None => return Err("csi-cloud is stopping, or it takes too long".into()),
            }
        }
        Ok(total)
    }
}
