//! Looks at the fleet for all who watch: once a second at most, and not at all without watchers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proto::admin::view::{FleetChange, FleetMessage, Snapshot};
use tokio::sync::{Mutex, Notify, broadcast};
use tokio::time::Instant;

use super::look::look;
use super::sweep::Sweep;
use crate::admin::admin_state::AdminState;

/// The time between two looks.
const PACE: Duration = Duration::from_secs(1);
/// After this time, problems are sent again for the ages in their words.
const WORDS_AGE_MAX: Duration = Duration::from_secs(20);
/// The changes that wait for a watcher. One that is further behind gets the whole fleet again.
const WAITING_CHANGES: usize = 16;

/// What is served of the fleet.
pub(super) struct ViewHub {
    state: Arc<AdminState>,
    looking: Mutex<Looking>,
    /// Whoever has a receiver watches.
    changes: broadcast::Sender<Bytes>,
    wanted: Notify,
}

/// The last look, and what the next one needs to know of it.
#[derive(Default)]
struct Looking {
    sweep: Sweep,
    snapshot: Arc<Snapshot>,
    /// The moment of the last look; `None` before the first.
    looked: Option<Instant>,
    /// The number of the last call that ended.
    ended: Option<u64>,
    /// The calls in flight, and their subjects.
    running: BTreeSet<(u64, String)>,
    /// The moment at which problems were sent last.
    worded: Option<Instant>,
}

/// Somebody who watches, until this is dropped.
pub(super) struct FleetWatcher {
    hub: Arc<ViewHub>,
    changes: broadcast::Receiver<Bytes>,
    /// True if the next line is the whole fleet.
    is_new: bool,
}

impl ViewHub {
    /// Nothing is looked at yet.
    pub(super) fn new(state: Arc<AdminState>) -> Self {
        Self {
            state,
            looking: Mutex::default(),
            changes: broadcast::Sender::new(WAITING_CHANGES),
            wanted: Notify::new(),
        }
    }

    /// Returns the state that is looked at.
    pub(super) fn state(&self) -> &AdminState {
        &self.state
    }

    /// The fleet, as it was a second ago at most.
    pub(super) async fn current(&self) -> Arc<Snapshot> {
        let mut looking = self.looking.lock().await;
        self.look(&mut looking).await;
        looking.snapshot.clone()
    }

    /// Looks, unless the last look was less than a second ago, and sends what has changed.
    async fn look(&self, looking: &mut Looking) {
        if looking.looked.is_some_and(|looked| looked.elapsed() < PACE) {
            return;
        }
        let before = looking.snapshot.clone();
        let now = look(&self.state, &mut looking.sweep, &before).await;
        let subjects = looking.subjects(&self.state);
        let is_old = looking.worded.is_none_or(|worded| worded.elapsed() >= WORDS_AGE_MAX);
        let words = is_old && !now.problems.is_empty();
        let change = FleetChange::between(&before, &now, subjects, words);
        if change.problems.is_some() {
            looking.worded = Some(Instant::now());
        }
        looking.snapshot = Arc::new(now);
        let is_first = looking.looked.replace(Instant::now()).is_none();
        if !is_first && self.changes.receiver_count() > 0 {
            // Nobody may be left.
            let _ = self.changes.send(line(&FleetMessage::Change(Box::new(change))));
        }
    }

    /// Begins to watch.
    pub(super) fn watch(self: &Arc<Self>) -> FleetWatcher {
        let changes = self.changes.subscribe();
        self.wanted.notify_one();
        FleetWatcher { hub: self.clone(), changes, is_new: true }
    }

    /// Looks again and again while somebody watches.
    pub(super) async fn keep_looking(self: Arc<Self>) {
        loop {
            while self.changes.receiver_count() == 0 {
                self.wanted.notified().await;
            }
            self.current().await;
            tokio::time::sleep(PACE).await;
        }
    }
}

impl FleetWatcher {
    /// The next line of the stream; `None` if csi-cloud ends.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        if !self.is_new {
            match self.changes.recv().await {
                Ok(change) => return Some(change),
                Err(broadcast::error::RecvError::Closed) => return None,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
            }
        }
        let hub = self.hub.clone();
        // No look is made in between, so the next change is one from here on.
        let mut looking = hub.looking.lock().await;
        hub.look(&mut looking).await;
        self.changes = hub.changes.subscribe();
        self.is_new = false;
        let snapshot = Box::new((*looking.snapshot).clone());
        Some(line(&FleetMessage::Snapshot(snapshot)))
    }
}

