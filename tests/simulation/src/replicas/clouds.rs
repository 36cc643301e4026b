//! Several clouds: which live, how they are, and how they end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use ::harness::etcd::Etcd;
use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use proto::http2::forward::Answer;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cloud_run::CloudRun;
use crate::dice::Dice;
use crate::disk::Noted;
use crate::keys::{Keys, REPLICAS};
use crate::net::Net;
use crate::process::Process;
use crate::shape::Shape;
use crate::trace::Trace;
use crate::wire::{Mishap, Way, Wire};

/// The header with the number of the cloud's life that a call went to.
pub(crate) const RUN: &str = "sim-cloud";
/// The members of the store.
pub(super) const MEMBERS: usize = 3;
/// How long a cloud that ends may take with its calls; as the product's.
const HANDOVER: Duration = Duration::from_millis(700);

/// The certificates, the network, the trace, and the tasks of the world.
type Parts = (Arc<Keys>, Net, Trace, Tasks);

/// Several clouds.
pub(crate) struct Replicas {
    pub(super) shape: Shape,
    pub(super) keys: Arc<Keys>,
    pub(super) net: Net,
    pub(super) trace: Trace,
    pub(super) tasks: Tasks,
    pub(super) etcd: Etcd,
    pub(super) relay: Relay,
    /// Changed when etcd ends a leader's lease before its time.
    pub(super) lease_ends: watch::Sender<()>,
    state: Mutex<State>,
}

/// What the relay of the sidecars knows.
#[derive(Default)]
pub(super) struct Relay {
    /// The cloud that took the last call.
    pub(super) now: AtomicUsize,
    /// The last answers of clouds about themselves.
    pub(super) last: Mutex<HashMap<&'static str, Answer>>,
    /// When a cloud last listed volumes after a later one had begun to lead.
    pub(super) listed_late: Mutex<Option<Instant>>,
}

/// How the clouds are.
pub(super) struct State {
    pub(super) dice: Dice,
    /// Nothing goes wrong any more.
    pub(super) is_calm: bool,
    /// By cloud.
    pub(super) lives: Vec<Option<Life>>,
    /// How many there were.
    pub(super) begun: u64,
    /// By the number of a life: its epoch, if it has led.
    pub(super) epochs: BTreeMap<u64, u64>,
    /// Connections of clouds to the store, and of the relay to them.
    pub(super) wires: Vec<Laid>,
    /// By cloud: it cannot reach the store until then.
    pub(super) apart: Vec<Instant>,
    /// By cloud and member: they do not reach each other until then.
    pub(super) parted: Vec<[Instant; MEMBERS]>,
    /// By cloud: it stands still until then.
    pub(super) still: Vec<Instant>,
    pub(super) noted: Vec<Noted>,
    /// What is wrong with the store.
    pub(super) wrong: Vec<String>,
    pub(super) counted: BTreeMap<&'static str, u64>,
}

/// A connection of a cloud.
pub(super) struct Laid {
    pub(super) at: usize,
    /// The member of the store that it goes to; none if it comes from the relay.
    pub(super) member: Option<usize>,
    pub(super) wire: Arc<Wire>,
}

/// A cloud's life, from its start to its end.
#[derive(Clone)]
pub(super) struct Life {
    pub(super) number: u64,
    pub(super) process: Process,
    /// None while it reads the store.
    pub(super) run: Option<(CloudRun, cloud::relay::listen::RelayListener)>,
    pub(super) ends: bool,
}

