//! The health of all volumes, of which nothing is stored: linked nodes are asked one after another.
//!
//! CSI: callers must not expect a consistent view, and query a single volume when in doubt. A
//! driver omits volumes without known harm. This list omits nodes without a link.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::Message;
use proto::csi;
use proto::csi::wire;
use proto::csi::{Id, List, Method};
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::names::NodeName;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use super::faults::{is_bad_token, negative, unreadable};
use super::kind::{ENTRIES, NEXT_TOKEN, Page};
use super::token;
use crate::csi::single_flight::{AT_ONCE, PATIENCE};
use crate::error::Error;
use crate::nodes::query::{NodeQueries, QueryError};
use crate::state::store::writer::Store;

/// The letter of this list in a token.
const LETTER: u8 = b'h';
/// The time limit for one page.
const LONGEST: Duration = Duration::from_secs(5);
/// The most entries of a page.
const MAX_ENTRIES: usize = 1000;
/// The most bytes of a page's entries, unless those of one node have more.
const MAX_BYTES: usize = 3 * 1024 * 1024;
/// The most bytes of a node's token, which the token of a merged page contains.
const MAX_TOKEN: usize = 64 * 1024;

fn method() -> Method {
    Method::listing(List::Health)
}

/// True if a request continues a merged list.
pub(super) fn is_continued(request: &[u8]) -> bool {
    let request = csi::ControllerListVolumeHealthRequest::decode(request);
    request.is_ok_and(|request| token::read(LETTER, &request.starting_token).is_some())
}

/// The start of a page: a node, and the node's own token.
struct Start {
    node: String,
    token: String,
}

/// A merged page under construction.
struct MergedPage {
    message: Vec<u8>,
    entries: usize,
    limit: usize,
    /// Nodes that answered, and nodes whose driver does not implement it.
    answered: usize,
    unimplemented: usize,
}

/// Lists the health of a driver's volumes.
pub(super) struct HealthList<'a> {
    pub(super) queries: &'a NodeQueries,
    pub(super) store: &'a Store,
    /// The nodes with the driver, by name.
    pub(super) nodes: Vec<NodeName>,
}

impl HealthList<'_> {
    /// A page with the health of all volumes at linked nodes.
    ///
    /// # Errors
    /// The request or its token cannot be read, its limit is negative, or each driver that answers
    /// lacks the method.
    pub(super) async fn page(
        &self,
        message: &Bytes,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, Error> {
        let request = csi::ControllerListVolumeHealthRequest::decode(message.clone());
        let request = request.map_err(|error| unreadable(method(), error))?;
        let limit = limit(request.max_entries)?;
        let start = Start::read(&request.starting_token)?;
        let end = page_end(deadline);
        let max_entries = i32::try_from(limit).unwrap_or(i32::MAX);
        let request = csi::ControllerListVolumeHealthRequest { max_entries, ..request };
        let mut pages = stream::iter(self.linked_nodes(&start))
            .map(|node| {
                let starting_token = start.token_of(&node).to_owned();
                let request =
                    csi::ControllerListVolumeHealthRequest { starting_token, ..request.clone() };
                async { (self.health_of(&node, request).await, node) }
            })
            .buffered(AT_ONCE);
        let mut merged =
            MergedPage { message: Vec::new(), entries: 0, limit, answered: 0, unimplemented: 0 };
        // The first node is always waited for, so that every page makes progress.
        let mut last = None;
        while let Some((page, node)) = next(&mut pages, last.is_some().then_some(end)).await {
            let is_continued = !start.token_of(&node).is_empty();
            let page = self.page_of(page, &node, is_continued, &mut merged)?;
            if !merged.has_room_for(&page) {
                return Ok(merged.continued_at(&node, ""));
            }
            merged.add(&page);
            if !page.next.is_empty() {
                return Ok(merged.continued_at(&node, &page.next));
            }
            last = Some(node);
        }
        // One node does not decide for all.
        if merged.unimplemented > 0 && merged.answered == 0 && start.node.is_empty() {
            let driver = self.queries.driver.clone();
            return Err(Error::NotImplemented { driver, method: method().name() });
        }
        // If the time is over, nodes may be left, and the next page starts behind the last one.
        match last.filter(|_| Instant::now() >= end) {
            Some(node) => Ok(merged.continued_after(&node)),
            None => Ok(merged.message),
        }
    }

    /// The linked nodes of a page, by name.
    fn linked_nodes(&self, start: &Start) -> Vec<NodeName> {
        let links = self.queries.links();
        let mut nodes = self.nodes.clone();
        nodes.retain(|node| node.as_str() >= start.node.as_str() && links.now(node).is_some());
        nodes
    }

    async fn health_of(
        &self,
        node: &NodeName,
        request: csi::ControllerListVolumeHealthRequest,
    ) -> Result<Page, QueryError> {
        let answer = self.queries.ask(node, method(), &request, Instant::now() + PATIENCE).await?;
        let unreadable = || QueryError::Unreadable { node: node.clone(), method: method().name() };
        let mut page = Page::read(&answer).ok_or_else(unreadable)?;
        page.entries.retain(|entry| self.may_say(node, entry));
        Ok(page)
    }

    /// True if an entry is of a volume that no other node has.
    fn may_say(&self, node: &NodeName, entry: &Bytes) -> bool {
        let Ok(health) = csi::VolumeHealth::decode(entry.clone()) else { return false };
        let id = Id::Volume(health.volume_id);
        let driver = &self.queries.driver;
        let is_others = self.store.read(|state| {
            let home = state.driver(driver).and_then(|driver| driver.home(&id));
            home.is_some_and(|home| home.node != *node)
        });
        if is_others {
            peer_warn!(
                LogPeer::Node(node), %node, %driver, volume = id.text(),
                "a node told the health of another's volume"
            );
        }
        !is_others
    }

    /// A node's page. It is empty if the node did not answer.
    fn page_of(
        &self,
        page: Result<Page, QueryError>,
        node: &NodeName,
        is_continued: bool,
        merged: &mut MergedPage,
    ) -> Result<Page, Error> {
        let driver = &self.queries.driver;
        match page {
            Ok(page) if page.next.len() > MAX_TOKEN => {
                let bytes = page.next.len();
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, bytes,
                    "a node's token is too long; its list is left out"
                );
                Ok(Page { entries: Vec::new(), next: String::new(), bytes: 0 })
            }
            Ok(page) => {
                merged.answered += 1;
                Ok(page)
            }
            Err(error) if error.code() == Code::Unimplemented => {
                merged.unimplemented += 1;
                Ok(Page { entries: Vec::new(), next: String::new(), bytes: 0 })
            }
            // Its own list begins again with the next one: one node ends no list.
            Err(error) if is_continued && is_bad_token(&error) => {
                peer_warn!(
                    LogPeer::Node(node), %node, %driver,
                    "a node refused its own token; its list is left out"
                );
                Ok(Page { entries: Vec::new(), next: String::new(), bytes: 0 })
            }
            Err(error) => {
                let error = chain(&error);
                peer_warn!(
                    LogPeer::Node(node), %node, %driver, error,
                    "the health of a node's volumes is left out"
                );
                Ok(Page { entries: Vec::new(), next: String::new(), bytes: 0 })
            }
        }
    }
}

