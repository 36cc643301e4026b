//! A model of Kubernetes' own CSI sidecars, after their sources: what each calls, when it calls
//! again, which codes it takes for final, what it forgets when it exits.
//!
//! They are processes: each has a connection of its own, exits at the first call that finds it
//! lost, and is started again with nothing in memory. What they share is the API server ([`api`]).

pub mod api;
mod attacher;
pub mod client;
pub mod lister;
mod pace;
mod provisioner;
mod resizer;
mod snapshotter;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::csi;
use tokio::sync::Notify;
use tonic::Code;

use self::api::Api;
use self::client::{Client, Odd, Reply};
use super::dice::Dice;
use super::fleet::{Fleet, Process};
use super::record::Record;
use super::trace::Trace;

/// How long a sidecar waits for the socket before it exits.
const CONNECT: Duration = Duration::from_secs(30);

/// Which sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// external-provisioner.
    Provisioner,
    /// external-attacher.
    Attacher,
    /// external-resizer.
    Resizer,
    /// external-snapshotter.
    Snapshotter,
}

/// All four.
pub const KINDS: [Kind; 4] = [Kind::Provisioner, Kind::Attacher, Kind::Resizer, Kind::Snapshotter];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::Snapshotter => "snapshotter",
        }
    }
}

/// Where claims want their volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// At the node that the scheduler selected, and nowhere else: external-provisioner's
    /// `--strict-topology`.
    Strict,
    /// There, or else at any other node.
    Preferred,
    /// Anywhere: they are bound before a pod is scheduled.
    Anywhere,
}

/// What is wrong and was seen at once. A clone is the same.
#[derive(Clone, Default)]
pub struct Found(Arc<Mutex<(u64, Vec<String>)>>);

