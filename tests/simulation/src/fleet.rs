//! The processes of a run: one cloud, some edges, a driver beside each edge. All can be killed and
//! started again. A killed one loses its connections at once, so its remaining tasks reach nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cloud::csi::front::Front;
use cloud::nodes::links::Links;
use cloud::state::policy::Scope;
use cloud::state::store::writer::Store;
use edge::link::dial::Dial;
use edge_calls::drivers::{Drivers, FoundBy};
use edge_calls::executor::Executor;
use edge_calls::fence::Fence;
use parking_lot::{Mutex, MutexGuard};
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::host::publish::{Existing, publish};
use proto::host::tasks::{TaskKind, Tasks};
use proto::http2::serve;
use proto::link::tls::{Credentials, Role};
use proto::link::{Connect, KeepAlive};
use proto::names::NodeName;
use rand::rngs::StdRng;
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cloud_run::CloudRun;
use super::dice::Dice;
use super::disk::{Crash, Disk, Noted};
use super::keys::{Keys, LIAR, NODES};
use super::net::Net;
use super::process::Process;
use super::replicas::{self, Replicas};
use super::shape::{DRIVER, Shape, driver_name};
use super::trace::Trace;
use super::wire::{Plan, boxed, wire};
use drivers::testdriver::{Running, TestDriver};

mod supervised;

/// How soon an edge tries a preferred endpoint again.
const RETURN: Duration = Duration::from_secs(20);
/// How long a stopping process may take to finish its calls.
const STOP: Duration = Duration::from_secs(10);

/// A running csi-edge.
struct EdgeRun {
    process: Process,
    /// The tasks that accept calls; they stop before the executor does.
    doors: Tasks,
}

/// A machine that runs an edge.
pub(super) struct Board {
    /// The node of its certificate.
    pub(super) node: NodeName,
    /// Its number in the network.
    pub(super) number: usize,
    /// What its firmware calls it.
    pub(super) own: String,
    /// The way to its driver.
    pub(super) to_driver: Connect,
    /// The edge.
    pub(super) process: Process,
}

/// The fleet.
pub struct Fleet {
    /// Each node's driver; its memory outlives its process, as storage does.
    pub drivers: Vec<TestDriver>,
    /// Between edges and cloud.
    pub net: Net,
    keys: Arc<Keys>,
    trace: Trace,
    /// Of the world, not of any process.
    tasks: Tasks,
    shape: Shape,
    /// Several clouds in the place of one, in some runs.
    pub(super) replicas: Option<Arc<Replicas>>,
    /// The state directories of edges that know several clouds. All else of an edge is in memory.
    disks: Option<TempDir>,
    /// A file for each driver, in the place of its socket: another file there is another process.
    sockets: Option<TempDir>,
    state: Mutex<FleetState>,
}

/// The state of a shared driver's election.
pub struct Election {
    /// When the cloud started that carries calls out, or began to lead.
    pub since: Instant,
    /// The elected node.
    pub elected: Option<NodeName>,
    /// The nodes that have a link.
    pub linked: Vec<NodeName>,
    /// Those of them that say that their driver has been down for the grace.
    pub down: Vec<NodeName>,
}

struct FleetState {
    disk: Disk,
    dice: Dice,
    /// How often the cloud died of a commit.
    crashes: u64,
    cloud: Option<CloudRun>,
    edges: BTreeMap<usize, EdgeRun>,
    /// The cloud is stopping, and so are the edges of these nodes; nothing starts in their place
    /// before they end.
    cloud_leaves: bool,
    edges_leave: BTreeSet<usize>,
    drivers: BTreeMap<usize, (CancellationToken, Arc<Running>)>,
    cloud_stops: Vec<(Instant, Instant)>,
    driver_ends: Vec<(usize, Instant)>,
    /// When each edge was killed, in the order of time.
    edge_ends: Vec<(usize, Instant)>,
}

