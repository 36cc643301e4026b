//! How old a node's answer may be in an answer about many nodes.
//!
//! Sidecars ask for lists and capacity again and again. Among a few nodes all are asked each time,
//! as a driver alone would be. Among many, a node is asked only if its last answer is older than a
//! bound, came over an earlier link, or is older than a call that may have changed it. Deletes, and
//! the search for an id, never rest on such answers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use proto::names::DriverName;
use tokio::time::Instant;

use crate::nodes::handle::Handle;

/// The oldest answer among up to [`MANY`] nodes.
const MINUTE: Duration = Duration::from_secs(60);
const MANY: usize = 2_000;
/// The oldest answer that is ever used, among [`MOST`] nodes and more.
const LONGEST: Duration = Duration::from_secs(600);
const MOST: usize = 100_000;

/// The oldest answer that may be used for so many nodes; `None` if all are asked, as they are
/// among no more than `always_asked`.
pub(super) fn oldest(nodes: usize, always_asked: usize) -> Option<Duration> {
    let more = nodes.clamp(MANY, MOST) - MANY;
    let part = more as f64 / (MOST - MANY) as f64;
    (nodes > always_asked).then(|| MINUTE + (LONGEST - MINUTE).mul_f64(part))
}

/// When a node was asked, and over which link.
#[derive(Clone, Debug)]
pub(super) struct AskedOver {
    at: Instant,
    link: Weak<Handle>,
}

impl AskedOver {
    /// A question that begins now.
    pub(super) fn now(link: &Arc<Handle>) -> Self {
        Self { at: Instant::now(), link: Arc::downgrade(link) }
    }

    /// The age of the answer if it can be used: the node still has the same link, no later call may
    /// have changed what this driver has, and the answer is no older than `oldest`.
    pub(super) fn age(
        &self,
        link: &Arc<Handle>,
        driver: &DriverName,
        oldest: Duration,
    ) -> Option<Duration> {
        let is_same = std::ptr::eq(self.link.as_ptr(), Arc::as_ptr(link));
        let is_changed = link.changed(driver).is_some_and(|changed| changed >= self.at);
        (is_same && !is_changed).then(|| self.at.elapsed()).filter(|age| *age <= oldest)
    }
}

#[cfg(test)]
mod tests {
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::nodes::handle::Peer;

    #[test]
    fn the_more_nodes_the_older_an_answer_may_be_up_to_ten_minutes() {
        let seconds = [1, 64, 65, 2_000, 51_000, 100_000, 1_000_000]
            .map(|nodes| oldest(nodes, 64).map(|oldest| oldest.as_secs()));
        let some = [60, 60, 330, 600, 600].map(Some);
        assert_eq!(seconds, [&[None, None][..], &some].concat()[..]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_of_no_use_on_another_link_or_after_a_change() {
        let link = || {
            let (want, _) = futures_channel::mpsc::channel(1);
            Arc::new(Handle::new(Peer::default(), want, Tasks::default()))
        };
        let (first, second) = (link(), link());
        let [driver, other] = ["a.example", "b.example"].map(|name| name.parse().unwrap());
        let asked = AskedOver::now(&first);
        let second_later = Duration::from_secs(1);
        tokio::time::advance(second_later).await;
        assert_eq!(asked.age(&first, &driver, MINUTE), Some(second_later));
        assert_eq!(asked.age(&first, &driver, second_later / 2), None);
        assert_eq!(asked.age(&second, &driver, MINUTE), None);
        first.note_changed(&driver);
        assert_eq!(asked.age(&first, &driver, MINUTE), None);
        assert_eq!(asked.age(&first, &other, MINUTE), Some(second_later));
        tokio::time::advance(second_later).await;
        assert!(AskedOver::now(&first).age(&first, &driver, MINUTE).is_some());
    }
}
