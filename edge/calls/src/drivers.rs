//! The vendors' drivers at this node: which they are, what each says of itself, and how it is.
//!
//! Drivers are added at any time, and none is forgotten before a restart: it may have volumes. One
//! that was announced may move to another socket. A driver may serve its controller's half at a
//! socket of its own. It may use `error`, `connection` and
//! `introductions`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard, RwLock};
use prost::Message;
use proto::control::health::{Health, HealthState};
use proto::control::hello;
use proto::csi;
use proto::csi::method::Service;
use proto::csi::node_service_capability;
use proto::csi::topology;
use proto::csi::{Capabilities, Local, Method};
use proto::host::tasks::Tasks;
use proto::http2::forward::Answer;
use proto::link::{Connect, Io};
use proto::names::{DriverName, NodeName};
use tokio::sync::watch;

pub(crate) use crate::connection::headers;
use crate::connection::{Answers, Connection, Serves, dial_unix};
use crate::error::DriverSocket;
use crate::introductions::Introductions;

/// The sockets of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// Serves Identity and Node, and the controller's half too if that has no socket of its own.
    pub socket: PathBuf,
    /// Serves Controller, GroupController and SnapshotMetadata.
    pub controller: Option<PathBuf>,
}

impl From<PathBuf> for Sockets {
    fn from(socket: PathBuf) -> Self {
        Self { socket, controller: None }
    }
}

impl From<&str> for Sockets {
    fn from(socket: &str) -> Self {
        PathBuf::from(socket).into()
    }
}

/// The way in which a driver became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// csi-edge's configuration names it.
    Configuration,
    /// It was announced at this socket.
    Registration(PathBuf),
}

/// A second socket of a driver that has one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "driver {driver} has two sockets, {} and {}; the first stays in use, end the other one",
    used.display(), other.display()
)]
pub struct TwoSockets {
    /// The driver.
    pub driver: DriverName,
    /// The socket in use.
    pub used: PathBuf,
    /// The other one.
    pub other: PathBuf,
}

/// Where a driver is reached, and how it became known.
#[derive(Clone)]
struct Place {
    sockets: Sockets,
    found_by: FoundBy,
}

/// One driver.
pub struct Driver {
    /// Its CSI name.
    pub name: DriverName,
    place: Mutex<Place>,
    main: Arc<Connection>,
    controller: Option<Arc<Connection>>,
}

impl Driver {
    /// Where it is reached.
    pub fn sockets(&self) -> Sockets {
        self.place().sockets.clone()
    }

    /// How it became known.
    pub fn found_by(&self) -> FoundBy {
        self.place().found_by.clone()
    }

    /// Takes a driver that was announced for one of this registrar.
    pub fn set_registrar(&self, registrar: PathBuf) {
        let mut place = self.place();
        if let FoundBy::Registration(known) = &mut place.found_by {
            *known = registrar;
        }
    }

    /// Moves a driver that was announced to another registrar's socket; returns whether it did. A
    /// driver with an open connection stays where it is, and so does one that is configured.
    pub fn relocate(&self, socket: PathBuf, registrar: PathBuf) -> bool {
        let mut place = self.place();
        if place.found_by == FoundBy::Configuration
            || !self.main.relocate(socket.display().to_string())
        {
            return false;
        }
        *place = Place { sockets: socket.into(), found_by: FoundBy::Registration(registrar) };
        true
    }

    /// Whether it was reached since csi-edge started.
    pub fn was_reached(&self) -> bool {
        self.main.was_reached()
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock()
    }

    /// The connection for a call of this path. It sends the call: no call waits in this file.
    pub(crate) fn connection(&self, path: &str) -> &Arc<Connection> {
        match &self.controller {
            Some(controller) if Service::of_path(path).is_some_and(Service::is_controllers) => {
                controller
            }
            Some(_) | None => &self.main,
        }
    }

    fn connections(&self) -> impl Iterator<Item = &Arc<Connection>> {
        [Some(&self.main), self.controller.as_ref()].into_iter().flatten()
    }

    /// Node, driver and main socket, as errors name them.
    pub(crate) fn at(&self) -> Arc<DriverSocket> {
        self.main.at()
    }

    /// Node, driver and socket of a call of this path, as errors name them.
    pub(crate) fn socket_of(&self, path: &str) -> Arc<DriverSocket> {
        self.connection(path).at()
    }

