//! Looks at everything for all who watch: once a second at most, and not at all without watchers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::host::clock;
use proto::host::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::events::{Change, Feed, Redraw};
use super::group::{By, groups};
use super::look::look;
use super::replicas;
use super::snapshot::Snapshot;
use super::sweep::{Sweep, Troubled};
use super::views::map;
use crate::admin::admin_state::AdminState;

/// The time between two looks.
const PACE: Duration = Duration::from_secs(1);
/// After this time, words with ages in them are drawn anew.
const WORDS: Duration = Duration::from_secs(20);
/// The maps that are kept, one for each choice of groups.
const MAPS: usize = 8;

/// What all pages are made of.
pub(super) struct Hub {
    state: Arc<AdminState>,
    /// Tells this csi-cloud from the one before.
    epoch: String,
    looking: tokio::sync::Mutex<Looking>,
    now: watch::Sender<Arc<Moment>>,
    /// How many watch.
    watchers: watch::Sender<usize>,
    maps: Mutex<BTreeMap<String, (u64, Arc<str>)>>,
}

/// What a look needs to know of the one before.
#[derive(Default)]
struct Looking {
    sweep: Sweep,
    /// The number of the last call that ended.
    ended: Option<u64>,
    /// The calls in flight, and their subjects.
    running: BTreeMap<u64, String>,
    /// When what is wrong was put into words.
    worded: Option<Instant>,
}

/// The last look.
#[derive(Default)]
pub(super) struct Moment {
    /// The fleet.
    pub(super) snapshot: Snapshot,
    /// Volumes in trouble.
    pub(super) troubled: Vec<Troubled>,
    /// The events until now.
    pub(super) feed: Feed,
    /// When it was; none before the first.
    looked: Option<Instant>,
}

/// Somebody who watches, until this is dropped.
pub(super) struct Watching {
    hub: Arc<Hub>,
    /// Changes with each event.
    pub(super) now: watch::Receiver<Arc<Moment>>,
}

impl Hub {
    /// Nothing is looked at yet.
    pub(super) fn new(state: Arc<AdminState>) -> Self {
        Self {
            state,
            epoch: Uuid::new_v4().simple().to_string(),
            looking: tokio::sync::Mutex::default(),
            now: watch::Sender::default(),
            watchers: watch::Sender::new(0),
            maps: Mutex::default(),
        }
    }

    /// What is looked at.
    pub(super) fn state(&self) -> &AdminState {
        &self.state
    }

    /// Tells this csi-cloud from the one before.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The fleet, as it was a second ago at most.
    pub(super) async fn current(&self) -> Arc<Moment> {
        let mut looking = self.looking.lock().await;
        let last = self.now.borrow().clone();
        if last.looked.is_some_and(|looked| looked.elapsed() < PACE) {
            return last;
        }
        let before = last.snapshot.several.as_ref();
        let several = replicas::look(&self.state, before, clock::now()).await;
        let snapshot = look(&self.state, &mut looking.sweep, &last.snapshot);
        let snapshot = Snapshot { several, ..snapshot };
        let mut feed = last.feed.clone();
        if last.looked.is_some() {
            let change = looking.change(&self.state, &last.snapshot, &snapshot);
            if !change.is_empty() {
                feed.add(&self.epoch, &change);
            }
        } else {
            // So that the first change is one from here on.
            drop(looking.change(&self.state, &snapshot, &snapshot));
        }
        let is_news = feed.last() != last.feed.last();
        let troubled = looking.sweep.found().cloned().collect();
        let moment = Arc::new(Moment { snapshot, troubled, feed, looked: Some(Instant::now()) });
        self.now.send_if_modified(|now| {
            *now = moment.clone();
            is_news
        });
        moment
    }

    /// Begins to watch.
    pub(super) fn watch(self: &Arc<Self>) -> Watching {
        self.watchers.send_modify(|watchers| *watchers += 1);
        Watching { hub: self.clone(), now: self.now.subscribe() }
    }

    /// Looks again and again while somebody watches.
    pub(super) async fn keep_looking(self: Arc<Self>, tasks: Tasks) {
        let mut watchers = self.watchers.subscribe();
        loop {
            let step = async {
                // The sender is ours, so it is not gone.
                let _ = watchers.wait_for(|watchers| *watchers > 0).await;
                self.current().await;
                tokio::time::sleep(PACE).await;
            };
            tokio::select! {
                biased;
                () = tasks.stopped() => return,
                () = step => {}
            }
        }
    }

