//! Calls of a shared driver that are in doubt: sent to a node, and their outcome is unknown.
//!
//! Until its deadline such a call may still begin, so a repetition must not go to a newly elected
//! node. The table is in memory. A csi-cloud that begins assumes that any call may be in doubt at
//! the node elected before. Creates have durable intents instead.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::csi::Id;
use proto::names::NodeName;
use tokio::time::Instant;

/// How long a caller without a deadline waits for a node that lost its link. Its call may begin
/// until then.
pub const HOLD: Duration = Duration::from_secs(120);

/// The nodes where calls about an id may still begin, and until when.
#[derive(Default)]
pub(crate) struct InDoubt {
    sent: Mutex<HashMap<Id, (NodeName, Instant)>>,
    /// The node that a previous csi-cloud used, and until when its calls may begin there.
    before: Mutex<Option<(NodeName, Instant)>>,
}

/// A call in flight. Its ids are in doubt if this is dropped without an answer.
pub(crate) struct Sent<'a> {
    in_doubt: &'a InDoubt,
    about: Vec<Id>,
    node: NodeName,
    until: Instant,
}

impl InDoubt {
    /// Begins after another csi-cloud, or an earlier start; `elected` is the node elected before.
    pub(crate) fn begin_after(&self, elected: Option<NodeName>) {
        let before = elected.map(|node| (node, Instant::now() + HOLD));
        *self.before() = before;
    }

    fn before(&self) -> MutexGuard<'_, Option<(NodeName, Instant)>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the doubt about a node that an operator removed.
    pub(crate) fn forget(&self, is_removed: impl Fn(&NodeName) -> bool) {
        self.before().take_if(|(at, _)| is_removed(at));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, (NodeName, Instant)>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another node where a call about one of these ids may still begin, and for how long.
    pub(crate) fn elsewhere(&self, about: &[Id], node: &NodeName) -> Option<(NodeName, Duration)> {
        let mut in_doubt = self.lock();
        let now = Instant::now();
        in_doubt.retain(|_, (_, until)| *until > now);
        let mut found = about.iter().filter_map(|id| in_doubt.get(id));
        let found = found.find(|(at, _)| at != node).cloned();
        drop(in_doubt);
        let found = found.or_else(|| self.sent_before(about, node, now));
        found.map(|(at, until)| (at, until.duration_since(now)))
    }

    fn sent_before(
        &self,
        about: &[Id],
        node: &NodeName,
        now: Instant,
    ) -> Option<(NodeName, Instant)> {
        // A create without an intent was sent nowhere.
        if about.iter().all(|id| matches!(id, Id::Name(..))) {
            return None;
        }
        let mut before = self.before();
        before.take_if(|(_, until)| *until <= now);
        before.clone().filter(|(at, _)| at != node)
    }

    /// Notes that a call about these ids is sent to a node, where it may begin until its deadline.
    pub(crate) fn send(
        &self,
        about: Vec<Id>,
        node: NodeName,
        deadline: Option<Instant>,
    ) -> Sent<'_> {
        let until = deadline.unwrap_or_else(|| Instant::now() + HOLD);
        Sent { in_doubt: self, about, node, until }
    }
}

impl Sent<'_> {
    /// The call was answered: its outcome is known.
    pub(crate) fn answered(mut self) {
        self.about.clear();
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.about.is_empty() {
            return;
        }
        let mut in_doubt = self.in_doubt.lock();
        for id in self.about.drain(..) {
            in_doubt.insert(id, (self.node.clone(), self.until));
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::Method;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_not_answered_stays_where_it_was_until_its_deadline() {
        let in_doubt = InDoubt::default();
        let volume = vec![Id::Volume("v".into())];
        let other = vec![Id::Volume("w".into())];
        let [n1, n2] = ["n1", "n2"].map(|name| name.parse::<NodeName>().unwrap());
        let deadline = Instant::now() + Duration::from_secs(60);
        in_doubt.send(volume.clone(), n1.clone(), Some(deadline)).answered();
        assert_eq!(in_doubt.elsewhere(&volume, &n2), None);
        drop(in_doubt.send(volume.clone(), n1.clone(), Some(deadline)));
        assert_eq!(in_doubt.elsewhere(&volume, &n2), Some((n1.clone(), Duration::from_secs(60))));
        assert_eq!(in_doubt.elsewhere(&volume, &n1), None, "there it is joined");
        assert_eq!(in_doubt.elsewhere(&other, &n2), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(in_doubt.elsewhere(&volume, &n2), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_csi_cloud_sent_may_be_about_anything_that_is_no_create() {
        let [n1, n2] = ["n1", "n2"].map(|name| name.parse::<NodeName>().unwrap());
        let in_doubt = InDoubt::default();
        in_doubt.begin_after(Some(n1.clone()));
        let volume = [Id::Volume("v".into())];
        let name = Id::Name(Method::CreateVolume, "pvc".into());
        assert_eq!(in_doubt.elsewhere(&volume, &n2), Some((n1.clone(), HOLD)));
        let both = [volume[0].clone(), name.clone()];
        assert_eq!(in_doubt.elsewhere(&both, &n2), Some((n1.clone(), HOLD)));
        assert_eq!(in_doubt.elsewhere(&[name], &n2), None, "its intent is durable");
        assert_eq!(in_doubt.elsewhere(&[], &n2), None, "lists and the like change nothing");
        assert_eq!(in_doubt.elsewhere(&volume, &n1), None);
        in_doubt.forget(|node| *node == n2);
        assert!(in_doubt.elsewhere(&volume, &n2).is_some());
        in_doubt.forget(|node| *node == n1);
        assert_eq!(in_doubt.elsewhere(&volume, &n2), None);
        in_doubt.begin_after(Some(n1));
        tokio::time::advance(HOLD).await;
        assert_eq!(in_doubt.elsewhere(&volume, &n2), None);
    }
}
