//! Sends a node's metadata on its link, one part at a time.
//!
//! The next part waits for the edge's answer, so a slow edge costs its position and no queue.

use std::sync::Arc;
use std::time::Duration;

use proto::control::metadata::{Part, Position};
use proto::names::NodeName;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::metadata::shared::Metadata;
use crate::metadata::transfer::Transfer;

/// The least time between the beginnings of two transfers. Changes meanwhile go out together.
const APART: Duration = Duration::from_millis(100);
/// The wait after a transfer that the edge did not take.
const NOT_TAKEN: Duration = Duration::from_secs(1);

/// The transfers to one link.
pub(crate) struct Sending {
    metadata: Arc<Metadata>,
    node: NodeName,
    /// None for an edge that takes no metadata.
    changed: Option<watch::Receiver<u64>>,
    /// The position that the edge reported.
    position: Position,
    transfer: Option<Transfer>,
    /// A part is not answered yet.
    in_flight: bool,
    not_before: Instant,
}

impl Sending {
    /// Sends to an edge that stated this position; nothing to one that stated none.
    pub(crate) fn new(
        metadata: &Arc<Metadata>,
        node: &NodeName,
        position: Option<Position>,
    ) -> Self {
        let changed = position.filter(|_| metadata.is_on()).map(|_| metadata.follow(node));
        Self {
            metadata: metadata.clone(),
            node: node.clone(),
            changed,
            position: position.unwrap_or_default(),
            transfer: None,
            in_flight: false,
            not_before: Instant::now(),
        }
    }

    /// The next part, when there is one and the edge waits for it. May be dropped without loss.
    pub(crate) async fn next(&mut self) -> Part {
        loop {
            let Some(changed) = self.changed.as_mut().filter(|_| !self.in_flight) else {
                return std::future::pending().await;
            };
            if let Some(part) = self.transfer.as_mut().and_then(Transfer::next_part) {
                self.in_flight = true;
                return part;
            }
            sleep_until(self.not_before).await;
            // Before the look, so that no change after it is missed.
            changed.mark_unchanged();
            self.transfer = self.metadata.since(&self.node, self.position);
            if self.transfer.is_some() {
                self.not_before = Instant::now() + APART;
            } else if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes the edge's answer to a part; false if there was none to answer.
    pub(crate) fn taken(&mut self, position: Position) -> bool {
        if !std::mem::take(&mut self.in_flight) {
            return false;
        }
        let Some(transfer) = &self.transfer else { return true };
        let is_whole = position == transfer.to();
        // An edge that dropped a part says so by another position than before.
        if is_whole || transfer.is_over() || position != self.position {
            if !is_whole {
                self.not_before = Instant::now() + NOT_TAKEN;
            }
            self.position = position;
            self.transfer = None;
        }
        true
    }

    /// True if a part waits for its answer.
    pub(crate) fn is_awaited(&self) -> bool {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::handlers::Handlers;

    #[tokio::test]
    async fn an_answer_to_nothing_is_none() {
        let metadata = Arc::new(Metadata::default());
        metadata.begin(Handlers::default());
        let at = Position::default();
        let mut sending = Sending::new(&metadata, &"n1".parse().unwrap(), Some(at));
        assert!(!sending.is_awaited() && !sending.taken(at));
    }
}