    /// The driver's introduction and health. While some answers are not known, or one of the
    /// sockets is away, it has that to NodeGetInfo alone: the cloud would take other parts for the
    /// whole.
    pub fn hello(&self) -> hello::Driver {
        let mut answers = Answers::new();
        let mut is_whole = true;
        // The main socket's answers count where both have some.
        for connection in self.controller.iter().chain([&self.main]) {
            match connection.introduction() {
                Some(said) => {
                    is_whole &= said.is_whole();
                    answers.extend(said.answers.clone());
                }
                None => is_whole = false,
            }
        }
        if !is_whole {
            let node_info = Method::answering(Local::NodeInfo).name();
            answers.retain(|method, _| method == node_info);
        }
        hello::Driver { name: self.name.clone(), answers, health: Some(self.health()) }
    }

    /// What it answers to GetPluginInfo; none while it is away.
    pub(crate) fn plugin_info(&self) -> Option<Bytes> {
        let said = self.main.introduction()?;
        let info = said.answers.get(Method::answering(Local::Info).name())?;
        Some(info.0.clone())
    }

    /// Has it asked for NodeGetInfo again. The cloud is told of another answer.
    pub(crate) fn ask_node_info(&self) {
        self.main.ask_node_info();
    }

    /// Notes its answer to a caller's NodeGetInfo. If it is another one than before, the cloud is
    /// told too.
    pub(crate) fn note_node_info(&self, answer: &Answer) {
        let Some((answer, said)) = answer.message().zip(self.main.introduction()) else { return };
        if said.known(Local::NodeInfo).is_some_and(|known| known != answer) {
            self.ask_node_info();
        }
    }

    /// The driver's health: of its worse socket, if it has two.
    pub fn health(&self) -> Health {
        let main = self.main.reported_health();
        let controller = self.controller.as_ref().map(|controller| controller.reported_health());
        match controller {
            Some(controller) if badness(controller.state) > badness(main.state) => controller,
            Some(_) | None => main,
        }
    }

    /// Whether there is a connection to each of the driver's sockets.
    pub fn is_here(&self) -> bool {
        self.connections().all(|connection| connection.is_open())
    }

    /// Whether the driver has its own topology; none while that is not known.
    pub(crate) fn has_own_topology(&self) -> Option<bool> {
        // The socket for the controller's half says what the plugin can do.
        let plugin = self.controller.as_ref().unwrap_or(&self.main).introduction()?;
        let plugin = plugin.known(Local::Capabilities(Capabilities::Plugin))?;
        let node = self.main.introduction()?;
        Some(topology::has_own(plugin, node.known(Local::NodeInfo)?))
    }

    /// Whether the driver expands volumes on a node; none while that is not known.
    pub(crate) fn expands_on_node(&self) -> Option<bool> {
        let said = self.main.introduction()?;
        let said = said.known(Local::Capabilities(Capabilities::Node))?;
        let said = csi::NodeGetCapabilitiesResponse::decode(said).ok()?;
        let kinds = said.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let expand = node_service_capability::rpc::Type::ExpandVolume as i32;
        Some(kinds.into_iter().any(
            |kind| matches!(kind, node_service_capability::Type::Rpc(rpc) if rpc.r#type == expand),
        ))
    }
}

/// The order of states, the worse the greater.
fn badness(state: HealthState) -> u8 {
    match state {
        HealthState::Up => 0,
        HealthState::Starting => 1,
        HealthState::Failing => 2,
        HealthState::Gone => 3,
    }
}

/// All drivers of this node.
pub struct Drivers {
    node: NodeName,
    /// In order of their names.
    all: RwLock<Vec<Arc<Driver>>>,
    /// Counts the changes of the drivers' introductions.
    changes: watch::Sender<u64>,
    connect: Connect,
    introductions: Arc<Introductions>,
    /// The tasks that keep the connections, from [`Drivers::keep`] on.
    keeping: OnceLock<Tasks>,
}

impl Drivers {
    /// No drivers yet, at this node; they are reached by `connect`.
    pub fn new(node: NodeName, connect: Connect) -> Self {
        Self {
            node,
            all: RwLock::default(),
            changes: watch::Sender::new(0),
            connect,
            introductions: Arc::default(),
            keeping: OnceLock::new(),
        }
    }

