//! Asks one node for all that it has, page after page, and keeps it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Error;
use proto::csi::Made;
use proto::host::chain;
use proto::http2::forward::DeadlinePassed;
use proto::names::NodeName;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::kind::{Kind, Page, Secrets};
use super::whole::{Whole, missing};
use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::record::NodeDriver;
use crate::state::store::writer::Store;

/// The pages that a node's list may have.
const PAGES: usize = 2000;
/// How long a node may take for all of its list.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// What came of it: how much the node has.
pub(super) type Outcome = Result<usize, Arc<QueryError>>;

/// Which node is asked, for what.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) node: NodeName,
    pub(super) kind: Kind,
    pub(super) secrets: Secrets,
}

/// Asks nodes. Clones keep what they learn together.
#[derive(Clone)]
pub(super) struct Refresher {
    pub(super) asker: NodeQueries,
    pub(super) store: Store,
    /// What was listed since csi-cloud started.
    had: Arc<Mutex<HashSet<(NodeName, Kind)>>>,
}

impl Refresher {
    pub(super) fn new(asker: NodeQueries, store: Store) -> Self {
        Self { asker, store, had: Arc::default() }
    }

    fn had(&self) -> MutexGuard<'_, HashSet<(NodeName, Kind)>> {
        self.had.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is known of a node was once all that it had. Its first list is of both kinds.
    pub(super) fn is_known(&self, node: &NodeName, kind: Kind, at: &NodeDriver) -> bool {
        at.listed > 0 || self.had().contains(&(node.clone(), kind))
    }

    /// How often the driver's homes have changed.
    pub(super) fn changes(&self) -> u64 {
        self.store
            .read(|state| state.driver(&self.asker.driver).map_or(0, |driver| driver.changes()))
    }

    /// Asks a node for all that it has, and keeps it. A node's first list of volumes comes after one of its
    /// snapshots, so that nothing of it is unknown afterwards.
    pub(super) async fn refresh(self, asked: Asked) -> Outcome {
        let Asked { node, kind, .. } = &asked;
        let at = self.store.read(|state| state.driver(&self.asker.driver)?.at(node).cloned());
        let first = *kind == Kind::Volumes && at.as_ref().is_none_or(|at| at.listed == 0);
        if first && at.is_some_and(|at| Kind::Snapshots.is_listed(&at)) {
            let snapshots = Asked { kind: Kind::Snapshots, ..asked.clone() };
            // Some drivers list snapshots only for who has a secret. Those made by us are known.
            drop(self.within(&snapshots).await);
        }
        self.within(&asked).await.map_err(Arc::new)
    }

    async fn within(&self, asked: &Asked) -> Result<usize, QueryError> {
        let Asked { node, kind, .. } = asked;
        let late = || QueryError::Call(DeadlinePassed("while a node was listed").into());
        let listed =
            tokio::time::timeout(LONGEST, self.list(asked)).await.unwrap_or_else(|_| Err(late()));
        let driver = &self.asker.driver;
        let method = kind.method().name();
        match &listed {
            Ok(things) => debug!(%node, %driver, method, things, "listed a node"),
            Err(error) => {
                warn!(%node, %driver, method, error = chain(error), "a node was not listed")
            }
        }
        listed
    }

    async fn list(&self, asked: &Asked) -> Result<usize, QueryError> {
        loop {
            let whole = self.whole(asked).await?;
            let things = whole.things.len();
            if self.keep(&asked.node, whole).await? {
                return Ok(things);
            }
        }
    }

    async fn whole(&self, asked: &Asked) -> Result<Whole, QueryError> {
        let mut whole = self.pages(asked).await?;
        let Asked { node, kind, .. } = asked;
        let missing = |whole: &Whole| {
            self.store.read(|state| {
                missing(state, &self.asker.driver, node, *kind, whole.since, &whole.things)
            })
        };
        // CSI lets a driver leave out what stays while something goes between two pages. What is missing twice is
        // not there.
        if whole.pages > 1 && !missing(&whole.whole).is_empty() {
            let again = self.pages(asked).await?;
            let both: HashSet<_> =
                again.whole.things.iter().map(|thing| thing.id.clone()).collect();
            let first = std::mem::replace(&mut whole.whole.things, again.whole.things);
            whole.whole.things.extend(first.into_iter().filter(|thing| !both.contains(&thing.id)));
        }
        Ok(whole.whole)
    }

    /// Keeps a whole list of a node. Gives back whether that is done; if not, the node must be asked again.
    ///
    /// # Errors
    /// It could not be made durable.
    pub(super) async fn keep(&self, node: &NodeName, whole: Whole) -> Result<bool, QueryError> {
        let (driver, at, kind) = (self.asker.driver.clone(), node.clone(), whole.kind);
        let kept = self.store.write(move |txn| whole.learn(txn, &driver, &at)).await;
        let whole = kept.map_err(|source| Error::NotDurable { source: source.into() })?;
        if whole {
            self.had().insert((node.clone(), kind));
        }
        Ok(whole)
    }

    async fn pages(&self, asked: &Asked) -> Result<Paged, QueryError> {
        let Asked { node, kind, secrets } = asked;
        let (since, deadline) = (self.changes(), Instant::now() + LONGEST);
        let (mut things, mut token) = (Vec::new(), String::new());
        for pages in 1..=PAGES {
            let page = kind.page(&self.asker, node, secrets, token.clone(), deadline).await?;
            let (more, next) = (self.things(node, *kind, &page)?, page.next);
            things.extend(more);
            if next.is_empty() {
                return Ok(Paged { pages, whole: Whole { kind: *kind, since, things } });
            }
            if next == token {
                break;
            }
            token = next;
        }
        Err(self.bad(node, *kind, "and its pages do not end").into())
    }

    /// Reads the entries of a page. One without an id is about nothing.
    pub(super) fn things(
        &self,
        node: &NodeName,
        kind: Kind,
        page: &Page,
    ) -> Result<Vec<Made>, QueryError> {
        let read = |entry| {
            kind.read(entry).map_err(|_| self.bad(node, kind, "with an entry that is none"))
        };
        let things: Result<Vec<_>, _> = page.entries.iter().map(read).collect();
        Ok(things?.into_iter().flatten().collect())
    }

    fn bad(&self, node: &NodeName, kind: Kind, why: &'static str) -> Error {
        Error::BadAnswer {
            driver: self.asker.driver.clone(),
            node: node.clone(),
            method: kind.method().name(),
            why,
        }
    }
}

/// A whole list, and of how many pages it was made.
struct Paged {
    pages: usize,
    whole: Whole,
}
