//! The fleet, once for all who watch: read from csi-cloud while somebody looks at the page.
//! Each change wakes the viewers, so an idle page costs nothing.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::admin::view::{FleetMessage, GROUPS, GroupValues, GroupsOf, Snapshot};
use proto::host::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};
use uuid::Uuid;

use crate::events::{Change, Feed};
use crate::view_client::{FleetStream, NoAnswer, ViewClient};
use crate::views::map;
use crate::views::map::By;

/// After so long without a look at the page nothing is read.
const IDLE: Duration = Duration::from_secs(60);
/// The pause before csi-cloud is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a page waits for the fleet.
const WAIT: Duration = Duration::from_secs(5);
/// The maps that are kept, one for each choice of groups.
const MAPS: usize = 8;

/// What all pages are made of.
pub(crate) struct Hub {
    view: ViewClient,
    /// Tells this csi-page from the one before.
    epoch: String,
    now: watch::Sender<Now>,
    interest: watch::Sender<Interest>,
    maps: Mutex<BTreeMap<String, (u64, Arc<str>)>>,
}

/// The fleet, as far as it is known.
#[derive(Clone, Default)]
pub(crate) struct Now {
    /// What was read last.
    pub(crate) moment: Arc<Moment>,
    /// Whether it is read now.
    pub(crate) is_live: bool,
}

/// The fleet at one moment, and the events until then.
#[derive(Clone, Default)]
pub(crate) struct Moment {
    /// The fleet.
    pub(crate) snapshot: Snapshot,
    /// The events until now.
    pub(crate) feed: Feed,
}

/// Who looks at the page.
#[derive(Clone, Copy, Default)]
struct Interest {
    watchers: usize,
    asked: Option<Instant>,
}

impl Interest {
    fn is_there(&self) -> bool {
        self.watchers > 0 || self.asked.is_some_and(|asked| asked.elapsed() < IDLE)
    }
}

/// Somebody who watches, until this is dropped.
pub(crate) struct Watching {
    hub: Arc<Hub>,
    /// Changes with each line of the stream.
    pub(crate) now: watch::Receiver<Now>,
}

impl Hub {
    /// Nothing is read yet.
    pub(crate) fn new(view: PathBuf) -> Self {
        Self {
            view: ViewClient::new(view),
            epoch: Uuid::new_v4().simple().to_string(),
            now: watch::Sender::default(),
            interest: watch::Sender::default(),
            maps: Mutex::default(),
        }
    }

    /// Returns the client for questions about single things.
    pub(crate) fn view(&self) -> &ViewClient {
        &self.view
    }

    /// Tells this csi-page from the one before.
    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The fleet now; `None` if csi-cloud does not answer in time.
    pub(crate) async fn current(&self) -> Option<Arc<Moment>> {
        self.interest.send_modify(|interest| interest.asked = Some(Instant::now()));
        let mut now = self.now.subscribe();
        let live = timeout(WAIT, now.wait_for(|now| now.is_live)).await;
        let found = live.ok()?.ok()?.moment.clone();
        Some(found)
    }

    /// Begins to watch.
    pub(crate) fn watch(self: &Arc<Self>) -> Watching {
        self.interest.send_modify(|interest| interest.watchers += 1);
        Watching { hub: self.clone(), now: self.now.subscribe() }
    }

