//! Looks for announcements until told to stop, and adds the drivers that may be used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edge_calls::drivers::{Driver, Drivers, FoundBy, TwoSockets};
use futures_util::StreamExt;
use futures_util::future::join_all;
use inotify::{EventStream, Inotify, WatchMask};
use proto::control::health::HealthState;
use proto::host::backoff::Backoff;
use proto::host::chain;
use proto::registration::PluginInfo;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::announcement;
use super::announcement::{Found, OwnFronts, Unused};
use super::client;
use super::file::{FoundFile, KeptDriver, MOST, Role};
use super::scan;
use super::scan::Socket;
use super::settings::Settings;
use super::table::{AnnouncementState, Registration, Registrations};

/// How often the directories are looked at, whatever the kernel tells of them.
const RESCAN: Duration = Duration::from_secs(30);
/// The delays between questions to a socket that does not answer yet.
const DELAYS: Backoff = Backoff::new(Duration::from_millis(200), RESCAN);
/// The time between two looks at least, so that nobody keeps csi-edge busy with files.
const PAUSE: Duration = Duration::from_millis(100);
/// Room for the kernel's events; what they say is not read.
const EVENTS: usize = 4096;

/// A socket that was asked, or will be.
struct Asked {
    version: (u64, i64, i64),
    /// When it is asked next; none if it has said all.
    due: Option<Instant>,
    delays: Backoff,
}

/// Finds drivers.
pub struct Discovery {
    settings: Settings,
    fronts: OwnFronts,
    drivers: Arc<Drivers>,
    found: Arc<Registrations>,
    asked: BTreeMap<PathBuf, Asked>,
    file: FoundFile,
}

impl Discovery {
    /// Finds drivers and adds them to these. `fronts` is where csi-edge serves its own sockets.
    pub fn new(settings: Settings, fronts: Option<PathBuf>, drivers: Arc<Drivers>) -> Self {
        Self {
            settings,
            fronts: OwnFronts(fronts),
            drivers,
            found: Arc::default(),
            asked: BTreeMap::new(),
            file: FoundFile::default(),
        }
    }

    /// Keeps what is found in this state directory, and adds what was found before and is still
    /// allowed. A driver that is known already stays as it is.
    #[must_use]
    pub fn with_state(mut self, directory: Option<&Path>) -> Self {
        let (file, kept) = FoundFile::open(directory, self.drivers.node().clone());
        self.file = file;
        for kept in kept {
            let KeptDriver { driver, socket, registrar, .. } = &kept;
            if !self.is_allowed(&kept) {
                info!(%driver, "a driver that was found before is not allowed any more");
                self.file.set_due();
                continue;
            }
            let found_by = FoundBy::Registration(registrar.clone());
            let added = self.drivers.add(driver.clone(), socket.clone(), found_by.clone());
            if added.is_ok_and(|added| added.found_by() == found_by) {
                self.found.note(Registration {
                    socket: registrar.clone(),
                    driver: driver.to_string(),
                    endpoint: socket.display().to_string(),
                    standing: AnnouncementState::Gone,
                    why: "it was found before csi-edge started; its registrar was not seen".into(),
                });
                self.file.take(kept);
            }
        }
        self
    }

    /// Whether a driver of an earlier start may be used.
    fn is_allowed(&self, kept: &KeptDriver) -> bool {
        self.settings.allows(&kept.driver)
            && self.directories().any(|(_, role)| role == kept.role)
            && kept.socket.is_absolute()
            && !self.fronts.contains(&kept.socket)
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
        let mut notified = Vec::new();
        for ((socket, role), answer) in due.into_iter().zip(answers) {
            let path = socket.path.clone();
            let outcome = self.take(socket, role, answer);
            if role == Role::Kubelet && !matches!(outcome, Err(Unused::NotYet(_))) {
                notified.push(notify(path, outcome));
            }
        }
        // A registrar that was told may count on it.
        self.file.keep().await;
        join_all(notified).await;
    }

    /// Takes what a registrar announces.
    fn take(
        &mut self,
        socket: Socket,
        role: Role,
        answer: anyhow::Result<PluginInfo>,
    ) -> Result<(), Unused> {
        let Socket { path, version } = socket;
        let outcome = match &answer {
            Ok(info) => self.add(&path, role, info),
            Err(error) => {
                let error = chain(error.as_ref());
                Err(Unused::NotYet(format!("its registrar cannot be asked: {error}")))
            }
        };
        self.show(&path, &answer.unwrap_or_default(), &outcome);
        let known = self.asked.remove(&path).filter(|asked| asked.version == version);
        let mut asked = known.unwrap_or(Asked { version, due: None, delays: DELAYS });
        asked.due = match &outcome {
            Err(Unused::NotYet(_)) => Some(Instant::now() + asked.delays.delay()),
            // The other one may have gone by then.
            Err(Unused::TwoSockets(_)) => Some(Instant::now() + RESCAN),
            Ok(()) | Err(_) => None,
        };
        self.asked.insert(path, asked);
        outcome
    }