impl Fleet {
    /// A fleet of this kind, nothing running yet.
    pub fn new(
        shape: Shape,
        mut dice: Dice,
        keys: Arc<Keys>,
        net: Net,
        trace: Trace,
        tasks: Tasks,
    ) -> Arc<Self> {
        let mut drivers: Vec<TestDriver> = Vec::new();
        for (n, node) in (0..).zip(NODES.iter().take(shape.nodes)) {
            let shares = drivers.first().filter(|_| shape.scope == Scope::Shared);
            drivers.push(
                shares.map_or_else(|| TestDriver::new(DRIVER, *node), |first| first.beside(*node)),
            );
            // Ids are one name space over all nodes, as those of a driver that names volumes by
            // UUID.
            if let Some(driver) = drivers.last().filter(|_| shape.scope == Scope::Node) {
                driver.count_from((n + 1) * 1000);
                driver.stay_here();
            }
        }
        for driver in &drivers {
            // As most vendors' servers have it: connections of a maximum age, few streams on each.
            let age = dice.chance(30).then(|| dice.time(2_000, 60_000));
            let streams = dice.chance(20).then(|| u32::try_from(dice.between(1, 6)).unwrap_or(1));
            driver.limit_connections(age, streams);
        }
        let replicas = (shape.replicas > 1).then(|| {
            let parts = (keys.clone(), net.clone(), trace.clone(), tasks.clone());
            let dice = Dice::new(dice.between(0, u64::MAX), "replicas");
            let replicas = Replicas::new(shape, dice, parts);
            replicas.prepare_etcd();
            replicas
        });
        let state = FleetState {
            disk: Disk::default(),
            dice,
            crashes: 0,
            cloud: None,
            edges: BTreeMap::new(),
            cloud_leaves: false,
            edges_leave: BTreeSet::new(),
            drivers: BTreeMap::new(),
            cloud_stops: Vec::new(),
            driver_ends: Vec::new(),
            edge_ends: Vec::new(),
        };
        let state = Mutex::new(state);
        let disks = replicas.as_ref().and_then(|_| tempfile::tempdir().ok());
        let sockets = tempfile::tempdir().ok();
        Arc::new(Self { drivers, net, keys, trace, tasks, shape, replicas, disks, sockets, state })
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The drivers that have a storage of their own, with their nodes: one alone if they share it.
    pub fn storages(&self) -> impl Iterator<Item = (usize, &TestDriver)> {
        let shared = self.shape.scope == Scope::Shared;
        self.drivers.iter().enumerate().take(if shared { 1 } else { usize::MAX })
    }

    fn lock(&self) -> MutexGuard<'_, FleetState> {
        self.state.lock()
    }

