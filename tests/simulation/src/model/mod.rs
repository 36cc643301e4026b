//! A model of Kubernetes' own CSI sidecars, written after their sources. It has their calls, their
//! retries, their final codes, and what they forget when they exit.
//!
//! They are processes with a connection each. A sidecar exits at the first call that finds the
//! connection lost, and starts again with an empty memory. They share the API server ([`api`]).

pub mod api;
mod attacher;
mod caller;
pub mod client;
pub mod lister;
mod maker;
mod pace;
mod provisioner;
pub mod repeater;
mod resizer;
mod sidecar;
mod snapshotter;
mod world;

pub use self::sidecar::{KINDS, SidecarKind};
pub use self::world::{Found, Topology, World};

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::client::Client;
use self::sidecar::Sidecar;
use super::dice::Dice;
use super::process::Process;

/// How long a sidecar waits for the socket before it exits.
const CONNECT: Duration = Duration::from_secs(30);

/// Keeps a sidecar running for ever; `kill` ends its process once.
pub async fn keep(kind: SidecarKind, world: World, kill: Arc<Notify>) {
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

/// One life of a sidecar; returns the reason of its end.
async fn live(
    kind: SidecarKind,
    world: &World,
    process: &Process,
    life: u64,
    kill: &Notify,
) -> String {
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

async fn connect(kind: SidecarKind, world: &World, process: &Process, life: u64) -> Client {
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

/// Starts a worker for each object, including later ones.
async fn work(sidecar: Arc<Sidecar>, kind: SidecarKind, process: Process) {
    let api = sidecar.world.api.clone();
    let mut changes = api.watch();
    let memory = Arc::new(provisioner::Memory::default());
    let mut begun = 0;
    loop {
        let objects = api.read(|objects| match kind {
            SidecarKind::Provisioner | SidecarKind::Resizer => objects.claims.len(),
            SidecarKind::Attacher => objects.attachments.len(),
            SidecarKind::Snapshotter => objects.snapshots.len(),
        });
        for at in begun..objects {
            let sidecar = sidecar.clone();
            let tasks = &process.tasks;
            match kind {
                SidecarKind::Provisioner => {
                    tasks.spawn_until_stop("reclaim", provisioner::reclaim(sidecar.clone(), at));
                    tasks.spawn_until_stop(
                        "provision",
                        provisioner::provision(sidecar, memory.clone(), at),
                    );
                }
                SidecarKind::Attacher => {
                    tasks.spawn_until_stop("attach", attacher::attach(sidecar, at))
                }
                SidecarKind::Resizer => {
                    tasks.spawn_until_stop("resize", resizer::resize(sidecar, at))
                }
                SidecarKind::Snapshotter => {
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
