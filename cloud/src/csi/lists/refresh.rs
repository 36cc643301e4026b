//! Asks one node for a complete list, page after page, and records it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use proto::csi::{Id, Made, Method};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::http2::forward::DeadlinePassed;
use proto::names::NodeName;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::backoff::Backoffs;
use super::faults::no_use;
use super::first_lists::{FirstLists, Held};
use super::kind::{ListKind, Page, Secrets};
use super::progress::{Endless, Progress};
use super::unlisted::Unlisted;
use super::whole::{HeldBack, ListEnd, ListPage, Recorded, WholeList, missing};
use crate::csi::remembered::AskedOver;
use crate::error::Error;
use crate::nodes::discover::too_early;
use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::list_entry;
use crate::state::node_names::names;
use crate::state::quotas::OverQuota;
use crate::state::record::NodeDriver;
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;
use crate::state::txn::Txn;

/// The entries of a page, if a list is too large for one answer. An answer has at most 4 MiB, so an
/// entry may have 8 KiB.
const PAGE_ENTRIES: i32 = 500;
/// The most pages of a node's list.
const MAX_PAGES: usize = 2000;
/// The time limit for a node's complete list.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// The time for which a node's first list waits for the other nodes' first lists.
const OTHERS: Duration = Duration::from_millis(500);

/// The number of entries at the node, or why it was not listed.
pub(super) type Refreshed = Result<usize, Arc<QueryError>>;

type Listed = HashMap<(NodeName, ListKind), Option<AskedOver>>;

/// The node and the list that it is asked for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct ListQuery {
    pub(super) node: NodeName,
    pub(super) kind: ListKind,
    pub(super) secrets: Secrets,
}

/// Refreshes the lists of nodes. Clones share their state.
#[derive(Clone)]
pub(super) struct Refresher {
    pub(super) queries: NodeQueries,
    pub(super) store: Store,
    /// The complete lists since the start of csi-cloud, and when each was last asked for without
    /// secrets.
    listed: Arc<Mutex<Listed>>,
    /// The lists of nodes before all nodes were listed.
    first_lists: Arc<FirstLists>,
    /// Nodes not yet listed, and since when callers have waited for them.
    unlisted: Arc<Unlisted>,
    /// Nodes whose last list was unusable, and the backoff of each.
    backoffs: Arc<Backoffs>,
}

impl Refresher {
    pub(super) fn new(queries: NodeQueries, store: Store) -> Self {
        Self {
            queries,
            store,
            listed: Arc::default(),
            first_lists: Arc::default(),
            unlisted: Arc::default(),
            backoffs: Arc::default(),
        }
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock()
    }

    /// True if the node was listed completely before. Its first list covers both kinds.
    pub(super) fn is_known(&self, node: &NodeName, kind: ListKind, at: &NodeDriver) -> bool {
        at.listed > 0 || self.listed().contains_key(&(node.clone(), kind))
    }

    /// The age of a linked node's last list, if it can be used instead of another one.
    pub(super) fn age(
        &self,
        node: &NodeName,
        kind: ListKind,
        oldest: Duration,
    ) -> Option<Duration> {
        let link = self.queries.links().now(node)?;
        let asked = self.listed().get(&(node.clone(), kind)).cloned()??;
        asked.age(&link, &self.queries.driver, oldest)
    }

    /// Forgets the node's complete lists.
    pub(super) fn forget(&self, node: &NodeName) {
        self.listed().retain(|(listed, _), _| listed != node);
        self.unlisted.forget(node);
        self.first_lists.forget(node);
        self.backoffs.forget(node);
    }

    /// The driver's count of changed homes.
    pub(super) fn changes(&self) -> u64 {
        self.store
            .read(|state| state.driver(&self.queries.driver).map_or(0, |driver| driver.changes()))
    }

