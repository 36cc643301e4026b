//! Answers what an edge says of its exclusive leases: one after another, in its order.
//!
//! The link goes on with all else meanwhile. Who may say what is decided by the room `lease`, which is handed in.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use proto::control::lease::{Reply, Request};
use proto::names::NodeName;

use super::links::{Handle, Links};

/// What one edge may have waiting; it asks for one answer after another, and here and there for one besides.
const MOST: usize = 1024;

/// What waits for its answer.
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

    /// Takes what an edge says.
    ///
    /// # Errors
    /// Why the link is closed: the edge does not wait for answers.
    pub(crate) fn push(&mut self, own: Request) -> Result<(), &'static str> {
        if self.waiting.len() >= MOST {
            return Err("an edge waits for the answers about its volumes");
        }
        self.waiting.push_back(own);
        Ok(())
    }

    /// The next answer; never, while nothing waits for one. May be dropped and called again without loss.
    pub(crate) async fn next(&mut self) -> Reply {
        loop {
            if self.running.is_none()
                && let Some(own) = self.waiting.pop_front()
            {
                self.running =
                    Some((self.links.answer_lease)(self.links, self.node, self.handle, own));
            }
            let Some(running) = &mut self.running else { return std::future::pending().await };
            let answer = running.await;
            self.running = None;
            if let Some(answer) = answer {
                return answer;
            }
        }
    }
}