impl Found {
    /// Adds what was found by looking once more.
    pub fn add(&self, wrong: impl IntoIterator<Item = String>) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.0 += 1;
        found.1.extend(wrong);
    }

    /// How often was looked, and all that was found.
    pub fn all(&self) -> (u64, Vec<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the sidecars of a run have in common.
#[derive(Clone)]
pub struct World {
    /// The programs that they call.
    pub fleet: Arc<Fleet>,
    /// The API server.
    pub api: Api,
    /// What they called.
    pub record: Record,
    /// What happened.
    pub trace: Trace,
    /// Whether deadlines are odd now.
    pub odd: Arc<Odd>,
    /// The sidecars' `--timeout`.
    pub timeout: Duration,
    /// The sidecars' `--retry-interval-max`.
    pub most: Duration,
    /// What claims ask for.
    pub topology: Topology,
    /// What is wrong, as found by who saw it.
    pub found: Found,
    /// The seed of the run.
    pub seed: u64,
}

/// A running sidecar.
struct Sidecar {
    world: World,
    client: Client,
    dice: Mutex<Dice>,
}

/// Keeps a sidecar running for ever; `kill` ends its process once.
pub async fn keep(kind: Kind, world: World, kill: Arc<Notify>) {
    let mut delays = [1, 10, 20, 40].into_iter();
    for life in 0_u64.. {
        let process = Process::default();
        let why = live(kind, &world, &process, life, &kill).await;
        world.trace.say(format_args!("{}: exits: {why}", kind.name()));
        process.end.cancel();
        process.tasks.stop();
        // As the kubelet starts a container again.
        tokio::time::sleep(Duration::from_secs(delays.next().unwrap_or(60))).await;
    }
}

/// One life of a sidecar; gives back why it ended.
async fn live(kind: Kind, world: &World, process: &Process, life: u64, kill: &Notify) -> String {
    let dice = Dice::new(world.seed, &format!("{} {life}", kind.name()));
    let connecting = connect(kind, world, process, life);
    let Ok(client) = tokio::time::timeout(CONNECT, connecting).await else {
        return "no connection in time".into();
    };
    let sidecar = Arc::new(Sidecar { world: world.clone(), client, dice: Mutex::new(dice) });
    tokio::select! {
        biased;
        begun = sidecar.begin(kind) => if let Err(why) = begun { return why },
        () = kill.notified() => return "killed".into(),
        () = sidecar.client.lost.cancelled() => return "the connection is lost".into(),
    }
    let working = sidecar.clone();
    process.tasks.spawn_until_stop("sidecar", work(working, kind, process.clone()));
    tokio::select! {
        biased;
        () = kill.notified() => "killed".into(),
        () = sidecar.client.lost.cancelled() => "the connection is lost".into(),
    }
}

async fn connect(kind: Kind, world: &World, process: &Process, life: u64) -> Client {
    loop {
        let dice = Dice::new(world.seed, &format!("{} {life} calls", kind.name()));
        let notes = (world.record.clone(), world.trace.clone());
        let timeout = world.timeout;
        match Client::connect(kind.name(), &world.fleet, process, timeout, dice, notes).await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

/// Starts a worker for each object, also for those that come later.
async fn work(sidecar: Arc<Sidecar>, kind: Kind, process: Process) {
    let api = sidecar.world.api.clone();
    let mut changes = api.watch();
    let memory = Arc::new(provisioner::Memory::default());
    let mut begun = 0;
    loop {
        let objects = api.read(|objects| match kind {
            Kind::Provisioner | Kind::Resizer => objects.claims.len(),
            Kind::Attacher => objects.attachments.len(),
            Kind::Snapshotter => objects.snapshots.len(),
        });
        for at in begun..objects {
            let sidecar = sidecar.clone();
            let tasks = &process.tasks;
            match kind {
                Kind::Provisioner => {
                    tasks.spawn_until_stop("reclaim", provisioner::reclaim(sidecar.clone(), at));
                    tasks.spawn_until_stop(
                        "provision",
                        provisioner::provision(sidecar, memory.clone(), at),
                    );
                }
                Kind::Attacher => tasks.spawn_until_stop("attach", attacher::attach(sidecar, at)),
                Kind::Resizer => tasks.spawn_until_stop("resize", resizer::resize(sidecar, at)),
                Kind::Snapshotter => {
                    tasks.spawn_until_stop("snapshot", snapshotter::snapshot(sidecar, at))
                }
            }
        }
        begun = begun.max(objects);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

impl Sidecar {
    /// The calls of a start: the first error but a late or unready Probe is an exit.
    async fn begin(&self, kind: Kind) -> Result<(), String> {
        self.probe().await?;
        self.ask("GetPluginInfo", &csi::GetPluginInfoRequest {}).await?;
        if kind != Kind::Snapshotter {
            self.ask("GetPluginCapabilities", &csi::GetPluginCapabilitiesRequest {}).await?;
        }
        self.ask("ControllerGetCapabilities", &csi::ControllerGetCapabilitiesRequest {}).await
    }

    async fn probe(&self) -> Result<(), String> {
        loop {
            let reply = self.client.call("Probe", "", &csi::ProbeRequest {}, &Odd::default()).await;
            let ready = reply.decode::<csi::ProbeResponse>().and_then(|answer| answer.ready);
            match reply.code {
                Code::Ok if ready != Some(false) => return Ok(()),
                Code::Ok | Code::DeadlineExceeded => {
                    tokio::time::sleep(Duration::from_secs(1)).await
                }
                code => return Err(format!("Probe {code:?}")),
            }
        }
    }

    async fn ask(&self, method: &'static str, request: &impl prost::Message) -> Result<(), String> {
        let reply = self.client.call(method, "", request, &Odd::default()).await;
        if reply.code == Code::Ok { Ok(()) } else { Err(format!("{method} {:?}", reply.code)) }
    }

    async fn call(&self, method: &'static str, key: &str, request: &impl prost::Message) -> Reply {
        self.client.call(method, key, request, &self.world.odd).await
    }

    fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut self.dice.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
