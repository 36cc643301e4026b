//! Looks for announcements until told to stop, and adds the drivers that may be used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use edge_calls::drivers::{Drivers, FoundBy};
use futures_util::StreamExt;
use futures_util::future::join_all;
use inotify::{EventStream, Inotify, WatchMask};
use proto::host::chain;
use proto::registration::PluginInfo;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::announcement;
use super::announcement::{Found, OwnFronts, Unused};
use super::client;
use super::scan;
use super::scan::Socket;
use super::settings::Settings;
use super::table::{Registration, Registrations, Standing};

/// How often the directories are looked at, whatever the kernel tells of them.
const RESCAN: Duration = Duration::from_secs(30);
/// The time between two looks at least, so that nobody keeps csi-edge busy with files.
const PAUSE: Duration = Duration::from_millis(100);
/// The drivers of one node that csi-cloud takes, unless its operator says otherwise.
const QUOTA: usize = 64;
/// Room for the kernel's events; what they say is not read.
const EVENTS: usize = 4096;

/// What csi-edge is in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It tells each registrar what became of its driver.
    Kubelet,
    /// A kubelet does that.
    Observer,
}

/// A socket that was asked, or will be.
struct Asked {
    version: (u64, i64, i64),
    /// When it is asked next; none if it has said all.
    due: Option<Instant>,
    delays: ExponentialBackoff,
}

/// Finds drivers.
pub struct Discovery {
    settings: Settings,
    fronts: OwnFronts,
    drivers: Arc<Drivers>,
    found: Arc<Registrations>,
    asked: BTreeMap<PathBuf, Asked>,
}

impl Discovery {
    /// Finds drivers and adds them to these. `fronts` is where csi-edge serves its own sockets.
    pub fn new(settings: Settings, fronts: Option<PathBuf>, drivers: Arc<Drivers>) -> Self {
        let found = Arc::default();
        Self { settings, fronts: OwnFronts(fronts), drivers, found, asked: BTreeMap::new() }
    }

    /// What was found, for an operator.
    pub fn found(&self) -> Arc<Registrations> {
        self.found.clone()
    }

    /// Looks for drivers, without end.
    pub async fn keep(mut self) {
        if let Some(directory) = &self.settings.directory
            && let Err(error) = std::fs::create_dir_all(directory)
        {
            let directory = directory.display();
            warn!(%directory, %error, "the directory of registrations cannot be made");
        }
        let mut watches = Watches::new();
        loop {
            watches.watch(self.directories().map(|(directory, _)| directory));
            self.look().await;
            let retry = self.asked.values().filter_map(|asked| asked.due).min();
            let rescan = Instant::now() + RESCAN;
            tokio::select! {
                biased;
                () = watches.changed() => {}
                () = sleep_until(retry.map_or(rescan, |retry| retry.min(rescan))) => {}
            }
            sleep(PAUSE).await;
        }
    }

    fn directories(&self) -> impl Iterator<Item = (&Path, Role)> {
        let Settings { directory, kubelet, .. } = &self.settings;
        let own = directory.iter().map(|directory| (directory.as_path(), Role::Kubelet));
        own.chain(kubelet.iter().map(|directory| (directory.as_path(), Role::Observer)))
    }

    /// Asks every socket that is new or due.
    pub(super) async fn look(&mut self) {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut here = BTreeMap::new();
        for (directory, role) in self.directories() {
            for socket in scan::sockets(directory) {
                here.insert(socket.path.clone(), (socket, role));
            }
        }
        for (path, _) in self.asked.extract_if(.., |path, _| !here.contains_key(path)) {
            self.found.gone(&path);
            info!(socket = %path.display(), "a registrar has gone");
        }
        for (path, (socket, role)) in here {
            let asked = self.asked.get(&path).filter(|asked| asked.version == socket.version);
            if asked.is_none_or(|asked| asked.due.is_some_and(|due| due <= now)) {
                due.push((socket, role));
            }
        }
        let asking = due.iter().map(|(socket, _)| client::get_info(&socket.path));
        let answers = join_all(asking).await;
        let mut told = Vec::new();
        for ((socket, role), answer) in due.into_iter().zip(answers) {
            let path = socket.path.clone();
            let outcome = self.take(socket, answer);
            if role == Role::Kubelet && !matches!(outcome, Err(Unused::NotYet(_))) {
                told.push(tell(path, outcome));
            }
        }
        join_all(told).await;
    }

