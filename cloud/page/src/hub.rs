//! The fleet, once for all who watch: read from csi-cloud while somebody looks at the page.
//! Each change wakes the viewers, so an idle page costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use proto::admin::view::{FleetMessage, GROUPS, GroupValues, GroupsOf, Snapshot};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};
use uuid::Uuid;

use crate::events::{Feed, PageChange};
use crate::view_client::ViewClient;
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
pub(crate) struct FleetHub {
    /// For questions about single things.
    pub(crate) view: ViewClient,
    /// Tells this csi-page from the one before.
    pub(crate) epoch: String,
    /// Whoever has a receiver watches.
    now: watch::Sender<LiveFleet>,
    /// The last time that a page was made.
    asked: Mutex<Option<Instant>>,
    wanted: Notify,
    /// The maps, by the number of the last event and the choice of groups.
    maps: Mutex<BTreeMap<(u64, String), Arc<str>>>,
}

/// The fleet, as far as it is known.
#[derive(Clone, Default)]
pub(crate) struct LiveFleet {
    /// What was read last.
    pub(crate) moment: Arc<FleetMoment>,
    /// Whether it is read now.
    pub(crate) is_live: bool,
}

/// The fleet at one moment, and the events until then.
#[derive(Clone, Default)]
pub(crate) struct FleetMoment {
    /// The fleet.
    pub(crate) snapshot: Snapshot,
    /// The events until now.
    pub(crate) feed: Feed,
}

impl FleetHub {
    /// Nothing is read yet.
    pub(crate) fn new(view: &Path) -> Self {
        Self {
            view: ViewClient(view.to_owned()),
            epoch: Uuid::new_v4().simple().to_string(),
            now: watch::Sender::default(),
            asked: Mutex::default(),
            wanted: Notify::new(),
            maps: Mutex::default(),
        }
    }

    /// The fleet now; `None` if csi-cloud does not answer in time.
    pub(crate) async fn current(&self) -> Option<Arc<FleetMoment>> {
        *self.asked.lock() = Some(Instant::now());
        let mut now = self.watch();
        let live = timeout(WAIT, now.wait_for(|now| now.is_live)).await;
        let moment = live.ok()?.ok()?.moment.clone();
        Some(moment)
    }

    /// Begins to watch. The receiver changes with each line of the stream.
    pub(crate) fn watch(&self) -> watch::Receiver<LiveFleet> {
        let now = self.now.subscribe();
        self.wanted.notify_one();
        now
    }

    /// Returns the hashes of the public keys of the CA of the nodes.
    pub(crate) fn node_ca(&self) -> BTreeSet<String> {
        self.now.borrow().moment.snapshot.node_ca.clone()
    }

    /// Reads the fleet while somebody looks at the page.
    pub(crate) async fn keep_current(&self) {
        let mut is_away = false;
        loop {
            while !self.is_wanted() {
                self.wanted.notified().await;
            }
            let ended = self.follow(&mut is_away).await;
            self.now.send_modify(|now| now.is_live = false);
            let Err(error) = ended else { continue };
            if !std::mem::replace(&mut is_away, true) {
                let view = self.view.0.display();
                warn!("csi-cloud does not answer at its socket view, {view}: {error:#}");
            }
            sleep(PAUSE).await;
        }
    }

    fn is_wanted(&self) -> bool {
        let was_asked = self.asked.lock().is_some_and(|asked| asked.elapsed() < IDLE);
        was_asked || self.now.receiver_count() > 0
    }

    /// Reads the stream until nobody looks any more.
    async fn follow(&self, is_away: &mut bool) -> anyhow::Result<()> {
        let mut stream = self.view.watch().await?;
        if std::mem::take(is_away) {
            info!("csi-cloud answers again at its socket view");
        }
        while self.is_wanted() {
            let message = stream.next().await?;
            self.show(message);
        }
        Ok(())
    }

