//! What an edge says on its link of volumes that one guest owns: answered one after another, in its order, while the
//! link goes on with all else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use proto::identity::NodeName;
use proto::own::{Own, Owner};

use super::{Handle, Links};
use crate::own;

/// What one edge may have waiting; it asks for one answer after another, and here and there for one besides.
const MOST: usize = 1024;

/// What waits for its answer.
pub(super) struct Asking<'a> {
    links: &'a Links,
    node: &'a NodeName,
    handle: &'a Arc<Handle>,
    waiting: VecDeque<Own>,
    running: Option<BoxFuture<'a, Option<Owner>>>,
}

impl<'a> Asking<'a> {
    pub(super) fn new(links: &'a Links, node: &'a NodeName, handle: &'a Arc<Handle>) -> Self {
        Self { links, node, handle, waiting: VecDeque::new(), running: None }
    }

    /// Takes what an edge says.
    ///
    /// # Errors
    /// Why the link is closed: the edge does not wait for answers.
    pub(super) fn push(&mut self, own: Own) -> Result<(), &'static str> {
        if self.waiting.len() >= MOST {
            return Err("an edge waits for the answers about its volumes");
        }
        self.waiting.push_back(own);
        Ok(())
    }

    /// The next answer; never, while nothing waits for one. May be dropped and called again without loss.
    pub(super) async fn next(&mut self) -> Owner {
        loop {
            if self.running.is_none()
                && let Some(own) = self.waiting.pop_front()
            {
                self.running = Some(Box::pin(answered(self.links, self.node, self.handle, own)));
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

async fn answered(links: &Links, node: &NodeName, handle: &Arc<Handle>, own: Own) -> Option<Owner> {
    let (id, handle) = (own.id, handle.clone());
    let counts = move || handle.in_use.load(Ordering::SeqCst);
    let answer = own::said(&links.store, links, node, own, counts).await?;
    Some(Owner { id, answer })
}
