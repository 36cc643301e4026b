//! Lists without a caller: of new nodes, and of all nodes on an operator's request.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message;
use proto::csi;
use proto::csi::{Id, Method};
use proto::host::chain;
use proto::names::NodeName;
use tokio::time::Instant;
use tonic::Code;

use super::kind::{ListKind, Secrets};
use super::merged::Lists;
use super::refresh::{LONGEST, Refreshed, Refresher};
use super::turns::Turns;
use crate::csi::single_flight::{Pending, wait};
use crate::nodes::handle::Handle;
use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::set_apart::ReasonKind;
use crate::state::store::writer::Store;

/// Links that are established within this time are handled together.
const SETTLE: Duration = Duration::from_secs(1);
/// The pause after a check, in multiples of the time that the check took. A large fleet links for
/// minutes, and each check looks at all of its nodes.
const IDLE_TIMES: u32 = 20;
/// The interval between checks for nodes without a complete list.
const INTERVAL: Duration = Duration::from_secs(60);

/// The link over which a node was last asked, and when.
type LastAsked = (Weak<Handle>, Instant);

impl Lists {
    /// Lists each linked node that has no complete list yet, until dropped. So older volumes have a
    /// home before a call needs it. `merges` says whether lists are merged at all.
    pub(crate) async fn list_new_nodes(&self, merges: impl Fn() -> bool) {
        let mut linked = self.refresher.queries.links().linking();
        let mut asked = HashMap::new();
        let mut turns = Turns::default();
        let mut settle = SETTLE;
        loop {
            tokio::time::sleep(settle).await;
            linked.mark_unchanged();
            let begun = Instant::now();
            if merges() {
                self.ask_new_nodes(&mut asked);
                self.ask_apart_nodes();
                self.ask_known_nodes(&mut turns);
            }
            settle = SETTLE.max(begun.elapsed() * IDLE_TIMES);
            // The interval covers drivers that appear on an existing link, and failed attempts.
            tokio::select! {
                biased;
                _ = linked.changed() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Asks new nodes, each again only on another link or after the interval. A driver's only node
    /// is not asked, since it is the home of every volume.
    fn ask_new_nodes(&self, asked: &mut HashMap<NodeName, LastAsked>) {
        let nodes = self.nodes();
        asked.retain(|_, (link, at)| link.strong_count() > 0 && at.elapsed() < INTERVAL);
        let Refresher { queries, store, .. } = &self.refresher;
        if nodes.len() <= 1 && store.read(|state| state.awaited(&queries.driver).next().is_none()) {
            return;
        }
        let links = queries.links();
        for node in nodes {
            if asked.contains_key(&node) {
                continue;
            }
            let Some(link) = links.now(&node) else { continue };
            if let Some(kind) = self.unlisted_kind(&node) {
                drop(self.ask(&node, kind, &Secrets::new()));
                asked.insert(node, (Arc::downgrade(&link), Instant::now()));
            }
        }
    }

    /// Lists the nodes with a driver that is up, each at its turn.
    fn ask_known_nodes(&self, turns: &mut Turns) {
        let queries = &self.refresher.queries;
        let mut up = self.nodes();
        up.retain(|node| queries.links().is_up(node, &queries.driver));
        for node in turns.take(up, Instant::now()) {
            for kind in [ListKind::Volumes, ListKind::Snapshots] {
                self.ask_known(&node, kind);
            }
        }
    }

    /// Asks a node again for a list that it gave before.
    fn ask_known(&self, node: &NodeName, kind: ListKind) {
        let Refresher { queries, store, .. } = &self.refresher;
        let at = store.read(|state| state.driver(&queries.driver)?.at(node).cloned());
        if at.is_some_and(|at| kind.is_listed(&at)) {
            drop(self.ask(node, kind, &Secrets::new()));
        }
    }

    /// Lists a node again that has lost a volume or snapshot, as a call says. A list that lacks it
    /// makes it absent.
    pub(crate) fn look_for(&self, node: &NodeName, id: &Id) {
        let Refresher { queries, store, .. } = &self.refresher;
        let kind = match id {
            Id::Volume(_) => ListKind::Volumes,
            Id::Snapshot(_) => ListKind::Snapshots,
            Id::Group(_) | Id::Name(..) => return,
        };
        let is_here = store.read(|state| {
            let home = state.driver(&queries.driver).and_then(|of| of.home(id));
            home.is_some_and(|home| home.node == *node && !home.absent)
        });
        if is_here {
            self.ask_known(node, kind);
        }
    }

    /// Repeats the questions to linked nodes that are set apart for a useless answer. A good answer
    /// readmits the node.
    fn ask_apart_nodes(&self) {
        let Refresher { queries, store, .. } = &self.refresher;
        let driver = &queries.driver;
        let apart: Vec<_> = store.read(|state| {
            let apart = state.apart();
            let asked = |node: &NodeName| Some((node.clone(), apart.bad_answer(node, driver)?));
            apart.nodes().filter_map(asked).collect()
        });
        for (node, method) in apart {
            if queries.links().now(&node).is_none() {
                continue;
            }
            match method.lists().and_then(ListKind::of) {
                Some(kind) => drop(self.ask(&node, kind, &Secrets::new())),
                None => {
                    let asking = ask_capacity(queries.clone(), store.clone(), node);
                    queries.links().tasks().spawn_until_stop("capacity", asking);
                }
            }
        }
    }

    /// The first kind that a node can list and has no complete list of.
    fn unlisted_kind(&self, node: &NodeName) -> Option<ListKind> {
        let Refresher { queries, store, .. } = &self.refresher;
        let at = store.read(|state| state.driver(&queries.driver)?.at(node).cloned())?;
        let kinds = [ListKind::Volumes, ListKind::Snapshots];
        kinds
            .into_iter()
            .find(|kind| !self.refresher.is_known(node, *kind, &at) && kind.is_listed(&at))
    }

    /// Forgets that a node was listed, because the listed entries are forgotten.
    pub(crate) fn forget(&self, node: &NodeName) {
        self.refresher.forget(node);
    }

    /// Lists all nodes after the loss of a store. Returns the number of entries of each node, or
    /// the reason why it is unknown.
    pub async fn rebuild(&self) -> Vec<(NodeName, Result<usize, String>)> {
        let rebuilt = self.list_all().await;
        if rebuilt.iter().all(|(_, total)| total.is_ok()) {
            return rebuilt;
        }
        // What a node listed may have waited for the lists of others, which are here now.
        self.list_all().await
    }

    /// False if the driver at a node says that it has no list of volumes.
    fn can_list(&self, node: &NodeName) -> bool {
        let queries = &self.refresher.queries;
        self.refresher.store.read(|state| {
            let at = state.driver(&queries.driver).and_then(|of| of.at(node));
            at.is_none_or(|at| !at.has_spoken() || ListKind::Volumes.is_listed(at))
        })
    }

    async fn list_all(&self) -> Vec<(NodeName, Result<usize, String>)> {
        let links = self.refresher.queries.links();
        let mut asked = Vec::new();
        let mut rebuilt = Vec::new();
        for node in self.nodes() {
            if !self.can_list(&node) {
                let why = "its driver cannot list volumes; `csi-cloud homes rebuild --from` a \
                           file says what it has";
                rebuilt.push((node, Err(why.into())));
                continue;
            }
            let pending = links.now(&node).is_some().then(|| {
                let volumes = self.ask_now(&node, ListKind::Volumes, &Secrets::new());
                let snapshots = self.ask_now(&node, ListKind::Snapshots, &Secrets::new());
                (volumes, snapshots)
            });
            asked.push((node, pending));
        }
        for (node, pending) in asked {
            let total = match pending {
                None => Err("it has no link".into()),
                Some((volumes, snapshots)) => total(volumes, snapshots).await,
            };
            rebuilt.push((node, total));
        }
        rebuilt
    }
}

/// Asks a node for its capacity again. A good answer, or a refusal of this request, ends that it is
/// set apart.
async fn ask_capacity(queries: NodeQueries, store: Store, node: NodeName) {
    let request = csi::GetCapacityRequest::default();
    let deadline = Instant::now() + LONGEST;
    let is_good = match queries.ask(&node, Method::GetCapacity, &request, deadline).await {
        Ok(answer) => csi::GetCapacityResponse::decode(answer).is_ok(),
        Err(QueryError::Driver { status, .. }) => status.code() != Code::Unimplemented,
        Err(_) => false,
    };
    if is_good {
        store.clear_apart(&node, Some(&queries.driver), ReasonKind::BadAnswer);
    }
}

/// The number of volumes and snapshots of one node.
async fn total(
    volumes: Pending<Refreshed>,
    snapshots: Pending<Refreshed>,
) -> Result<usize, String> {
    let mut total = 0;
    for pending in [volumes, snapshots] {
        match wait(pending, Instant::now() + LONGEST * 3).await {
            Some(Ok(entries)) => total += entries,
            // A driver without this list may still have volumes, but nothing can name them.
            Some(Err(error)) if error.code() == Code::Unimplemented => {}
            Some(Err(error)) => return Err(chain(&*error)),
            None => return Err("csi-cloud is stopping, or it takes too long".into()),
        }
    }
    Ok(total)
}