    /// Shows what csi-cloud sent.
    pub(crate) fn show(&self, message: FleetMessage) {
        let moment = Arc::new(self.now.borrow().moment.after(message, &self.epoch));
        self.now.send_replace(LiveFleet { moment, is_live: true });
    }

    /// The map by these groups. It is drawn once for each event.
    ///
    /// # Errors
    /// See [`ViewClient::ask`].
    pub(crate) async fn map(&self, moment: &FleetMoment, by: &By) -> Result<Arc<str>, StatusCode> {
        let key = (moment.feed.last(), by.to_string());
        if let Some(map) = self.maps.lock().get(&key) {
            return Ok(map.clone());
        }
        let asked = GroupsOf { key: by.key().map(str::to_owned) };
        let values: GroupValues = self.view.ask(GROUPS, &asked).await?;
        let map: Arc<str> = map::map(&moment.snapshot, &values, by).into_string().into();
        let mut maps = self.maps.lock();
        maps.retain(|(drawn, _), _| *drawn == key.0);
        if maps.len() < MAPS {
            maps.insert(key, map.clone());
        }
        Ok(map)
    }
}

impl FleetMoment {
    /// The moment after a line of the stream.
    fn after(&self, message: FleetMessage, epoch: &str) -> Self {
        let mut feed = self.feed.clone();
        let (snapshot, change) = match message {
            // Changes in between were missed.
            FleetMessage::Snapshot(snapshot) => (*snapshot, PageChange::of_everything()),
            FleetMessage::Change(change) => {
                let mut snapshot = self.snapshot.clone();
                snapshot.apply((*change).clone());
                let shown = PageChange::between(&self.snapshot, &snapshot, &change);
                (snapshot, shown)
            }
        };
        feed.add(epoch, &change);
        Self { snapshot, feed }
    }
}

#[cfg(test)]
mod tests {
    use proto::admin::view::{FleetChange, NodeState};
    use proto::host::tasks::Tasks;

    use super::*;
    use crate::views::tests::{fleet, node};

    #[tokio::test(start_paused = true)]
    async fn a_change_is_an_event_and_a_new_stream_loads_everything_anew() {
        let hub = FleetHub::new("/none".as_ref());
        assert!(hub.current().await.is_none(), "csi-cloud does not answer");
        hub.show(FleetMessage::Snapshot(Box::new(fleet(&[("a", NodeState::Linked)]))));
        let first = hub.current().await.unwrap();
        assert_eq!((first.snapshot.nodes.len(), first.feed.last()), (1, 1));
        let change = FleetChange { at: 7, ..FleetChange::default() };
        hub.show(FleetMessage::Change(Box::new(change)));
        let same = hub.current().await.unwrap();
        assert_eq!((same.snapshot.at, same.feed.last()), (7, 1), "nothing has changed");
        let nodes = vec![node("a", NodeState::Away)];
        let change = FleetChange { nodes, ..FleetChange::default() };
        hub.show(FleetMessage::Change(Box::new(change)));
        assert_eq!(hub.current().await.unwrap().feed.last(), 2);
        hub.show(FleetMessage::Snapshot(Box::new(fleet(&[("a", NodeState::Linked)]))));
        let again = hub.current().await.unwrap();
        let events = again.feed.after(Some(2), &hub.epoch);
        assert!(events[0].windows(15).any(|part| part == b"\"reload\":true,\""), "{events:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_anybody_who_looks_csi_cloud_is_not_asked() {
        let tasks = Tasks::default();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("view.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let hub = Arc::new(FleetHub::new(&path));
        let kept = hub.clone();
        tasks.spawn_until_stop("view", async move { kept.keep_current().await });
        assert!(timeout(IDLE, listener.accept()).await.is_err());
        let watching = hub.watch();
        listener.accept().await.unwrap();
        drop(watching);
        assert!(!hub.is_wanted());
        tasks.finish(WAIT).await;
    }
}
