//! Sends a node's metadata on its link, one part at a time.
//!
//! The next part waits for the edge's answer, so a slow edge costs its position and no queue.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proto::control::metadata::{Part, Position};
use proto::names::NodeName;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::metadata::shared::Metadata;
use crate::metadata::transfer::Transfer;
use crate::metadata::view::Wanted;

/// The least time between the beginnings of two transfers. Changes meanwhile go out together.
const APART: Duration = Duration::from_millis(100);
/// The wait after a transfer that the edge did not take.
const NOT_TAKEN: Duration = Duration::from_secs(1);

/// The transfers to one link; none to an edge that takes no metadata.
///
/// Boxed, as the future of an idle link holds it and most have none.
pub(crate) struct Sending(Option<Box<Transfers>>);

struct Transfers {
    metadata: Arc<Metadata>,
    node: NodeName,
    changed: watch::Receiver<u64>,
    wanted: Wanted,
    /// The position that the edge reported.
    position: Position,
    transfer: Option<Transfer>,
    /// A part is not answered yet.
    in_flight: bool,
    not_before: Instant,
}

impl Sending {
    /// Sends what is wanted to an edge that stated this position; nothing to one that stated none.
    pub(crate) fn new(
        metadata: &Arc<Metadata>,
        node: &NodeName,
        position: Option<Position>,
        wanted: Wanted,
    ) -> Self {
        let begin = |position| {
            Box::new(Transfers {
                metadata: metadata.clone(),
                node: node.clone(),
                changed: metadata.follow(node),
                wanted,
                position,
                transfer: None,
                in_flight: false,
                not_before: Instant::now(),
            })
        };
        Self(position.filter(|_| metadata.is_on()).map(begin))
    }

    /// The next part, when there is one and the edge waits for it. May be dropped without loss.
    pub(crate) fn next(&mut self) -> BoxFuture<'_, Part> {
        match &mut self.0 {
            Some(transfers) => transfers.next().boxed(),
            None => pending().boxed(),
        }
    }

    /// Takes the edge's answer to a part; false if there was none to answer.
    pub(crate) fn taken(&mut self, position: Position) -> bool {
        self.0.as_mut().is_some_and(|transfers| transfers.taken(position))
    }

    /// True if a part waits for its answer.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|transfers| transfers.in_flight)
    }
}

impl Transfers {
    async fn next(&mut self) -> Part {
        loop {
            if self.in_flight {
                return pending().await;
            }
            if let Some(part) = self.transfer.as_mut().and_then(Transfer::next_part) {
                self.in_flight = true;
                return part;
            }
            sleep_until(self.not_before).await;
            // Before the look, so that no change after it is missed.
            self.changed.mark_unchanged();
            self.transfer = self.metadata.since(&self.node, self.position, self.wanted);
            if self.transfer.is_some() {
                self.not_before = Instant::now() + APART;
            } else if self.changed.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }

    fn taken(&mut self, position: Position) -> bool {
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
        let mut sending = Sending::new(&metadata, &"n1".parse().unwrap(), Some(at), Wanted::All);
        assert!(!sending.is_awaited() && !sending.taken(at));
    }
}