    /// The map by these groups. It is drawn once for each event.
    pub(super) fn map(&self, moment: &Moment, by: &By) -> Arc<str> {
        let revision = moment.feed.last();
        let key = by.text();
        let mut maps = self.maps.lock();
        if let Some((_, map)) = maps.get(&key).filter(|(drawn, _)| *drawn == revision) {
            return map.clone();
        }
        let groups = groups(&self.state, &moment.snapshot, by);
        let map: Arc<str> = map::map(&moment.snapshot, &groups, by).into_string().into();
        maps.retain(|_, (drawn, _)| *drawn == revision);
        if maps.len() < MAPS {
            maps.insert(key, (revision, map.clone()));
        }
        map
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.hub.watchers.send_modify(|watchers| *watchers = watchers.saturating_sub(1));
    }
}

impl Looking {
    fn change(&mut self, state: &AdminState, before: &Snapshot, now: &Snapshot) -> Change {
        let names = self.names(state);
        let is_same = now.has_same_problems(before);
        let is_old = self.worded.is_none_or(|worded| worded.elapsed() >= WORDS);
        if !is_same || is_old {
            self.worded = Some(Instant::now());
        }
        let words = is_same && is_old && !now.problems.is_empty();
        Change::between(before, now, names, Redraw { words })
    }

    /// The names about which calls began or ended since the last look.
    fn names(&mut self, state: &AdminState) -> BTreeSet<String> {
        let since = self.ended;
        let ended = state.calls.ended.latest(|call| since.is_none_or(|last| call.number > last));
        self.ended = ended.first().map(|call| call.number).or(since);
        let mut names: BTreeSet<_> = ended.iter().map(|call| call.subject.to_string()).collect();
        names.extend(ended.iter().filter_map(|call| Some(call.node.as_ref()?.to_string())));
        let running = state.calls.running();
        let running: BTreeMap<_, _> =
            running.into_iter().map(|(number, call)| (number, call.progress().subject)).collect();
        let is_new = |(number, _): &(&u64, &String)| !self.running.contains_key(number);
        names.extend(running.iter().filter(is_new).map(|(_, subject)| subject.clone()));
        let is_over = |(number, _): &(&u64, &String)| !running.contains_key(number);
        names.extend(self.running.iter().filter(is_over).map(|(_, subject)| subject.clone()));
        self.running = running;
        names.remove("");
        names
    }
}

#[cfg(test)]
mod tests {
    use proto::csi::{Id, Key};

    use super::*;
    use crate::admin::tests::admin_state;
    use crate::state::record::Node;

    async fn add(hub: &Hub, name: &'static str) {
        let written = hub.state.store.write(move |txn| {
            let node = Node { since: 1, removed: None };
            txn.set_node(&name.parse().unwrap(), Some(node));
        });
        written.await.unwrap();
    }

    fn hub(tasks: &Tasks) -> Arc<Hub> {
        Arc::new(Hub::new(Arc::new(admin_state(tasks))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_serves_all_for_a_second() {
        let tasks = Tasks::default();
        let hub = hub(&tasks);
        assert!(hub.current().await.snapshot.nodes.is_empty());
        add(&hub, "n1").await;
        let first = hub.current().await;
        assert!(first.snapshot.nodes.is_empty(), "it is not looked at so soon");
        tokio::time::advance(PACE).await;
        let next = hub.current().await;
        assert_eq!((next.snapshot.nodes.len(), next.feed.last()), (1, 1));
        assert_eq!(next.feed.after(0).map(|events| events.len()), Some(1));
        tokio::time::advance(PACE).await;
        assert_eq!(hub.current().await.feed.last(), 1, "nothing has changed");
        let map = hub.map(&next, &By::Nothing);
        assert!(Arc::ptr_eq(&map, &hub.map(&next, &By::Nothing)), "it is drawn once");
    }

    #[tokio::test(start_paused = true)]
    async fn who_watches_is_told_and_without_watchers_nothing_is_looked_at() {
        let tasks = Tasks::default();
        let hub = hub(&tasks);
        tasks.spawn("looks", hub.clone().keep_looking(tasks.clone()));
        tokio::time::sleep(PACE * 5).await;
        assert!(hub.now.borrow().looked.is_none());
        let mut watching = hub.watch();
        tokio::time::sleep(PACE).await;
        add(&hub, "n1").await;
        watching.now.changed().await.unwrap();
        assert_eq!(watching.now.borrow().snapshot.nodes.len(), 1);
        let ongoing =
            hub.state.calls.clone().begin("DeleteVolume", &"d.example".parse().unwrap(), 7.into());
        ongoing.running().is_about(&Key::Delete(Id::Volume("v 1".into())));
        watching.now.changed().await.unwrap();
        let events = watching.now.borrow().feed.after(1).unwrap();
        let event = String::from_utf8(events[0].to_vec()).unwrap();
        assert!(event.contains("v%201") && event.contains("~calls"), "{event}");
        drop(watching);
        assert_eq!(*hub.watchers.borrow(), 0);
        tasks.finish(PACE).await;
    }
}