    /// Lists a node and records the list. Before its first list of volumes, a node lists its
    /// snapshots, so that both kinds are known afterwards.
    ///
    /// # Errors
    /// The node does not list in time, its answer cannot be used, or the list is not recorded.
    pub(super) async fn refresh(self, query: ListQuery) -> Refreshed {
        let ListQuery { node, kind, .. } = &query;
        let at = self.store.read(|state| state.driver(&self.queries.driver)?.at(node).cloned());
        let is_first = *kind == ListKind::Volumes && at.as_ref().is_none_or(|at| at.listed == 0);
        if is_first && at.is_some_and(|at| ListKind::Snapshots.is_listed(&at)) {
            let snapshots = ListQuery { kind: ListKind::Snapshots, ..query.clone() };
            // May fail: some drivers need a secret. Our own snapshots are known without it.
            drop(self.list_in_time(&snapshots).await);
        }
        let asked = self.queries.links().now(node).as_ref().map(AskedOver::now);
        let listed = self.list_in_time(&query).await.map_err(Arc::new);
        if listed.is_ok() && query.secrets.is_empty() {
            self.listed().insert((node.clone(), *kind), asked);
        }
        match &listed {
            Err(error) if error.is_over_quota() || no_use(error).is_some() => {
                self.backoffs.begin(node, *kind, error.clone());
            }
            Err(error) if !error.is_held() => {}
            Ok(_) | Err(_) => self.backoffs.end(node, *kind),
        }
        listed
    }

    /// Why the node's last list was of no use, while the node is not asked again.
    pub(super) fn backs_off(&self, node: &NodeName, kind: ListKind) -> Option<Arc<QueryError>> {
        self.backoffs.why(node, kind)
    }