    /// Keeps their introductions here. Before any driver is added.
    #[must_use]
    pub fn with_introductions(self, introductions: Introductions) -> Self {
        Self { introductions: Arc::new(introductions), ..self }
    }

    /// Adds a driver. One that is known at the same socket stays as it is.
    ///
    /// # Errors
    /// It is known at another socket, which stays in use.
    pub fn add(
        &self,
        name: DriverName,
        sockets: impl Into<Sockets>,
        found_by: FoundBy,
    ) -> Result<Arc<Driver>, TwoSockets> {
        let sockets = sockets.into();
        let mut all = self.all.write();
        if let Some(known) = all.iter().find(|driver| driver.name == name) {
            return same_socket(known, sockets);
        }
        let driver = Arc::new(self.driver(name, sockets, found_by));
        all.push(driver.clone());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        // Under the lock, so that it is kept once whenever the others begin to be.
        if let Some(tasks) = self.keeping.get() {
            keep(&driver, tasks);
        }
        drop(all);
        self.changes.send_modify(|changes| *changes += 1);
        Ok(driver)
    }

    fn driver(&self, name: DriverName, sockets: Sockets, found_by: FoundBy) -> Driver {
        let connection = |socket: &Path, serves| {
            let socket = socket.display().to_string();
            let at = DriverSocket { node: self.node.clone(), driver: name.clone(), socket };
            let Self { changes, connect, introductions, .. } = self;
            let introductions = introductions.clone();
            let connection =
                Connection::new(at, serves, changes.clone(), connect.clone(), introductions);
            Arc::new(connection)
        };
        let controller = sockets.controller.as_deref();
        let controller = controller.map(|socket| connection(socket, Serves::Controller));
        let serves = if controller.is_some() { Serves::Node } else { Serves::All };
        let main = connection(&sockets.socket, serves);
        let place = Mutex::new(Place { sockets, found_by });
        Driver { name, place, main, controller }
    }

    /// Keeps the connections of all drivers, in `tasks`.
    pub fn keep(&self, tasks: &Tasks) {
        let all = self.all.write();
        if self.keeping.set(tasks.clone()).is_ok() {
            all.iter().for_each(|driver| keep(driver, tasks));
        }
    }

    /// This node.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Each of them, by name.
    pub fn all(&self) -> Vec<Arc<Driver>> {
        self.all.read().clone()
    }

    /// The driver of this name.
    pub fn of_name(&self, name: &str) -> Option<Arc<Driver>> {
        let all = self.all.read();
        all.iter().find(|driver| driver.name.as_str() == name).cloned()
    }

    /// The introductions of the drivers; a driver that is away has only its name and health.
    pub fn hello(&self) -> Vec<hello::Driver> {
        self.all().iter().map(|driver| driver.hello()).collect()
    }

    /// What the drivers said last.
    pub(crate) fn introductions(&self) -> &Introductions {
        &self.introductions
    }

    /// Keeps their introductions, until dropped.
    pub async fn keep_introductions(self: Arc<Self>) {
        let mut changes = self.changes();
        changes.mark_changed();
        while changes.changed().await.is_ok() {
            self.introductions.take(self.hello()).await;
        }
    }

    /// Changes whenever the result of [`Drivers::hello`] does, apart from ages.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

fn keep(driver: &Arc<Driver>, tasks: &Tasks) {
    for connection in driver.connections() {
        let (connection, of_driver) = (connection.clone(), tasks.clone());
        tasks.spawn_again("driver", move || connection.clone().keep(of_driver.clone()));
    }
}

/// The known driver, if this is its socket.
fn same_socket(known: &Arc<Driver>, sockets: Sockets) -> Result<Arc<Driver>, TwoSockets> {
    let used = known.sockets().socket;
    let resolved = |path: &Path| path.canonicalize().ok();
    let same = used == sockets.socket
        || resolved(&used).is_some_and(|used| Some(used) == resolved(&sockets.socket));
    if same {
        return Ok(known.clone());
    }
    Err(TwoSockets { driver: known.name.clone(), used, other: sockets.socket })
}

/// Connects to a driver by the path of its unix socket, or by the name of an abstract one.
pub fn unix() -> Connect {
    Arc::new(|path| Box::pin(async move { Ok(Box::new(dial_unix(&path).await?) as Io) }))
}

#[cfg(test)]
mod tests;