    /// Whether a CA of clients is that of the nodes, so that each node could see the page.
    pub(crate) fn is_ca_of_nodes<'a>(&self, mut keys: impl Iterator<Item = &'a String>) -> bool {
        let now = self.now.borrow();
        keys.any(|key| now.moment.snapshot.node_ca.contains(key))
    }

    /// Reads the fleet while somebody looks at the page.
    pub(crate) async fn keep_current(self: Arc<Self>, tasks: Tasks) {
        let mut interest = self.interest.subscribe();
        let mut is_away = false;
        loop {
            let step = async {
                // The sender is ours, so it is not gone.
                let _ = interest.wait_for(Interest::is_there).await;
                self.follow(&mut is_away).await;
            };
            tokio::select! {
                biased;
                () = tasks.stopped() => return,
                () = step => {}
            }
        }
    }

    /// Reads the stream until nobody looks any more, or it ends.
    async fn follow(&self, is_away: &mut bool) {
        let reading = async {
            let mut stream = self.view.watch().await?;
            if std::mem::take(is_away) {
                info!("csi-cloud answers again at its socket view");
            }
            self.read(&mut stream).await
        };
        let ended = reading.await;
        self.now.send_modify(|now| now.is_live = false);
        let Err(error) = ended else { return };
        if !std::mem::replace(is_away, true) {
            let view = self.view.path().display();
            warn!(error = format!("{error:#}"), %view, "csi-cloud does not answer at its view");
        }
        sleep(PAUSE).await;
    }

    async fn read(&self, stream: &mut FleetStream) -> anyhow::Result<()> {
        while self.interest.borrow().is_there() {
            let message = stream.next().await?;
            let before = self.now.borrow().moment.clone();
            let moment = Arc::new(before.after(message, &self.epoch));
            self.now.send_replace(Now { moment, is_live: true });
        }
        Ok(())
    }

    /// The map by these groups. It is drawn once for each event.
    ///
    /// # Errors
    /// csi-cloud does not answer.
    pub(crate) async fn map(&self, moment: &Moment, by: &By) -> Result<Arc<str>, NoAnswer> {
        let revision = moment.feed.last();
        let key = by.text();
        let kept = self.maps.lock().get(&key).cloned();
        if let Some((_, map)) = kept.filter(|(drawn, _)| *drawn == revision) {
            return Ok(map);
        }
        let asked = GroupsOf { key: by.key().map(str::to_owned) };
        let values: GroupValues = self.view.ask(GROUPS, &asked).await?;
        let map: Arc<str> = map::map(&moment.snapshot, &values, by).into_string().into();
        let mut maps = self.maps.lock();
        maps.retain(|_, (drawn, _)| *drawn == revision);
        if maps.len() < MAPS {
            maps.insert(key, (revision, map.clone()));
        }
        Ok(map)
    }
}

impl Moment {
    /// The moment after a line of the stream.
    fn after(&self, message: FleetMessage, epoch: &str) -> Self {
        let mut feed = self.feed.clone();
        let (snapshot, change) = match message {
            FleetMessage::Snapshot(snapshot) => {
                let is_first = self.snapshot == Snapshot::default();
                // Changes in between were missed.
                (*snapshot, if is_first { Change::default() } else { Change::of_everything() })
            }
            FleetMessage::Change(change) => {
                let mut snapshot = self.snapshot.clone();
                snapshot.apply((*change).clone());
                let shown = Change::between(&self.snapshot, &snapshot, &change);
                (snapshot, shown)
            }
        };
        if !change.is_empty() {
            feed.add(epoch, &change);
        }
        Self { snapshot, feed }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.hub.interest.send_modify(|interest| {
            interest.watchers = interest.watchers.saturating_sub(1);
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proto::admin::view::{FleetChange, NodeState};

    use super::*;
    use crate::views::tests::{fleet, node};

    impl Hub {
        /// Shows a fleet as if csi-cloud had sent it.
        pub(crate) fn show(&self, message: FleetMessage) {
            let moment = self.now.borrow().moment.after(message, &self.epoch);
            self.now.send_replace(Now { moment: Arc::new(moment), is_live: true });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_an_event_and_a_new_stream_loads_everything_anew() {
        let hub = Hub::new("/none".into());
        assert!(hub.current().await.is_none(), "csi-cloud does not answer");
        hub.show(FleetMessage::Snapshot(Box::new(fleet(&[("a", NodeState::Linked)]))));
        let first = hub.current().await.unwrap();
        assert_eq!((first.snapshot.nodes.len(), first.feed.last()), (1, 0));
        let change = FleetChange { at: 7, ..FleetChange::default() };
        hub.show(FleetMessage::Change(Box::new(change)));
        let same = hub.current().await.unwrap();
        assert_eq!((same.snapshot.at, same.feed.last()), (7, 0), "nothing has changed");
        let nodes = vec![node("a", NodeState::Away)];
        let change = FleetChange { nodes, ..FleetChange::default() };
        hub.show(FleetMessage::Change(Box::new(change)));
        assert_eq!(hub.current().await.unwrap().feed.last(), 1);
        hub.show(FleetMessage::Snapshot(Box::new(fleet(&[("a", NodeState::Linked)]))));
        let again = hub.current().await.unwrap();
        let events = again.feed.after(1).unwrap();
        assert!(events[0].windows(15).any(|part| part == b"\"reload\":true,\""), "{events:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_anybody_who_looks_csi_cloud_is_not_asked() {
        let tasks = Tasks::default();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("view.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let hub = Arc::new(Hub::new(path));
        tasks.spawn("view", hub.clone().keep_current(tasks.clone()));
        assert!(timeout(IDLE, listener.accept()).await.is_err());
        let watching = hub.watch();
        listener.accept().await.unwrap();
        drop(watching);
        assert_eq!(hub.interest.borrow().watchers, 0);
        tasks.finish(WAIT).await;
    }
}