    /// Starts every process that does not run.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn start_all(self: &Arc<Self>) -> anyhow::Result<()> {
        self.start_cloud()?;
        for node in 0..self.drivers.len() {
            self.start_driver(node);
            self.start_edge(node)?;
        }
        Ok(())
    }

    /// Starts the cloud, if it does not run.
    ///
    /// # Errors
    /// Its certificate cannot be read.
    pub fn start_cloud(self: &Arc<Self>) -> anyhow::Result<()> {
        if let Some(replicas) = &self.replicas {
            replicas.start_all();
            return Ok(());
        }
        let mut state = self.lock();
        if state.cloud.is_some() || state.cloud_leaves {
            return Ok(());
        }
        let process = Process::default();
        let percent = self.shape.crashes;
        let crash = state.dice.chance(percent).then(|| self.crash(&mut state.dice));
        let store = Store::open(Box::new(state.disk.of(process.clone(), crash)), &process.tasks)?;
        let cloud = CloudRun::start(&self.shape, store, process.clone())?;
        self.net.open(self.shape.endpoints, cloud.door(&self.keys)?, process.end.clone());
        self.trace.say("the cloud starts");
        state.cloud = Some(cloud);
        Ok(())
    }

    /// Draws a death at a commit for the next cloud, and starts the cloud again after a while.
    fn crash(self: &Arc<Self>, dice: &mut Dice) -> Crash {
        let (told, happens) = tokio::sync::oneshot::channel();
        let fleet = self.clone();
        let down = dice.time(100, 5_000);
        self.tasks.spawn_until_stop("crash", async move {
            // A cloud that ends otherwise takes its crash with it.
            let Ok(how) = happens.await else { return };
            fleet.trace.say(format_args!("the cloud dies {how}"));
            fleet.lock().crashes += 1;
            fleet.kill_cloud();
            tokio::time::sleep(down).await;
            drop(fleet.start_cloud());
        });
        Crash::draw(dice, told)
    }

    /// No cloud dies of a commit any more.
    pub fn calm(&self) {
        self.net.calm();
        if let Some(replicas) = &self.replicas {
            replicas.calm();
        }
        self.lock().disk.calm();
    }

    /// How often the cloud died of a commit.
    pub fn crashes(&self) -> u64 {
        self.lock().crashes
    }

    /// Kills the cloud, and loses its store.
    pub fn lose_store(&self) {
        self.kill_cloud();
        self.trace.say("the store is lost");
        self.lock().disk.lose();
    }

    /// Makes a backup of the cloud's store.
    pub(super) fn back_up(&self) {
        self.trace.say("the store is backed up");
        self.lock().disk.back_up();
    }

    /// Whether there is a backup of the cloud's store.
    pub(super) fn has_backup(&self) -> bool {
        self.lock().disk.has_backup()
    }

    /// Kills the cloud, and puts the backup of its store back.
    pub(super) fn put_back(&self) {
        self.kill_cloud();
        self.trace.say("the store goes back to its backup");
        self.lock().disk.put_back();
    }

    /// Waits until all honest nodes are linked, for this many seconds at most.
    pub(super) async fn all_linked(&self, seconds: u64) {
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.election().is_some_and(|now| now.linked.len() == self.drivers.len()) {
                break;
            }
        }
    }

    /// All that became durable in the cloud's store, and when.
    pub fn noted(&self) -> Vec<Noted> {
        self.read_noted(<[Noted]>::to_vec)
    }

    /// Reads all that became durable in the cloud's store.
    pub(super) fn read_noted<T>(&self, read: impl FnOnce(&[Noted]) -> T) -> T {
        match &self.replicas {
            Some(replicas) => replicas.read_noted(read),
            None => read(&self.lock().disk.noted()),
        }
    }

    /// The cloud that leads, if it runs.
    fn run(&self) -> Option<CloudRun> {
        match &self.replicas {
            Some(replicas) => replicas.leader(),
            None => self.lock().cloud.clone(),
        }
    }

    /// The store and the links of the cloud, if it runs.
    pub(super) fn cloud(&self) -> Option<(Store, Arc<Links>)> {
        self.run().map(|cloud| (cloud.store, cloud.links))
    }

    /// The store of the cloud, if it runs.
    pub fn store(&self) -> Option<Store> {
        self.run().map(|cloud| cloud.store)
    }

    /// The front of the cloud, if it runs.
    pub fn serving(&self) -> Option<Arc<Front>> {
        self.run().map(|cloud| cloud.front)
    }

    /// The elected node, if the cloud runs.
    pub fn election(&self) -> Option<Election> {
        let cloud = self.run()?;
        let name = driver_name().ok()?;
        let elected = cloud.store.read(|state| state.driver(&name)?.elected().cloned());
        let linked = cloud.links.linked();
        let grace = self.shape.policy().grace;
        let away = |node: &&NodeName| cloud.links.driver_away(node, &name);
        let is_down = |node: &&NodeName| away(node).is_some_and(|down| down >= grace);
        let down = linked.iter().filter(is_down).cloned().collect();
        Some(Election { since: cloud.since, elected, linked, down })
    }

    /// Kills the cloud: all its connections end at once, those of the sidecars too.
    pub fn kill_cloud(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.kill_leader();
        }
        if let Some(cloud) = self.lock().cloud.take() {
            self.trace.say("the cloud is killed");
            cloud.kill();
        }
    }

    /// Stops the cloud as SIGTERM does, and waits until it has ended.
    pub async fn stop_cloud(&self) {
        if let Some(replicas) = &self.replicas {
            return replicas.stop_leader().await;
        }
        let Some(cloud) = self.lock().cloud.take() else { return };
        self.lock().cloud_leaves = true;
        let told = Instant::now();
        self.trace.say("the cloud is told to stop");
        cloud.stop(STOP).await;
        self.trace.say("the cloud has stopped");
        let mut state = self.lock();
        state.cloud_leaves = false;
        state.cloud_stops.push((told, Instant::now()));
    }

    /// When each driver was killed.
    pub fn driver_ends(&self) -> Vec<(usize, Instant)> {
        self.lock().driver_ends.clone()
    }

    /// From when to when the cloud was stopping.
    pub fn cloud_stops(&self) -> Vec<(Instant, Instant)> {
        self.lock().cloud_stops.clone()
    }

    /// A sidecar's connection to the cloud's socket; an error while there is no cloud.
    pub fn front(&self, caller: CancellationToken) -> io::Result<DuplexStream> {
        if let Some(replicas) = &self.replicas {
            return Ok(replicas::take(replicas, caller));
        }
        let state = self.lock();
        let CloudRun { process, front, fronts, .. } =
            state.cloud.as_ref().ok_or(io::ErrorKind::ConnectionRefused)?;
        let (near, far, _) = wire(&Plan::default(), [caller, process.end.clone()], &self.tasks);
        let front = front.clone();
        let stop = fronts.clone();
        fronts.spawn("front connection", async move {
            let answer = move |request| front.clone().answer(request);
            let served = serve::serve(far, answer, stop.stopped());
            tokio::select! {
                biased;
                _ = served => {}
                () = stop.given_up() => {}
            }
        });
        Ok(near)
    }

    /// How many nodes the cloud knows.
    pub fn known(&self) -> usize {
        let known = |store: &Store| {
            store.read(|state| {
                let nodes = state.driver(&driver_name().ok()?)?.nodes();
                Some(nodes.keys().filter(|node| node.as_str() != LIAR).count())
            })
        };
        self.store().and_then(|store| known(&store)).unwrap_or(0)
    }

    /// The credentials of a program.
    ///
    /// # Errors
    /// Its certificate cannot be read.
    pub fn credentials(&self, name: &str, role: Role) -> anyhow::Result<Credentials> {
        self.keys.of(name, role)
    }

    /// Starts a node's edge, if it does not run.
    ///
    /// # Errors
    /// Its certificate cannot be read.
    pub fn start_edge(self: &Arc<Self>, node: usize) -> anyhow::Result<()> {
        let mut state = self.lock();
        if state.edges.contains_key(&node) || state.edges_leave.contains(&node) {
            return Ok(());
        }
        let name: NodeName = NODES.get(node).copied().unwrap_or_default().parse()?;
        let process = Process::default();
        let to_driver = self.to_driver(node, process.end.clone());
        let own = name.to_string();
        let board = Board { node: name, number: node, own, to_driver, process };
        let doors = self.run_edge(&board, state.dice.fork())?;
        self.trace.say(format_args!("the edge of {} starts", board.node));
        self.supervise(node, doors.clone());
        state.edges.insert(node, EdgeRun { process: board.process, doors });
        Ok(())
    }

    /// Runs an edge on a machine. Returns the tasks that accept its calls.
    ///
    /// # Errors
    /// Its certificate cannot be read.
    pub(super) fn run_edge(&self, board: &Board, dice: StdRng) -> anyhow::Result<Tasks> {
        let Board { node, number, own, to_driver, process } = board;
        let doors = Tasks::default();
        let drivers = Arc::new(Drivers::new(node.clone(), to_driver.clone()));
        drivers.add(driver_name()?, self.socket(*number), FoundBy::Configuration)?;
        drivers.keep(&process.tasks);
        let cloud = self.shape.endpoints.iter().map(|name| format!("wss://{name}").parse());
        let dial = Dial {
            cloud: cloud.collect::<Result<_, _>>()?,
            return_after: RETURN,
            credentials: self.keys.of(node.as_str(), Role::Node)?,
            identity: None,
            node: node.clone(),
            executor: Arc::new(self.executor(&drivers, board)),
            drivers,
            scopes: Arc::default(),
            leases: Arc::default(),
            not_taken: tokio::sync::watch::channel(None).1,
            expands: false,
            metadata: Arc::default(),
            linked: tokio::sync::watch::Sender::default(),
            keep_alive: KeepAlive::default(),
            network: self.net.way(*number, process.end.clone()).into(),
            answers_challenge: !self.shape.are_doubled,
            run: Run::begin(),
            machine: Some(MachineId::new(own)),
        };
        doors.spawn(TaskKind::All("dial"), dial.keep(dice, doors.clone()));
        Ok(doors)
    }

    /// What runs an edge's calls. It knows the epochs that the edge was told before it ended.
    fn executor(&self, drivers: &Arc<Drivers>, board: &Board) -> Executor {
        let executor = Executor::new(drivers.clone(), board.process.tasks.clone());
        let Some(disks) = &self.disks else { return executor };
        let disk = disks.path().join(&board.own);
        // It is there already when an edge starts again.
        drop(std::fs::create_dir(&disk));
        executor.with_fence(Fence::open(Some(&disk), board.node.clone()))
    }

    /// Kills a node's edge.
    pub fn kill_edge(&self, node: usize) {
        let mut state = self.lock();
        if let Some(edge) = state.edges.remove(&node) {
            self.trace.say(format_args!("the edge of n{} is killed", node + 1));
            edge.doors.give_up();
            edge.process.kill();
            state.edge_ends.push((node, Instant::now()));
        }
    }

    /// Stops a node's edge as SIGTERM does, and waits until it has ended.
    pub async fn stop_edge(&self, node: usize) {
        let Some(edge) = self.lock().edges.remove(&node) else { return };
        self.lock().edges_leave.insert(node);
        self.trace.say(format_args!("the edge of n{} is told to stop", node + 1));
        let end = Instant::now() + STOP;
        if edge.doors.finish_before(tokio::time::sleep_until(end)).await {
            edge.process.tasks.finish_before(tokio::time::sleep_until(end)).await;
        }
        edge.process.kill();
        self.trace.say(format_args!("the edge of n{} has stopped", node + 1));
        let mut state = self.lock();
        state.edges_leave.remove(&node);
        state.edge_ends.push((node, Instant::now()));
    }

    /// When each edge was killed.
    pub fn edge_ends(&self) -> Vec<(usize, Instant)> {
        self.lock().edge_ends.clone()
    }

    /// Starts a node's driver, if it does not run.
    pub fn start_driver(&self, node: usize) {
        let mut state = self.lock();
        if let (Some(driver), false) = (self.drivers.get(node), state.drivers.contains_key(&node)) {
            self.trace.say(format_args!("the driver of n{} starts", node + 1));
            state.drivers.insert(node, (CancellationToken::new(), Arc::new(driver.start())));
            // Without a file nobody can tell that a later process is another one.
            drop(publish(&self.socket(node), b"", 0o600, Existing::Keep));
        }
    }

    /// The path of a driver's socket.
    fn socket(&self, node: usize) -> PathBuf {
        let directory = self.sockets.as_ref().map(TempDir::path);
        directory.unwrap_or_else(|| Path::new("")).join(format!("n{}.sock", node + 1))
    }

    /// Has another process of a node's driver serve its path. The one before goes on with its
    /// calls, and is killed after this time.
    pub fn replace_driver(self: &Arc<Self>, node: usize, after: Duration) {
        let mut state = self.lock();
        let Some(driver) = self.drivers.get(node) else { return };
        let Some(running) = state.drivers.get_mut(&node) else { return };
        let newer = (CancellationToken::new(), Arc::new(driver.start()));
        let (end, older) = std::mem::replace(running, newer);
        drop(state);
        self.trace.say(format_args!("another process serves the driver's path at n{}", node + 1));
        drop(publish(&self.socket(node), b"", 0o600, Existing::Replace));
        let (fleet, trace) = (Arc::downgrade(self), self.trace.clone());
        self.tasks.spawn_until_stop("older driver", async move {
            tokio::time::sleep(after).await;
            trace.say(format_args!("the older driver of n{} is killed", node + 1));
            end.cancel();
            drop(older);
            if let Some(fleet) = fleet.upgrade() {
                fleet.lock().driver_ends.push((node, Instant::now()));
            }
        });
    }

    /// Kills a node's driver: its calls are dropped, what it has stored stays.
    pub fn kill_driver(&self, node: usize) {
        let mut state = self.lock();
        if let Some((end, running)) = state.drivers.remove(&node) {
            self.trace.say(format_args!("the driver of n{} is killed", node + 1));
            end.cancel();
            drop(running);
            state.driver_ends.push((node, Instant::now()));
        }
    }

    /// Ends everything.
    pub fn end(&self) {
        self.kill_cloud();
        if let Some(replicas) = &self.replicas {
            replicas.end();
        }
        for node in 0..self.drivers.len() {
            self.kill_edge(node);
            self.kill_driver(node);
        }
    }

    fn to_driver(self: &Arc<Self>, node: usize, edge: CancellationToken) -> Connect {
        let fleet = self.clone();
        Arc::new(move |_| {
            let fleet = fleet.clone();
            let edge = edge.clone();
            Box::pin(async move {
                let state = fleet.lock();
                let running = state.drivers.get(&node).filter(|_| !edge.is_cancelled());
                let (driver, running) = running.ok_or(io::ErrorKind::ConnectionRefused)?;
                let (near, far, _) = wire(&Plan::default(), [edge, driver.clone()], &fleet.tasks);
                running.take(far);
                Ok(boxed(near))
            })
        })
    }
}