    async fn list_in_time(&self, query: &ListQuery) -> Result<usize, QueryError> {
        let listed = match timeout(LONGEST, self.list(query)).await {
            Ok(listed) => listed,
            Err(_) => Err(QueryError::Call(DeadlinePassed("while a node was listed").into())),
        };
        self.judge(query, &listed);
        let node = &query.node;
        let driver = &self.queries.driver;
        let method = query.kind.method().name();
        match &listed {
            Ok(entries) => debug!(%node, %driver, method, entries, "listed a node"),
            Err(error) => {
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, method, error = chain(error),
                    "a node was not listed"
                );
            }
        }
        listed
    }

    /// Sets a node apart for a useless answer if another node gave this list; a good answer ends
    /// that. A list that is held back is a good answer: no node may keep another one apart.
    fn judge(&self, query: &ListQuery, listed: &Result<usize, QueryError>) {
        let ListQuery { node, kind, .. } = query;
        let driver = &self.queries.driver;
        let method = kind.method();
        let error = match listed {
            Err(error) if !error.is_held() => error,
            Ok(_) | Err(_) if self.no_use(node) == Some(method) => {
                return self.store.clear_apart(node, Some(driver), ReasonKind::BadAnswer);
            }
            Ok(_) | Err(_) => return,
        };
        let is_silent = matches!(error, QueryError::Call(Error::DeadlinePassed(_)));
        if let Some(why) = no_use(error)
            && (!is_silent || self.queries.was_linked(node, LONGEST))
            && self.is_listed_elsewhere(node, *kind)
        {
            self.store.set_apart(node, Some(driver), Reason::BadAnswer { method, why: why.into() });
        }
    }

    /// True if another node gave this list completely. If none did, it is the driver's fault, and
    /// no single node's.
    pub(super) fn is_listed_elsewhere(&self, node: &NodeName, kind: ListKind) -> bool {
        let listed = self.listed();
        let other = |(of, had): &(NodeName, ListKind)| of != node && *had == kind;
        if listed.keys().any(other) {
            return true;
        }
        drop(listed);
        self.store.read(|state| {
            let mut members = state.members(&self.queries.driver);
            members.any(|(of, at)| of != node && at.listed > 0 && kind.is_listed(at))
        })
    }

    /// True if callers wait for the first list of a node. After a minute they do not: no node alone
    /// decides for all.
    pub(super) fn is_awaited(&self, node: &NodeName, kind: ListKind) -> bool {
        self.unlisted.is_awaited(node, kind, &self.queries.driver)
    }

    /// The RPC for whose answers a node is set apart, if it is.
    pub(super) fn no_use(&self, node: &NodeName) -> Option<Method> {
        self.store.read(|state| state.apart().bad_answer(node, &self.queries.driver))
    }

    async fn list(&self, query: &ListQuery) -> Result<usize, QueryError> {
        let until = Instant::now() + OTHERS;
        loop {
            let end = self.read_list(query).await?;
            let entries = end.ids.len();
            let is_complete = end.is_complete;
            let held = end.held.clone().filter(|_| is_complete);
            self.record_end(&query.node, end).await?;
            match held {
                Some(held) => self.wait_for_others(query, &held, until).await?,
                None if is_complete => return Ok(entries),
                // It is older than a call.
                None => {}
            }
        }
    }

    /// Waits until the other nodes were listed too, so that this list can be read again.
    ///
    /// # Errors
    /// Another node lists the same id, or was not listed in time.
    async fn wait_for_others(
        &self,
        query: &ListQuery,
        held: &HeldBack,
        until: Instant,
    ) -> Result<(), QueryError> {
        let ListQuery { node, kind, .. } = query;
        let driver = &self.queries.driver;
        let first_lists = &self.first_lists;
        first_lists.note(node, *kind, &held.ids);
        let at = self.store.read(|state| state.driver(driver)?.at(node).cloned());
        let is_first = !at.is_some_and(|at| self.is_known(node, *kind, &at));
        let unknown = || self.store.read(|state| first_lists.unknown(state, driver, node, *kind));
        if is_first
            && matches!(held.why, Held::Unknown(_))
            && first_lists.wait_until(until, || unknown().is_empty()).await
        {
            return Ok(());
        }
        Err(self.held(node, held).into())
    }

    /// The error of a list with an id that another node may have.
    fn held(&self, node: &NodeName, held: &HeldBack) -> Error {
        let driver = self.queries.driver.clone();
        let first = held.ids.first();
        let id = first.map(|id| id.text().to_owned()).unwrap_or_default();
        match &held.why {
            Held::New(from) => {
                let first = first.cloned().unwrap_or(Id::Volume(id));
                too_early(&driver, &first, std::slice::from_ref(node), *from)
            }
            Held::Unknown(others) => {
                Error::Unconfirmed { driver, id, node: node.clone(), nodes: names(others) }
            }
            Held::Unlabelled => {
                let nodes = "those that labels select, which Kubernetes has not named yet".into();
                Error::Unconfirmed { driver, id, node: node.clone(), nodes }
            }
            Held::Disputed(others) => {
                let mut nodes = [std::slice::from_ref(node), others].concat();
                nodes.sort();
                Error::Disputed { driver, id, nodes: names(&nodes) }
            }
        }
    }

    /// Reads a complete list and records its pages. CSI lets a driver omit an entry that stays
    /// while another one is deleted between two pages. So a list of several pages is read again if
    /// an id is missing.
    async fn read_list(&self, query: &ListQuery) -> Result<ListEnd, QueryError> {
        let (pages, mut end) = self.read_pages(query).await?;
        if pages > 1 && self.is_any_missing(&query.node, &end) {
            let (_, again) = self.read_pages(query).await?;
            end.ids.extend(again.ids);
            end.is_complete &= again.is_complete;
            end.held = again.held.or(end.held);
        }
        Ok(end)
    }

    fn is_any_missing(&self, node: &NodeName, end: &ListEnd) -> bool {
        let ListEnd { kind, since, ids, .. } = end;
        let driver = &self.queries.driver;
        let missing = self.store.read(|state| missing(state, driver, node, *kind, *since, ids));
        !missing.is_empty()
    }

    /// Records the end of a list, of which all pages are recorded.
    async fn record_end(&self, node: &NodeName, end: ListEnd) -> Result<(), QueryError> {
        let kind = end.kind;
        let driver = self.queries.driver.clone();
        let at = node.clone();
        let is_complete = end.is_complete && end.held.is_none();
        let recorded = self.store.write(move |txn| end.record(txn, &driver, &at)).await;
        recorded.map_err(|source| Error::NotDurable { source: source.into() })?;
        if is_complete {
            self.set_listed(node, kind);
        }
        Ok(())
    }

    /// Notes a complete list.
    fn set_listed(&self, node: &NodeName, kind: ListKind) {
        self.listed().entry((node.clone(), kind)).or_default();
        self.unlisted.listed(node, kind);
        self.first_lists.settled(node, kind);
        // A node's first list of volumes covers its snapshots too.
        if kind == ListKind::Volumes {
            self.store.clear_apart(node, Some(&self.queries.driver), ReasonKind::OverLimit);
        }
    }

    /// Records a page of a list, and notes the outcome.
    async fn record_page(
        &self,
        node: &NodeName,
        page: ListPage,
        end: &mut ListEnd,
    ) -> Result<(), QueryError> {
        let driver = self.queries.driver.clone();
        let at = node.clone();
        let quotas = *self.store.quotas();
        let first_lists = self.first_lists.clone();
        let write = move |txn: &mut Txn<'_>| page.record(txn, &driver, &at, &quotas, &first_lists);
        match self.recorded(node, self.store.write(write).await)? {
            Recorded::Held(mut held) => {
                let all = match &mut end.held {
                    Some(before) => {
                        before.ids.append(&mut held.ids);
                        before
                    }
                    none => none.insert(held),
                };
                all.check(self.store.quotas()).map_err(|over| self.over_quota(node, over))?;
            }
            Recorded::TooOld => end.is_complete = false,
            Recorded::Complete | Recorded::Over(_) | Recorded::NotCounted => {}
        }
        Ok(())
    }

    /// The outcome of recording a page or list, or its error.
    ///
    /// # Errors
    /// It is not durable, or over a quota, or the node does not count any more.
    fn recorded(
        &self,
        node: &NodeName,
        recorded: Result<Recorded, StoreError>,
    ) -> Result<Recorded, QueryError> {
        match recorded.map_err(|source| Error::NotDurable { source: source.into() })? {
            Recorded::Over(over) => Err(self.over_quota(node, over).into()),
            Recorded::NotCounted => Err(self.not_counted(node).into()),
            recorded => Ok(recorded),
        }
    }

    /// The reason why nothing of a node is recorded.
    fn not_counted(&self, node: &NodeName) -> Error {
        let driver = &self.queries.driver;
        let node = node.clone();
        match self.store.why_apart(&node, driver) {
            Some(why) => Error::SetApart { node, driver: driver.clone(), why: why.to_string() },
            None => Error::Removed { node },
        }
    }

    /// Records a complete list of a node. Returns false if the node must be asked again.
    ///
    /// # Errors
    /// The list is not durable, or over a quota, or the node does not count any more.
    pub(super) async fn record(
        &self,
        node: &NodeName,
        list: WholeList,
    ) -> Result<bool, QueryError> {
        let kind = list.kind;
        let driver = self.queries.driver.clone();
        let at = node.clone();
        let quotas = *self.store.quotas();
        let first_lists = self.first_lists.clone();
        let write = move |txn: &mut Txn<'_>| list.record(txn, &driver, &at, &quotas, &first_lists);
        let recorded = self.recorded(node, self.store.write(write).await)?;
        let is_complete = recorded == Recorded::Complete;
        if is_complete {
            self.set_listed(node, kind);
        }
        Ok(is_complete)
    }

    /// Sets a node apart for a list over a quota.
    fn over_quota(&self, node: &NodeName, over: OverQuota) -> Error {
        self.store.refuse_over_quota(node, Some(&self.queries.driver), &over);
        Error::OverQuota { node: node.clone(), why: over.to_string() }
    }

    /// Reads all pages and records each before it asks for the next. So no more than a page of a
    /// list is in memory. Returns the number of pages with the end.
    ///
    /// Nobody may ever have used the driver's pages, because sidecars ask for all entries at once.
    /// So pages are asked for only if that fails.
    async fn read_pages(&self, query: &ListQuery) -> Result<(usize, ListEnd), QueryError> {
        let ListQuery { node, kind, secrets } = query;
        let since = self.changes();
        let deadline = Instant::now() + LONGEST;
        let quotas = self.store.quotas();
        let mut end =
            ListEnd { kind: *kind, since, ids: HashSet::new(), is_complete: true, held: None };
        let mut token = String::new();
        let mut progress = Progress::default();
        let mut most = 0;
        for pages in 1..=MAX_PAGES {
            let ask = |most| kind.page(&self.queries, node, secrets, (most, &token), deadline);
            let page = match ask(most).await {
                Err(error) if pages == 1 && error.may_be_of_size() => {
                    most = PAGE_ENTRIES;
                    ask(most).await?
                }
                asked => asked?,
            };
            if pages == 1 && page.next.is_empty() && is_full(&page, most) {
                // A driver without pages may cut its list off there.
                let more = ask(2 * most).await?;
                // One more may have been made meanwhile.
                if !more.next.is_empty() || more.entries.len() > page.entries.len() + 1 {
                    let why = "with a full page and no token for the next one";
                    return Err(self.bad_answer(node, *kind, why).into());
                }
            }
            self.backoffs.count(node, *kind, page.bytes);
            progress.note(*kind, &page, quotas).map_err(|endless| match endless {
                Endless::Over(over) => self.over_quota(node, over),
                Endless::Circle => self.bad_answer(node, *kind, "and its pages go in a circle"),
            })?;
            for piece in page.pieces() {
                let entries = self.read_entries(node, *kind, piece)?;
                end.ids.extend(entries.iter().map(|entry| entry.id.clone()));
                let listed = ListPage { kind: *kind, since, entries };
                self.record_page(node, listed, &mut end).await?;
            }
            if page.next.is_empty() {
                return Ok((pages, end));
            }
            token = page.next;
        }
        Err(self.bad_answer(node, *kind, "and its pages do not end").into())
    }

    /// Reads entries of a list, without those that have no id.
    ///
    /// # Errors
    /// An entry cannot be decoded, or is too large.
    pub(super) fn read_entries(
        &self,
        node: &NodeName,
        kind: ListKind,
        listed: &[Bytes],
    ) -> Result<Vec<Made>, QueryError> {
        let mut entries = Vec::new();
        for entry in listed {
            let made = kind
                .read(entry)
                .map_err(|_| self.bad_answer(node, kind, "with an entry that is none"))?;
            if let Some(why) = made.as_ref().and_then(list_entry::why_too_large) {
                return Err(self.bad_answer(node, kind, why).into());
            }
            entries.extend(made);
        }
        Ok(entries)
    }

    fn bad_answer(&self, node: &NodeName, kind: ListKind, why: &'static str) -> Error {
        Error::BadAnswer {
            driver: self.queries.driver.clone(),
            node: node.clone(),
            method: kind.method().name(),
            why,
        }
    }
}

