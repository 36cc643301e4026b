//! Answers the lease requests of one link, one after another and in order.
//!
//! The link serves everything else meanwhile. The room `lease` decides; its function is passed in.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use proto::control::lease::{Reply, Request};
use proto::names::NodeName;

use crate::nodes::handle::Handle;
use crate::nodes::links::Links;

/// The limit of waiting requests. An edge waits for one answer before its next request, with few
/// exceptions.
const MOST: usize = 1024;

/// Requests beyond these count against the link's budget of messages.
const CROWDED: usize = 64;

/// The requests of one link that wait for an answer.
pub(crate) struct LeaseQueue<'a> {
    links: &'a Links,
    node: &'a NodeName,
    handle: &'a Arc<Handle>,
    waiting: VecDeque<Request>,
    running: Option<BoxFuture<'a, Option<Reply>>>,
}

impl<'a> LeaseQueue<'a> {
    pub(crate) fn new(links: &'a Links, node: &'a NodeName, handle: &'a Arc<Handle>) -> Self {
        Self { links, node, handle, waiting: VecDeque::new(), running: None }
    }

    /// True if more requests wait than an edge that keeps the rules sends at once.
    pub(crate) fn is_crowded(&self) -> bool {
        self.waiting.len() >= CROWDED
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The reason to close the link: the edge does not wait for its answers.
    pub(crate) fn push(&mut self, request: Request) -> Result<(), &'static str> {
        if self.waiting.len() >= MOST {
            return Err("an edge waits for the answers about its volumes");
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// The next answer; pending while no request waits. It is cancel safe.
    pub(crate) async fn next(&mut self) -> Reply {
        loop {
            if self.running.is_none()
                && let Some(request) = self.waiting.pop_front()
            {
                self.running =
                    Some((self.links.answer_lease)(self.links, self.node, self.handle, request));
            }
            let Some(running) = &mut self.running else { return std::future::pending().await };
            let reply = running.await;
            self.running = None;
            if let Some(reply) = reply {
                return reply;
            }
        }
    }
}
