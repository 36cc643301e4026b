//! The health of all volumes: nothing of it is kept, so only linked nodes are in it, one after another.
//!
//! CSI: the caller SHALL NOT expect a consistent view, and asks for a single volume's health if in doubt. A driver
//! leaves out what it knows no harm of; of a node that is away nobody knows any.

use std::time::Duration;

use crate::error::Error;
use futures_util::{StreamExt, stream};
use prost::Message;
use proto::csi;
use proto::csi::wire;
use proto::csi::{List, Method};
use proto::host::chain;
use proto::names::NodeName;
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use tracing::warn;

use super::faults::{is_bad_token, negative, unreadable};
use super::kind::{ENTRIES, NEXT_TOKEN, Page};
use super::token;
use crate::csi::questions::{AT_ONCE, PATIENCE};
use crate::csi::request::IncomingCall;
use crate::nodes::query::{NodeQueries, QueryError};

/// Tells these tokens from others.
const LETTER: u8 = b'h';
/// How long nodes are asked for one page.
const LONGEST: Duration = Duration::from_secs(5);
/// Entries of a page, whatever is asked for.
const MOST: usize = 1000;
/// Bytes of a page's entries, unless one node's alone have more.
const BYTES: usize = 3 * 1024 * 1024;

/// The RPC that lists health.
fn method() -> Method {
    Method::listing(List::Health)
}

/// Whether a request goes on with a list of ours.
pub(super) fn is_continued(request: &[u8]) -> bool {
    let request = csi::ControllerListVolumeHealthRequest::decode(request);
    request.is_ok_and(|request| token::read(LETTER, &request.starting_token).is_some())
}

/// Where a page begins: at a node, with its own token.
struct From {
    node: String,
    token: String,
}

/// A page being made.
struct Merged {
    message: Vec<u8>,
    entries: usize,
    most: usize,
}

/// Asks the linked nodes of a driver for the health of their volumes.
pub(super) struct HealthList<'a> {
    pub(super) asker: &'a NodeQueries,
    /// The nodes that have the driver, by name.
    pub(super) nodes: Vec<NodeName>,
}

impl HealthList<'_> {
    /// A page of the health of all volumes at linked nodes.
    pub(super) async fn page(&self, call: &IncomingCall) -> Result<Vec<u8>, Error> {
        let request = csi::ControllerListVolumeHealthRequest::decode(call.message.clone());
        let request = request.map_err(|error| unreadable(method(), error))?;
        let most = usize::try_from(request.max_entries).map_err(|_| negative(method()))?;
        let most = if most == 0 { MOST } else { most.min(MOST) };
        let from = From::read(&request.starting_token)?;
        let links = self.asker.links();
        let mut nodes = self.nodes.clone();
        nodes.retain(|node| node.as_str() >= from.node.as_str() && links.now(node).is_some());
        let end = Instant::now() + LONGEST;
        let end = call
            .deadline
            .map_or(end, |deadline| end.min(deadline - (deadline - Instant::now()) / 2));
        let max_entries = i32::try_from(most).unwrap_or(i32::MAX);
        let request = csi::ControllerListVolumeHealthRequest { max_entries, ..request };
        let mut pages = stream::iter(nodes)
            .map(|node| {
                let starting_token =
                    if node.as_str() == from.node { from.token.clone() } else { String::new() };
                let request =
                    csi::ControllerListVolumeHealthRequest { starting_token, ..request.clone() };
                async { (self.health_of(&node, request).await, node) }
            })
            .buffered(AT_ONCE);
        let mut merged = Merged { message: Vec::new(), entries: 0, most };
        // The first is always waited for, so that every page gets further.
        let mut last = None;
        while let Some((page, node)) = next(&mut pages, last.is_some().then_some(end)).await {
            let page = self.read(page, &node, from.begins(&node))?;
            let over = merged.entries + page.entries.len() > merged.most
                || merged.message.len() + page.size() > BYTES;
            if merged.entries > 0 && over {
                return Ok(merged.until(&node, ""));
            }
            merged.add(&page);
            if !page.next.is_empty() {
                return Ok(merged.until(&node, &page.next));
            }
            last = Some(node);
        }
        // The time may be over with nodes left: the page after starts behind the last one.
        match last.filter(|_| Instant::now() >= end) {
            Some(node) => Ok(merged.until_after(&node)),
            None => Ok(merged.message),
        }
    }

    async fn health_of(
        &self,
        node: &NodeName,
        request: csi::ControllerListVolumeHealthRequest,
    ) -> Result<Page, QueryError> {
        let answer = self.asker.ask(node, method(), &request, Instant::now() + PATIENCE).await?;
        Page::read(&answer)
            .ok_or_else(|| QueryError::Unreadable { node: node.clone(), method: method().name() })
    }

    /// A node's page; an empty one of a node that does not answer.
    fn read(
        &self,
        page: Result<Page, QueryError>,
        node: &NodeName,
        continued: bool,
    ) -> Result<Page, Error> {
        let driver = &self.asker.driver;
        match page {
            Ok(page) => Ok(page),
            Err(error) if error.code() == Code::Unimplemented => {
                Err(Error::NotImplemented { driver: driver.clone(), method: method().name() })
            }
            Err(error) if continued && is_bad_token(&error) => Err(Error::BadToken),
            Err(error) => {
                warn!(%node, %driver, error = chain(&error), "the health of a node's volumes is left out");
                Ok(Page { entries: Vec::new(), next: String::new() })
            }
        }
    }
}

impl From {
    /// What a token says; the beginning if there is none. No node's name has a NUL in it.
    fn read(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self { node: String::new(), token: String::new() });
        }
        let text = token::read(LETTER, text).ok_or(Error::BadToken)?;
        let (node, token) = text.split_once('\0').ok_or(Error::BadToken)?;
        Ok(Self { node: node.into(), token: token.into() })
    }

    /// Whether the page goes on in the middle of this node's.
    fn begins(&self, node: &NodeName) -> bool {
        self.node == node.as_str() && !self.token.is_empty()
    }
}

impl Merged {
    fn add(&mut self, page: &Page) {
        for entry in &page.entries {
            wire::append(&mut self.message, &[ENTRIES], entry);
        }
        self.entries += page.entries.len();
    }

    /// The page, and that the next one begins at this node.
    fn until(mut self, node: &NodeName, its: &str) -> Vec<u8> {
        let next = token::write(LETTER, &format!("{node}\0{its}"));
        wire::append(&mut self.message, &[NEXT_TOKEN], next.as_bytes());
        self.message
    }

    /// The page, and that the next one begins after this node. No node's name is between the two.
    fn until_after(mut self, node: &NodeName) -> Vec<u8> {
        let next = token::write(LETTER, &format!("{node}-\0"));
        wire::append(&mut self.message, &[NEXT_TOKEN], next.as_bytes());
        self.message
    }
}

async fn next<T>(
    pages: &mut (impl StreamExt<Item = T> + Unpin),
    end: Option<Instant>,
) -> Option<T> {
    match end {
        Some(end) => timeout_at(end, pages.next()).await.unwrap_or(None),
        None => pages.next().await,
    }
}
