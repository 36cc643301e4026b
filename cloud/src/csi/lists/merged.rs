//! Merged lists over all nodes of a driver whose volumes live on single nodes.
//!
//! The nodes are asked first and their entries recorded; then the store answers. So a slow node, or
//! one without a link, appears as last known, and later pages stay correct. A list is complete or
//! an error: the CO takes a missing entry for deleted and attaches its volume again.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use proto::csi::frame;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::host::tasks::Tasks;
use proto::http2::body::Body;
use proto::http2::forward::Answer;
use proto::names::NodeName;
use tokio::sync::watch;
use tonic::Code;

use super::faults::{negative, unreadable};
use super::health::{self, HealthList};
use super::kind::{ListKind, ListRequest, Page, Secrets};
use super::refresh::{ListQuery, Refreshed, Refresher};
use super::whole::WholeList;
use super::{page, token};
use crate::csi::remembered;
use crate::csi::request::CallRequest;
use crate::csi::single_flight::{Pending, SingleFlight, wait, wait_end};
use crate::error::Error;
use crate::nodes::connections::Lane;
use crate::nodes::query::NodeQueries;
use crate::state::node_names::names;
use crate::state::store::writer::Store;

/// The lists of one driver.
pub struct Lists {
    pub(super) refresher: Refresher,
    always_asked: usize,
    in_flight: SingleFlight<ListQuery, Refreshed>,
}

/// A list that the driver's only node answers directly.
pub(crate) struct SingleNode {
    /// The node.
    pub(crate) node: NodeName,
    /// The kind, and the count of changes before, if the answer can be recorded.
    recorded: Option<(ListKind, u64)>,
}

impl Lists {
    /// Queries to nodes run as tasks of this group. Among `always_asked` nodes, all are asked for
    /// each list.
    pub fn new(queries: NodeQueries, store: Store, always_asked: usize, tasks: Tasks) -> Self {
        let refresher = Refresher::new(queries, store);
        Self { refresher, always_asked, in_flight: SingleFlight::new(tasks) }
    }

    /// Answers a list over all nodes.
    ///
    /// # Errors
    /// The request is malformed, or a node without a known list did not answer.
    pub(crate) async fn list(&self, call: &CallRequest) -> Result<Response<Body>, Error> {
        let queries = &self.refresher.queries;
        let nodes = self.nodes();
        let message = queries.for_nodes(nodes.len(), call.method, &call.message)?;
        let answer = match call.method.lists().and_then(ListKind::of) {
            Some(kind) => self.merged(kind, &message, call).await?,
            None => {
                let store = &self.refresher.store;
                HealthList { queries, store, nodes }.page(&message, call.deadline).await?
            }
        };
        Ok(Answer::of(frame::frame(&answer)).response())
    }

    async fn merged(
        &self,
        kind: ListKind,
        message: &Bytes,
        call: &CallRequest,
    ) -> Result<Vec<u8>, Error> {
        let method = kind.method();
        let request =
            ListRequest::read(kind, message).map_err(|error| unreadable(method, error))?;
        let limit = usize::try_from(request.max_entries).map_err(|_| negative(method))?;
        let after = match request.token.as_str() {
            "" => None,
            token => Some(token::read(kind.letter(), token).ok_or(Error::BadToken)?),
        };
        if after.is_none() {
            self.refresh(kind, request.secrets, call).await?;
        }
        let Refresher { queries, store, .. } = &self.refresher;
        Ok(store
            .read(|state| page::page(state.driver(&queries.driver), kind, after.as_deref(), limit)))
    }

    /// Asks all linked nodes and waits a little. A slow answer still counts for the next list. Of
    /// many nodes, those are not asked whose last list is recent.
    async fn refresh(
        &self,
        kind: ListKind,
        secrets: Secrets,
        call: &CallRequest,
    ) -> Result<(), Error> {
        let links = self.refresher.queries.links();
        let end = wait_end(call.deadline);
        let mut asked = Vec::new();
        let mut unanswered = Vec::new();
        let nodes = self.nodes();
        let oldest = remembered::oldest(nodes.len(), self.always_asked);
        let oldest = oldest.filter(|_| secrets.is_empty());
        let mut rested = Duration::ZERO;
        for node in nodes {
            if let Some(age) = oldest.and_then(|age| self.refresher.age(&node, kind, age)) {
                rested = rested.max(age);
            } else if self.refresher.no_use(&node).is_some() {
                // It is asked, so that it can recover, and nobody waits for it.
                if links.now(&node).is_some() {
                    drop(self.ask(&node, kind, &secrets));
                }
            } else if links.now(&node).is_some() {
                asked.push((self.ask(&node, kind, &secrets), node));
            } else {
                unanswered.push(node);
            }
        }
        if oldest.is_some() {
            call.running.rested_on(rested);
        }
        let mut why = None;
        let mut held = Vec::new();
        let mut why_held = None;
        let mut unimplemented = Vec::new();
        for (pending, node) in asked {
            match wait(pending, end).await {
                Some(Ok(_)) => {}
                Some(Err(error)) if error.code() == Code::Unimplemented => unimplemented.push(node),
                // It has been asked and set apart: no node alone decides for all.
                Some(Err(error)) if error.is_over_quota() => {}
                // All but the disputed entry is recorded. Nobody waits for an operator.
                Some(Err(error)) if error.is_disputed() => {}
                Some(Err(error)) if error.is_held() => {
                    why_held.get_or_insert_with(|| chain(&*error));
                    held.push(node);
                }
                Some(Err(error)) => {
                    why.get_or_insert_with(|| chain(&*error));
                    unanswered.push(node);
                }
                None => {
                    call.running.was_slow();
                    unanswered.push(node);
                }
            }
        }
        // One node does not decide for all.
        let is_alone = |node: &NodeName| !self.refresher.is_listed_elsewhere(node, kind);
        if unimplemented.iter().any(is_alone) {
            let driver = self.refresher.queries.driver.clone();
            return Err(Error::NotImplemented { driver, method: kind.method().name() });
        }
        self.check_known(kind, unanswered, why)?;
        self.check_known(kind, held, why_held)
    }