impl Start {
    /// Reads a token. An empty one is the start of the list. No node's name has a NUL.
    fn read(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self { node: String::new(), token: String::new() });
        }
        let text = token::read(LETTER, text).ok_or(Error::BadToken)?;
        let (node, token) = text.split_once('\0').ok_or(Error::BadToken)?;
        Ok(Self { node: node.into(), token: token.into() })
    }

    /// The token that a node gets: its own, if the page continues that node's list.
    fn token_of(&self, node: &NodeName) -> &str {
        if self.node == node.as_str() { &self.token } else { "" }
    }
}

impl MergedPage {
    fn has_room_for(&self, page: &Page) -> bool {
        let entries = self.entries + page.entries.len();
        let bytes = self.message.len() + page.size();
        self.entries == 0 || (entries <= self.limit && bytes <= MAX_BYTES)
    }

    fn add(&mut self, page: &Page) {
        for entry in &page.entries {
            wire::append(&mut self.message, &[ENTRIES], entry);
        }
        self.entries += page.entries.len();
    }

    /// The page; the next one starts at this node, with the node's own token.
    fn continued_at(self, node: &NodeName, token: &str) -> Vec<u8> {
        self.with_next(&format!("{node}\0{token}"))
    }

    /// The page; the next one starts after this node. No node's name sorts between the two.
    fn continued_after(self, node: &NodeName) -> Vec<u8> {
        self.with_next(&format!("{node}-\0"))
    }

    fn with_next(mut self, start: &str) -> Vec<u8> {
        let next = token::write(LETTER, start);
        wire::append(&mut self.message, &[NEXT_TOKEN], next.as_bytes());
        self.message
    }
}

/// The most entries of a page for this `max_entries`.
fn limit(max_entries: i32) -> Result<usize, Error> {
    let limit = usize::try_from(max_entries).map_err(|_| negative(method()))?;
    Ok(if limit == 0 { MAX_ENTRIES } else { limit.min(MAX_ENTRIES) })
}

/// The end of a page: after [`LONGEST`], or after half of the time left to the deadline.
fn page_end(deadline: Option<Instant>) -> Instant {
    let end = Instant::now() + LONGEST;
    match deadline {
        Some(deadline) => end.min(deadline - (deadline - Instant::now()) / 2),
        None => end,
    }
}

/// The next page, or none after `end`.
async fn next<T>(
    pages: &mut (impl StreamExt<Item = T> + Unpin),
    end: Option<Instant>,
) -> Option<T> {
    match end {
        Some(end) => timeout_at(end, pages.next()).await.unwrap_or(None),
        None => pages.next().await,
    }
}
