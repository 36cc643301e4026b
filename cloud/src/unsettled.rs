//! Calls of a shared driver that were sent to a node and of which nobody knows what came. Until their deadlines
//! have passed they may still begin there, so they are not sent to the node that was elected since.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::identity::NodeName;
use proto::rpc::Id;
use tokio::time::Instant;

use crate::passage::HOLD;

/// Where something may still be done with what calls are about, and until when.
#[derive(Default)]
pub(crate) struct Unsettled(Mutex<HashMap<Id, (NodeName, Instant)>>);

/// A call on its way. What it is about is unsettled if it ends without an answer.
pub(crate) struct Sent<'a> {
    unsettled: &'a Unsettled,
    about: Vec<Id>,
    node: NodeName,
    until: Instant,
}

impl Unsettled {
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, (NodeName, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another node than this where a call about one of these may still begin, and for how long.
    pub(crate) fn elsewhere(&self, about: &[Id], node: &NodeName) -> Option<(NodeName, Duration)> {
        let mut unsettled = self.lock();
        let now = Instant::now();
        unsettled.retain(|_, (_, until)| *until > now);
        let mut found = about.iter().filter_map(|id| unsettled.get(id));
        found.find(|(at, _)| at != node).map(|(at, until)| (at.clone(), until.duration_since(now)))
    }

    /// A call about these is sent to a node, where it may begin until its deadline.
    pub(crate) fn send(&self, about: Vec<Id>, node: NodeName, deadline: Option<Instant>) -> Sent<'_> {
        let until = deadline.unwrap_or_else(|| Instant::now() + HOLD);
        Sent { unsettled: self, about, node, until }
    }
}

impl Sent<'_> {
    /// It was answered: what came of it is known.
    pub(crate) fn answered(mut self) {
        self.about.clear();
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.about.is_empty() {
            return;
        }
        let mut unsettled = self.unsettled.lock();
        for id in self.about.drain(..) {
            unsettled.insert(id, (self.node.clone(), self.until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_not_answered_stays_where_it_was_until_its_deadline() {
        let unsettled = Unsettled::default();
        let (volume, other) = (vec![Id::Volume("v".into())], vec![Id::Volume("w".into())]);
        let [n1, n2] = ["n1", "n2"].map(|name| name.parse::<NodeName>().unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        unsettled.send(volume.clone(), n1.clone(), Some(deadline)).answered();
        assert_eq!(unsettled.elsewhere(&volume, &n2), None);
        drop(unsettled.send(volume.clone(), n1.clone(), Some(deadline)));
        assert_eq!(unsettled.elsewhere(&volume, &n2), Some((n1.clone(), Duration::from_secs(60))));
        assert_eq!(unsettled.elsewhere(&volume, &n1), None, "there it is joined");
        assert_eq!(unsettled.elsewhere(&other, &n2), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(unsettled.elsewhere(&volume, &n2), None);
    }
}