/// A message as a line. JSON has no raw line ends.
fn line(message: &FleetMessage) -> Bytes {
    // It is only texts, numbers and maps with texts as keys, so it can be written.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

impl Looking {
    /// The ids, names and nodes about which calls began or ended since the last look.
    fn subjects(&mut self, state: &AdminState) -> BTreeSet<String> {
        let since = self.ended;
        let ended = state.calls.ended.latest(|call| since.is_none_or(|last| call.number > last));
        self.ended = ended.first().map(|call| call.number).or(since);
        let mut names: BTreeSet<_> = ended.iter().map(|call| call.subject.to_string()).collect();
        names.extend(ended.iter().filter_map(|call| Some(call.node.as_ref()?.to_string())));
        let running = state.calls.running();
        let running: BTreeSet<_> =
            running.into_iter().map(|(number, call)| (number, call.progress().subject)).collect();
        let changed = running.symmetric_difference(&self.running);
        names.extend(changed.map(|(_, subject)| subject.clone()));
        self.running = running;
        names.remove("");
        names
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::{Id, Key};
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::admin::tests::admin_state;
    use crate::state::record::Node;

    async fn add(hub: &ViewHub, name: &'static str) {
        let written = hub.state.store.write(move |txn| {
            let node = Node { since: 1, ..Node::default() };
            txn.set_node(&name.parse().unwrap(), Some(node));
        });
        written.await.unwrap();
    }

    fn hub(tasks: &Tasks) -> Arc<ViewHub> {
        Arc::new(ViewHub::new(Arc::new(admin_state(tasks))))
    }

    fn read(line: &Bytes) -> FleetMessage {
        serde_json::from_slice(line).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_serves_all_for_a_second() {
        let tasks = Tasks::default();
        let hub = hub(&tasks);
        assert!(hub.current().await.nodes.is_empty());
        add(&hub, "n1").await;
        assert!(hub.current().await.nodes.is_empty(), "it is not looked at so soon");
        tokio::time::advance(PACE).await;
        assert_eq!(hub.current().await.nodes.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_watches_is_told_and_without_watchers_nothing_is_looked_at() {
        let tasks = Tasks::default();
        let hub = hub(&tasks);
        tasks.spawn_until_stop("looks", hub.clone().keep_looking());
        tokio::time::sleep(PACE * 5).await;
        assert!(hub.looking.lock().await.looked.is_none());
        let mut watching = hub.watch();
        let first = watching.next().await.unwrap();
        assert!(matches!(read(&first), FleetMessage::Snapshot(of) if of.nodes.is_empty()));
        add(&hub, "n1").await;
        let FleetMessage::Change(change) = read(&watching.next().await.unwrap()) else {
            panic!("it is a change")
        };
        assert_eq!(change.nodes[0].name.as_str(), "n1");
        let ongoing =
            hub.state.calls.clone().begin("DeleteVolume", &"d.example".parse().unwrap(), 7.into());
        ongoing.running().is_about(&Key::Delete(Id::Volume("v 1".into())));
        let FleetMessage::Change(change) = read(&watching.next().await.unwrap()) else {
            panic!("it is a change")
        };
        assert_eq!(change.subjects, ["v 1".to_owned()].into());
        assert_eq!(change.in_flight.unwrap().calls, 1);
        drop(watching);
        assert_eq!(hub.changes.receiver_count(), 0);
        tasks.finish(PACE).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_too_far_behind_gets_the_whole_fleet_again() {
        let tasks = Tasks::default();
        let hub = hub(&tasks);
        let mut watching = hub.watch();
        watching.next().await.unwrap();
        add(&hub, "n1").await;
        for _ in 0..=WAITING_CHANGES {
            tokio::time::advance(PACE).await;
            hub.current().await;
        }
        let again = read(&watching.next().await.unwrap());
        assert!(matches!(again, FleetMessage::Snapshot(of) if of.nodes.len() == 1));
    }
}