    /// Takes what a registrar announces.
    fn take(&mut self, socket: Socket, answer: anyhow::Result<PluginInfo>) -> Result<(), Unused> {
        let Socket { path, version } = socket;
        let outcome = match &answer {
            Ok(info) => self.add(&path, info),
            Err(error) => {
                let error = chain(error.as_ref());
                Err(Unused::NotYet(format!("its registrar cannot be asked: {error}")))
            }
        };
        self.show(&path, &answer.unwrap_or_default(), &outcome);
        let known = self.asked.remove(&path).filter(|asked| asked.version == version);
        let mut asked = known.unwrap_or_else(|| Asked { version, due: None, delays: delays() });
        asked.due = match &outcome {
            Err(Unused::NotYet(_)) => Some(Instant::now() + asked.delays.next().unwrap_or(RESCAN)),
            Ok(()) | Err(_) => None,
        };
        self.asked.insert(path, asked);
        outcome
    }

    fn add(&self, path: &Path, info: &PluginInfo) -> Result<(), Unused> {
        let Found { driver, socket } = announcement::read(info, &self.settings, &self.fronts)?;
        let found_by = FoundBy::Registration(path.to_owned());
        let added = self.drivers.add(driver, socket, found_by);
        added.map_err(|error| Unused::Wrong(error.to_string()))?;
        let count = self.drivers.all().len();
        if count > QUOTA {
            warn!(
                count,
                "csi-cloud takes {QUOTA} drivers of a node, unless it is told to take more"
            );
        }
        Ok(())
    }

    /// Shows how an announcement stands, and logs it once.
    fn show(&self, path: &Path, info: &PluginInfo, outcome: &Result<(), Unused>) {
        let standing = match outcome {
            Ok(()) => Standing::Used,
            Err(Unused::NoCsiDriver(_) | Unused::OwnFront) => Standing::Ignored,
            Err(Unused::NotAllowed) => Standing::NotAllowed,
            Err(Unused::Wrong(_)) => Standing::Refused,
            Err(Unused::NotYet(_)) => Standing::Waiting,
        };
        let why = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let driver = proto::host::plain(&info.name);
        let endpoint = proto::host::plain(&info.endpoint);
        let socket = path.to_owned();
        let registration = Registration { socket, driver, endpoint, standing, why };
        if !self.found.note(registration.clone()) {
            return;
        }
        let Registration { driver, endpoint, why, .. } = registration;
        let socket = path.display();
        match standing {
            Standing::Used => info!(driver, endpoint, %socket, "a driver has announced itself"),
            Standing::Ignored | Standing::Gone => debug!(driver, %socket, why, "not a driver"),
            Standing::NotAllowed | Standing::Refused | Standing::Waiting => {
                warn!(driver, endpoint, %socket, why, "a driver that announces itself is not used");
            }
        }
    }
}

/// Tells a registrar what became of its driver.
async fn tell(socket: PathBuf, outcome: Result<(), Unused>) {
    let outcome = outcome.map_err(|unused| unused.to_string());
    if let Err(error) = client::notify(&socket, outcome).await {
        let error = chain(error.as_ref());
        debug!(socket = %socket.display(), error, "a registrar cannot be told");
    }
}

fn delays() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(RESCAN)
        .without_max_times()
        .build()
}

/// What the kernel tells of the directories.
struct Watches(Option<EventStream<Vec<u8>>>);

impl Watches {
    fn new() -> Self {
        let made = Inotify::init().and_then(|inotify| inotify.into_event_stream(vec![0; EVENTS]));
        if let Err(error) = &made {
            warn!(%error, "new drivers are found by looking every {RESCAN:?} only");
        }
        Self(made.ok())
    }

    /// Watches these directories; one that is not there yet is looked for again.
    fn watch<'a>(&mut self, directories: impl Iterator<Item = &'a Path>) {
        let Some(stream) = &self.0 else { return };
        for directory in directories {
            // The same watch again, if there is one.
            let made = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE;
            let _ = stream.watches().add(directory, made | WatchMask::ATTRIB);
        }
    }

    /// Ends when something has changed; never without the kernel's help.
    async fn changed(&mut self) {
        let Some(stream) = &mut self.0 else { return std::future::pending().await };
        if stream.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