/// True if a page has as many entries as it was asked for.
fn is_full(page: &Page, most: i32) -> bool {
    most > 0 && i32::try_from(page.entries.len()).is_ok_and(|entries| entries >= most)
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;
    use proto::names::DriverName;

    use super::*;
    use crate::nodes::links::Links;
    use crate::state::store::memory::Memory;

    #[tokio::test]
    async fn another_nodes_word_does_not_keep_a_node_apart_that_answers_well() {
        let tasks = Tasks::default();
        let store = Store::open(Box::new(Memory::default()), &tasks).unwrap();
        let links = Links::new(store.clone(), tasks, |_, _, _, _| Box::pin(async { None }));
        let driver: DriverName = "d.example".parse().unwrap();
        let queries = NodeQueries::new(driver.clone(), Arc::new(links), false);
        let refresher = Refresher::new(queries, store.clone());
        let node: NodeName = "n1".parse().unwrap();
        let kind = ListKind::Snapshots;
        let why = "it does not come".to_owned();
        store.set_apart(&node, Some(&driver), Reason::BadAnswer { method: kind.method(), why });
        let query = ListQuery { node: node.clone(), kind, secrets: Secrets::new() };
        let away = Error::NotLinked { node: node.clone(), driver: driver.clone() };
        refresher.judge(&query, &Err(away.into()));
        assert_eq!(refresher.no_use(&node), Some(kind.method()));
        let held = Error::Disputed { driver, id: "s".into(), nodes: "liar, n1".into() };
        refresher.judge(&query, &Err(held.into()));
        assert_eq!(refresher.no_use(&node), None);
    }
}