    /// Checks that each of these nodes was listed before. A node whose answers are useless, or that
    /// is overdue, counts with its known volumes. So no node blocks the lists of the others.
    fn check_known(
        &self,
        kind: ListKind,
        mut nodes: Vec<NodeName>,
        why: Option<String>,
    ) -> Result<(), Error> {
        nodes.retain(|node| !self.is_known(node, kind) && self.refresher.no_use(node).is_none());
        nodes.retain(|node| self.refresher.is_awaited(node, kind));
        if nodes.is_empty() {
            return Ok(());
        }
        nodes.sort();
        let why =
            why.unwrap_or_else(|| "they are away, or slow, and were never listed before".into());
        let driver = self.refresher.queries.driver.clone();
        Err(Error::NotListed { driver, nodes: names(&nodes), why })
    }

    /// True if a node was listed before. A node without a link need not be if it has no such list.
    fn is_known(&self, node: &NodeName, kind: ListKind) -> bool {
        let Refresher { queries, store, .. } = &self.refresher;
        let at = store.read(|state| state.driver(&queries.driver)?.at(node).cloned());
        let at = at.unwrap_or_default();
        let may_list =
            kind.is_listed(&at) || !at.has_spoken() || queries.links().now(node).is_some();
        !may_list || self.refresher.is_known(node, kind, &at)
    }

    /// Starts or joins the refresh of a node's list. A node that rests has its last answer.
    pub(super) fn ask(
        &self,
        node: &NodeName,
        kind: ListKind,
        secrets: &Secrets,
    ) -> Pending<Refreshed> {
        match self.refresher.backs_off(node, kind) {
            Some(why) => watch::channel(Some(Err(why))).1,
            None => self.ask_now(node, kind, secrets),
        }
    }

    /// Starts or joins the refresh of a node's list, also while the node rests.
    pub(super) fn ask_now(
        &self,
        node: &NodeName,
        kind: ListKind,
        secrets: &Secrets,
    ) -> Pending<Refreshed> {
        let query = ListQuery { node: node.clone(), kind, secrets: secrets.clone() };
        let refresher = self.refresher.clone();
        self.in_flight.run(query.clone(), Lane::FanOut, move || refresher.refresh(query))
    }

    /// The nodes that count for the driver, by name.
    pub(crate) fn nodes(&self) -> Vec<NodeName> {
        let Refresher { queries, store, .. } = &self.refresher;
        store.read(|state| state.members(&queries.driver).map(|(node, _)| node.clone()).collect())
    }

    /// The driver's only node, if it counts, has a link, and its answers need no rewriting. Then
    /// the call is passed on byte for byte. None while the caller is within a merged list.
    pub(crate) fn single_node(&self, call: &CallRequest) -> Option<SingleNode> {
        let Refresher { queries, store, .. } = &self.refresher;
        let node = store.read(|state| {
            let driver =
                state.driver(&queries.driver).filter(|driver| !driver.has_our_topology())?;
            let mut nodes = driver.nodes().keys();
            let only = nodes.next().filter(|_| nodes.next().is_none())?;
            driver.is_member(only).then(|| only.clone())
        })?;
        queries.links().now(&node)?;
        let Some(kind) = call.method.lists().and_then(ListKind::of) else {
            let is_continued = health::is_continued(&call.message);
            return (!is_continued).then_some(SingleNode { node, recorded: None });
        };
        let Ok(request) = ListRequest::read(kind, &call.message) else {
            return Some(SingleNode { node, recorded: None });
        };
        if token::read(kind.letter(), &request.token).is_some() {
            return None;
        }
        let is_first = request.token.is_empty();
        let recorded = is_first.then(|| (kind, self.refresher.changes()));
        Some(SingleNode { node, recorded })
    }

    /// Records the unframed answer of a single node. If it is older than a call, the node is asked
    /// again. One page of several is left to the node's turn in the background: some drivers know
    /// the tokens of their last list alone, so another list would end the caller's.
    pub(crate) async fn record(&self, single: SingleNode, answer: &Bytes) {
        let Some((kind, since)) = single.recorded else { return };
        let Some(page) = Page::read(answer) else { return };
        let node = &single.node;
        if !page.next.is_empty() {
            return;
        }
        let recorded = match self.refresher.read_entries(node, kind, page.entries()) {
            Ok(entries) => self.refresher.record(node, WholeList { kind, since, entries }).await,
            Err(error) => Err(error),
        };
        match recorded {
            Ok(true) => {}
            Ok(false) => drop(self.ask(node, kind, &Secrets::new())),
            Err(error) => {
                let driver = &self.refresher.queries.driver;
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, error = chain(&error),
                    "what a node listed is not kept"
                );
            }
        }
    }
}