impl Replicas {
    /// None runs yet.
    pub(crate) fn new(shape: Shape, dice: Dice, (keys, net, trace, tasks): Parts) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            dice,
            is_calm: false,
            lives: vec![None; REPLICAS.len()],
            begun: 0,
            epochs: BTreeMap::new(),
            wires: Vec::new(),
            apart: vec![now; REPLICAS.len()],
            parted: vec![[now; MEMBERS]; REPLICAS.len()],
            still: vec![now; REPLICAS.len()],
            noted: Vec::new(),
            wrong: Vec::new(),
            counted: BTreeMap::new(),
        };
        let etcd = Etcd::new(MEMBERS, tasks.clone());
        let relay = Relay::default();
        let state = Mutex::new(state);
        let lease_ends = watch::Sender::default();
        Arc::new(Self { shape, keys, net, trace, tasks, etcd, relay, lease_ends, state })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The epochs of all lives that have led.
    pub(crate) fn epochs(&self) -> BTreeMap<u64, u64> {
        self.lock().epochs.clone()
    }

    /// Marked as changed when etcd ends a leader's lease before its time, from now on.
    pub(crate) fn lease_ends(&self) -> watch::Receiver<()> {
        self.lease_ends.subscribe()
    }

    /// Whether a cloud listed volumes since then, after a later one had begun to lead.
    pub(crate) fn was_listed_late(&self, since: Instant) -> bool {
        self.relay.listed_late.lock().is_some_and(|at| at >= since)
    }

    /// What is wrong with the store.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }

    /// How often what went wrong.
    pub(crate) fn counted(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counted.clone()
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counted.entry(what).or_default() += 1;
    }

    /// Reads all that became durable.
    pub(crate) fn read_noted<T>(&self, read: impl FnOnce(&[Noted]) -> T) -> T {
        read(&self.lock().noted)
    }

    /// The place of the cloud that leads, as it thinks.
    fn leader_at(&self) -> Option<usize> {
        let leads = |life: &Option<Life>| {
            let run = life.as_ref().and_then(|life| life.run.as_ref());
            run.is_some_and(|(run, _)| run.store.leadership().leads())
        };
        self.lock().lives.iter().rposition(leads)
    }

    /// The cloud that leads.
    pub(crate) fn leader(&self) -> Option<CloudRun> {
        let at = self.leader_at()?;
        let life = self.lock().lives.get(at).cloned()??;
        life.run.map(|(run, _)| run)
    }

    /// Kills a cloud.
    pub(super) fn kill(&self, at: usize) {
        let life = self.lock().lives.get_mut(at).and_then(Option::take);
        if let Some(life) = life {
            self.trace.say(format_args!("cloud {at} is killed"));
            life.process.kill();
            if let Some((run, _)) = life.run {
                run.kill();
            }
        }
    }

    /// Kills the cloud that leads, or any.
    pub(crate) fn kill_leader(&self) {
        self.kill(self.leader_or_any());
    }

    /// Stops the cloud that leads, or any, and waits until it has ended.
    pub(crate) async fn stop_leader(&self) {
        self.stop(self.leader_or_any()).await;
    }

    pub(super) fn leader_or_any(&self) -> usize {
        self.leader_at().unwrap_or_else(|| self.lock().dice.below(REPLICAS.len()))
    }

    /// Stops a cloud as SIGTERM does.
    pub(super) async fn stop(&self, at: usize) {
        let life = {
            let mut state = self.lock();
            let Some(life) = state.lives.get_mut(at).and_then(Option::as_mut) else { return };
            if std::mem::replace(&mut life.ends, true) {
                return;
            }
            life.clone()
        };
        self.trace.say(format_args!("cloud {at} is told to stop"));
        let Some((run, _)) = life.run else { return self.kill(at) };
        run.stop(HANDOVER).await;
        // What it sent before it ended is on its way.
        let still = self.lock().still.get(at).copied();
        if let Some(still) = still {
            tokio::time::sleep_until(still).await;
        }
        let mut state = self.lock();
        if let Some(place) = state.lives.get_mut(at)
            && place.as_ref().is_some_and(|now| now.number == life.number)
        {
            *place = None;
        }
    }

    /// A cloud stands still for a while: what it sends and gets is late, and it does not know.
    pub(super) fn pause(&self, at: usize, time: Duration) {
        let mut state = self.lock();
        self.trace.say(format_args!("cloud {at} stands still for {time:?}"));
        if let Some(still) = state.still.get_mut(at) {
            *still = Instant::now() + time;
        }
        stall(state.wires.iter().filter(|laid| laid.at == at), time);
        drop(state);
        if let Some(address) = REPLICAS.get(at) {
            self.net.stand_still(address, time);
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn calm(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        state.is_calm = true;
        state.apart.fill(now);
        state.parted.fill([now; MEMBERS]);
        state.still.fill(now);
        state.wires.iter().for_each(|laid| laid.wire.calm());
        drop(state);
        (0..MEMBERS).for_each(|member| self.etcd.cut(member, false));
        self.etcd.fill(false);
    }

    /// Ends everything.
    pub(crate) fn end(&self) {
        (0..REPLICAS.len()).for_each(|at| self.kill(at));
    }
}

/// Stalls connections.
pub(super) fn stall<'a>(wires: impl Iterator<Item = &'a Laid>, time: Duration) {
    for Laid { wire, .. } in wires.filter(|laid| !laid.wire.is_over()) {
        [Way::Up, Way::Down].into_iter().for_each(|way| wire.suffer(way, Mishap::Stall(time)));
    }
}