    fn add(&mut self, path: &Path, role: Role, info: &PluginInfo) -> Result<(), Unused> {
        let Found { driver, socket } = announcement::read(info, &self.settings, &self.fronts)?;
        let found_by = FoundBy::Registration(path.to_owned());
        let driver = match self.drivers.add(driver, socket.clone(), found_by) {
            Ok(driver) => driver,
            Err(two) => self.relocate(two, path)?,
        };
        self.keep_found(&driver, path, role);
        let count = self.drivers.all().len();
        if count > MOST {
            warn!(
                count,
                "csi-cloud takes {MOST} drivers of a node, unless it is told to take more"
            );
        }
        Ok(())
    }

    /// Moves a driver that was announced to this registrar's socket, if the one in use is left.
    ///
    /// The registrar of the one in use may replace it by itself, unless the driver is there.
    /// Another one may if that registrar has left too, and the driver is known to be gone.
    fn relocate(&mut self, two: TwoSockets, path: &Path) -> Result<Arc<Driver>, Unused> {
        let refused = Unused::TwoSockets(two.to_string());
        let Some(driver) = self.drivers.of_name(two.driver.as_str()) else { return Err(refused) };
        let FoundBy::Registration(registrar) = driver.found_by() else { return Err(refused) };
        let is_its_own = registrar == path;
        if driver.is_here() {
            return Err(refused);
        }
        if !is_its_own && self.found.is_used(&registrar) {
            // The socket of a registrar that was killed stays, so that one is asked again.
            if let Some(asked) = self.asked.get_mut(&registrar) {
                asked.due = Some(Instant::now());
            }
            return Err(refused);
        }
        let is_gone = driver.health().state == HealthState::Gone;
        if !is_gone && (!is_its_own || driver.was_reached()) {
            return Err(Unused::NotYet(two.to_string()));
        }
        if !driver.relocate(two.other.clone(), path.to_owned()) {
            return Err(refused);
        }
        let TwoSockets { driver: name, used, other } = two;
        info!(
            driver = %name,
            used = %used.display(),
            other = %other.display(),
            "a driver that was gone has another socket"
        );
        Ok(driver)
    }

    /// Keeps a driver for the next start, unless the configuration names it.
    fn keep_found(&mut self, driver: &Driver, path: &Path, role: Role) {
        let FoundBy::Registration(registrar) = driver.found_by() else { return };
        if registrar != path {
            if self.found.is_used(&registrar) {
                return;
            }
            driver.set_registrar(path.to_owned());
        }
        let socket = driver.sockets().socket;
        let registrar = path.to_owned();
        self.file.take(KeptDriver { driver: driver.name.clone(), socket, registrar, role });
    }

    /// Shows how an announcement stands, and logs it once.
    fn show(&self, path: &Path, info: &PluginInfo, outcome: &Result<(), Unused>) {
        let standing = match outcome {
            Ok(()) => AnnouncementState::Used,
            Err(Unused::NoCsiDriver(_) | Unused::OwnFront) => AnnouncementState::Ignored,
            Err(Unused::NotAllowed) => AnnouncementState::NotAllowed,
            Err(Unused::Wrong(_) | Unused::TwoSockets(_)) => AnnouncementState::Refused,
            Err(Unused::NotYet(_)) => AnnouncementState::Waiting,
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
            AnnouncementState::Used => {
                info!(driver, endpoint, %socket, "a driver has announced itself")
            }
            AnnouncementState::Ignored | AnnouncementState::Gone => {
                debug!(driver, %socket, why, "not a driver")
            }
            AnnouncementState::NotAllowed
            | AnnouncementState::Refused
            | AnnouncementState::Waiting => {
                warn!(driver, endpoint, %socket, why, "a driver that announces itself is not used");
            }
        }
    }
}

/// Tells a registrar what became of its driver.
async fn notify(socket: PathBuf, outcome: Result<(), Unused>) {
    let outcome = outcome.map_err(|unused| unused.to_string());
    if let Err(error) = client::notify(&socket, outcome).await {
        let error = chain(error.as_ref());
        debug!(socket = %socket.display(), error, "a registrar cannot be told");
    }
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
