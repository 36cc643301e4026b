//! Calls of a shared driver that were sent to a node and of which nobody knows what call. Until their deadlines
//! have passed they may still begin there, so they are not sent to the node that was elected since.
//!
//! This is in memory, so a csi-cloud that has begun takes it that the one before it sent everything to the node that was
//! elected then, and got no answer. Creates have their intents, which are durable.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::csi::Id;
use proto::names::NodeName;
use tokio::time::Instant;

use crate::nodes::node_call::HOLD;

/// Where something may still be done with what calls are about, and until when.
#[derive(Default)]
pub(crate) struct InDoubt {
    sent: Mutex<HashMap<Id, (NodeName, Instant)>>,
    /// Where a csi-cloud that is gone may have sent anything, and until when that may begin.
    before: Mutex<Option<(NodeName, Instant)>>,
}

/// A call on its way. What it is about is unsettled if it ends without an answer.
pub(crate) struct Sent<'a> {
    unsettled: &'a InDoubt,
    about: Vec<Id>,
    node: NodeName,
    until: Instant,
}

impl InDoubt {
    /// Of a csi-cloud that begins now; this node was elected when the one before it ended.
    pub(crate) fn after(elected: Option<NodeName>) -> Self {
        let before = elected.map(|node| (node, Instant::now() + HOLD));
        Self { sent: Mutex::default(), before: Mutex::new(before) }
    }

    /// What an earlier csi-cloud sent to a node that was removed for good is not waited for.
    pub(crate) fn forget(&self, is_removed: impl Fn(&NodeName) -> bool) {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.take_if(|(at, _)| is_removed(at));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, (NodeName, Instant)>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another node than this where a call about one of these may still begin, and for how long.
    pub(crate) fn elsewhere(&self, about: &[Id], node: &NodeName) -> Option<(NodeName, Duration)> {
        let mut unsettled = self.lock();
        let now = Instant::now();
        unsettled.retain(|_, (_, until)| *until > now);
        let mut found = about.iter().filter_map(|id| unsettled.get(id));
        let found = found.find(|(at, _)| at != node).cloned();
        drop(unsettled);
        let found = found.or_else(|| self.before(about, node, now));
        found.map(|(at, until)| (at, until.duration_since(now)))
    }

    fn before(&self, about: &[Id], node: &NodeName, now: Instant) -> Option<(NodeName, Instant)> {
        // A name without an intent was sent nowhere.
        if about.iter().all(|id| matches!(id, Id::Name(..))) {
            return None;
        }
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.take_if(|(_, until)| *until <= now);
        before.clone().filter(|(at, _)| at != node)
    }

    /// A call about these is sent to a node, where it may begin until its deadline.
    pub(crate) fn send(
        &self,
        about: Vec<Id>,
        node: NodeName,
        deadline: Option<Instant>,
    ) -> Sent<'_> {
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
    use proto::csi::Method;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_not_answered_stays_where_it_was_until_its_deadline() {
        let unsettled = InDoubt::default();
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

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_csi_cloud_sent_may_be_about_anything_that_is_no_create() {
        let [n1, n2] = ["n1", "n2"].map(|name| name.parse::<NodeName>().unwrap());
        let unsettled = InDoubt::after(Some(n1.clone()));
        let (volume, name) =
            ([Id::Volume("v".into())], Id::Name(Method::CreateVolume, "pvc".into()));
        assert_eq!(unsettled.elsewhere(&volume, &n2), Some((n1.clone(), HOLD)));
        let both = [volume[0].clone(), name.clone()];
        assert_eq!(unsettled.elsewhere(&both, &n2), Some((n1.clone(), HOLD)));
        assert_eq!(unsettled.elsewhere(&[name], &n2), None, "its intent is durable");
        assert_eq!(unsettled.elsewhere(&[], &n2), None, "lists and the like change nothing");
        assert_eq!(unsettled.elsewhere(&volume, &n1), None);
        unsettled.forget(|node| *node == n2);
        assert!(unsettled.elsewhere(&volume, &n2).is_some());
        unsettled.forget(|node| *node == n1);
        assert_eq!(unsettled.elsewhere(&volume, &n2), None);
        let unsettled = InDoubt::after(Some(n1));
        tokio::time::advance(HOLD).await;
        assert_eq!(unsettled.elsewhere(&volume, &n2), None);
    }
}
