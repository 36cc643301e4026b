//! The faults of a run: the seed decides kind, time and place before the run begins.
//!
//! Each run leaves out some kinds of faults, so that others reach states that those would cut
//! short.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::host::tasks::Tasks;
use tokio::sync::Notify;
use tonic::{Code, Status};

use super::dice::Dice;
use super::fleet::Fleet;
use super::keys::ENDPOINTS;
use super::model::KINDS;
use super::net::Away;
use super::trace::Trace;
use super::wire::{Mishap, Way};
use drivers::testdriver::{Fault, Times};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FleetEvent {
    Suffer(usize, Way, Mishap),
    CutOff(usize, &'static [&'static str], Away, Duration),
    Cloud(Duration),
    Edge(usize, Duration),
    /// Another csi-edge starts on a node's machine, and the one before goes on for so long.
    EdgeDoubled(usize, Duration),
    CloudStops(Duration),
    EdgeStops(usize, Duration),
    Driver(usize, Duration),
    /// Another process serves a driver's path, and the one before goes on for so long.
    Replaced(usize, Duration),
    /// A driver stops and starts repeatedly, so that calls wait for it.
    Flaps(usize, u64),
    Sidecar(usize),
    /// A fault of a driver: its node, and the number that decides its kind.
    Fault(usize, u64),
    Hang(usize, usize, Duration),
    /// The next creations, this many, are refused with this code.
    Refuse(usize, Code, u32),
}

/// The RPCs of drivers in the simulation.
pub const METHODS: [&str; 7] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
    "CreateSnapshot",
    "DeleteSnapshot",
];
/// Codes that leave the outcome open for every sidecar.
const OPEN: [Code; 4] = [Code::Unavailable, Code::Aborted, Code::DeadlineExceeded, Code::Cancelled];
/// Codes with which a driver denies that anything was made.
const FINAL: [Code; 6] = [
    Code::ResourceExhausted,
    Code::Internal,
    Code::Unknown,
    Code::FailedPrecondition,
    Code::InvalidArgument,
    Code::NotFound,
];
const KINDS_OF_EVENT: usize = 10;

/// A run's faults.
pub struct Chaos {
    events: Vec<(Duration, FleetEvent)>,
    fleet: Arc<Fleet>,
    sidecars: Vec<Arc<Notify>>,
    trace: Trace,
    tasks: Tasks,
    counted: BTreeMap<&'static str, u64>,
}

impl Chaos {
    /// Draws them, over so long a time: those of every run, and those of sites.
    pub fn draw(
        [dice, of_site]: [&mut Dice; 2],
        span: Duration,
        fleet: Arc<Fleet>,
        sidecars: Vec<Arc<Notify>>,
        trace: Trace,
        tasks: Tasks,
    ) -> Self {
        let nodes = fleet.drivers.len();
        let endpoints = fleet.shape().endpoints;
        let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let kinds: Vec<_> = (0..KINDS_OF_EVENT).filter(|_| dice.chance(60)).collect();
        let mut events = Vec::new();
        for _ in 0..dice.between(3, 40) {
            let Some(kind) = kinds.get(dice.below(kinds.len())) else { break };
            events.push((dice.time(0, span), event(*kind, (nodes, endpoints), dice)));
        }
        let of_sites = if of_site.chance(30) { of_site.between(1, 6) } else { 0 };
        for _ in 0..of_sites {
            let are_doubled = fleet.shape().are_doubled;
            let at = of_site.time(0, span);
            let suffered = events_of_site(nodes, are_doubled, of_site);
            events.extend(suffered.into_iter().map(|event| (at, event)));
        }
        events.sort_by_key(|(at, _)| *at);
        Self { events, fleet, sidecars, trace, tasks, counted: BTreeMap::new() }
    }

    /// Lets it all happen.
    pub async fn run(&mut self) {
        let began = tokio::time::Instant::now();
        for (at, event) in std::mem::take(&mut self.events) {
            tokio::time::sleep_until(began + at).await;
            self.act(event);
        }
    }

    /// The number of faults of each kind, without those that the network counts.
    pub fn counted(&self) -> &BTreeMap<&'static str, u64> {
        &self.counted
    }

    fn act(&mut self, event: FleetEvent) {
        let fleet = self.fleet.clone();
        let counted = match event {
            FleetEvent::Suffer(node, way, mishap) => return fleet.net.suffer(node, way, mishap),
            FleetEvent::CutOff(node, endpoints, away, time) => {
                return fleet.net.cut_off(node, endpoints, away, time);
            }
            FleetEvent::Cloud(down) => {
                fleet.kill_cloud();
                self.later(down, move || drop(fleet.start_cloud()));
                "cloud killed"
            }
            FleetEvent::Edge(node, down) => {
                fleet.kill_edge(node);
                self.later(down, move || drop(fleet.start_edge(node)));
                "edge killed"
            }
            FleetEvent::CloudStops(down) => {
                self.tasks.spawn_until_stop("stop", restart_cloud(fleet, down));
                "cloud stopped"
            }
            FleetEvent::EdgeStops(node, down) => {
                self.tasks.spawn_until_stop("stop", restart_edge(fleet, node, down));
                "edge stopped"
            }
            FleetEvent::EdgeDoubled(node, after) => {
                fleet.double_edge(node, after);
                "edge doubled"
            }
            FleetEvent::Driver(node, down) => {
                fleet.kill_driver(node);
                self.later(down, move || fleet.start_driver(node));
                "driver killed"
            }
            FleetEvent::Replaced(node, after) => {
                fleet.replace_driver(node, after);
                "driver replaced"
            }
            FleetEvent::Flaps(node, number) => {
                self.tasks.spawn_until_stop("flaps", flap(fleet, node, number));
                "driver flaps"
            }
            FleetEvent::Sidecar(which) => {
                self.kill_sidecar(which);
                "sidecar killed"
            }
            FleetEvent::Fault(node, number) => {
                self.break_driver(node, number);
                "driver fault"
            }
            FleetEvent::Refuse(node, code, times) => {
                self.refuse(node, code, times);
                "driver refuses"
            }
            FleetEvent::Hang(node, method, time) => {
                self.hang(node, method, time);
                "driver hangs"
            }
        };
        *self.counted.entry(counted).or_default() += 1;
    }

    fn kill_sidecar(&self, which: usize) {
        if let Some(sidecar) = self.sidecars.get(which) {
            sidecar.notify_one();
        }
    }

    fn later(&self, after: Duration, act: impl FnOnce() + Send + 'static) {
        self.tasks.spawn_until_stop("later", async move {
            tokio::time::sleep(after).await;
            act();
        });
    }

    fn hang(&self, node: usize, method: usize, time: Duration) {
        let Some(driver) = self.fleet.drivers.get(node).cloned() else { return };
        let method = METHODS.get(method).copied().unwrap_or_default();
        self.trace.say(format_args!("driver of n{}: next {method} hangs for {time:?}", node + 1));
        driver.inject(method, Fault::Hang, Times::Next(1));
        self.later(time, move || driver.release());
    }

    fn refuse(&self, node: usize, code: Code, times: u32) {
        let Some(driver) = self.fleet.drivers.get(node) else { return };
        self.trace
            .say(format_args!("driver of n{}: refuses {times} creations: {code:?}", node + 1));
        for method in ["CreateVolume", "CreateSnapshot"] {
            let message = "the driver refuses".into();
            driver.inject(method, Fault::Refuse { code, message }, Times::Next(times));
        }
    }

    fn break_driver(&self, node: usize, number: u64) {
        let mut dice = Dice::new(number, "driver fault");
        let method = dice.pick(&METHODS);
        let fault = fault(method, &mut dice);
        let times = u32::try_from(dice.between(1, 3)).unwrap_or(1);
        self.trace.say(format_args!("driver of n{}: next {times} {method}: {fault:?}", node + 1));
        if let Some(driver) = self.fleet.drivers.get(node) {
            driver.inject(method, fault, Times::Next(times));
        }
    }
}

/// Stops the cloud in order, and starts it after this time.
async fn restart_cloud(fleet: Arc<Fleet>, down: Duration) {
    fleet.stop_cloud().await;
    tokio::time::sleep(down).await;
    drop(fleet.start_cloud());
}

/// Stops a node's edge in order, and starts it after this time.
async fn restart_edge(fleet: Arc<Fleet>, node: usize, down: Duration) {
    fleet.stop_edge(node).await;
    tokio::time::sleep(down).await;
    drop(fleet.start_edge(node));
}

/// Never away for longer than calls wait for a driver, and seldom there for long.
async fn flap(fleet: Arc<Fleet>, node: usize, number: u64) {
    let mut dice = Dice::new(number, "flaps");
    for _ in 0..dice.between(1, 30) {
        fleet.kill_driver(node);
        tokio::time::sleep(dice.time(50, 900)).await;
        fleet.start_driver(node);
        tokio::time::sleep(dice.time(1, 1_000)).await;
    }
}

fn event(
    kind: usize,
    (nodes, endpoints): (usize, &'static [&'static str]),
    dice: &mut Dice,
) -> FleetEvent {
    let node = dice.below(nodes);
    let way = dice.pick(&[Way::Up, Way::Down]);
    let short = dice.time(100, 20_000);
    let long = dice.time(100, 60_000);
    let stall = Mishap::Stall(dice.time(100, 30_000));
    match kind {
        0 => FleetEvent::Suffer(
            node,
            way,
            dice.pick(&[
                Mishap::Cut,
                Mishap::Cut,
                Mishap::Cut,
                stall,
                Mishap::Dead,
                Mishap::BothDead,
            ]),
        ),
        1 => FleetEvent::Suffer(node, way, Mishap::Cut),
        2 => FleetEvent::CutOff(
            node,
            // One endpoint more than there is matters to nobody.
            dice.pick(&[
                endpoints.get(..2.max(endpoints.len())).unwrap_or(&ENDPOINTS),
                &endpoints[..1],
            ]),
            dice.pick(&[Away::Refused, Away::Silent]),
            long,
        ),
        3 => FleetEvent::Cloud(short),
        4 => FleetEvent::Edge(node, short),
        5 if dice.chance(30) => FleetEvent::Driver(node, dice.time(30_000, 600_000)),
        5 if dice.chance(50) => FleetEvent::Driver(node, short),
        5 if dice.chance(50) => FleetEvent::Replaced(node, long),
        5 => FleetEvent::Flaps(node, dice.between(0, u64::MAX)),
        6 => FleetEvent::Sidecar(dice.below(KINDS.len())),
        8 if dice.chance(50) => FleetEvent::CloudStops(short),
        8 => FleetEvent::EdgeStops(node, short),
        7 => FleetEvent::Refuse(node, dice.pick(&FINAL), dice.pick(&[1, 1, 2, 5])),
        _ if dice.chance(30) => FleetEvent::Hang(node, dice.below(METHODS.len()), long),
        _ => FleetEvent::Fault(node, dice.between(0, u64::MAX)),
    }
}

/// What happens at a site in some runs besides.
fn events_of_site(nodes: usize, are_doubled: bool, dice: &mut Dice) -> Vec<FleetEvent> {
    let node = dice.below(nodes);
    let way = dice.pick(&[Way::Up, Way::Down]);
    let long = dice.time(100, 60_000);
    if are_doubled && dice.chance(70) {
        return vec![FleetEvent::EdgeDoubled(node, long)];
    }
    match dice.below(3) {
        0 => vec![FleetEvent::Suffer(node, way, Mishap::Panic)],
        // As where its csi-edge is stopped for minutes.
        1 => stall(node, dice.time(60_000, 300_000)).to_vec(),
        // As where csi-cloud has too much to do.
        _ => {
            let late = dice.time(500, 12_000);
            (0..nodes).flat_map(|node| stall(node, late)).collect()
        }
    }
}

/// All that a node sends and gets is late by so much.
fn stall(node: usize, time: Duration) -> [FleetEvent; 2] {
    [Way::Up, Way::Down].map(|way| FleetEvent::Suffer(node, way, Mishap::Stall(time)))
}

/// Some fault that a driver may have without lying to Kubernetes.
fn fault(method: &str, dice: &mut Dice) -> Fault {
    let short = dice.time(1, 2_000);
    let long = dice.time(1_000, 90_000);
    let open = dice.pick(&OPEN);
    let code = dice.pick(&FINAL);
    match dice.below(8) {
        0 => Fault::Delay(short),
        1 => Fault::Delay(long),
        2 => Fault::Late(long),
        3 => Fault::Die,
        4 => dice.pick(&[Fault::DieAfterWork, Fault::DieInBody, Fault::NoStatus]),
        5 => Fault::error(open, "the driver is busy"),
        6 => Fault::AfterWork(Status::new(open, "the driver gave up waiting")),
        // A driver must not deny a creation that it has done, because such a driver leaks by
        // itself.
        _ if method.starts_with("Create") => {
            Fault::Refuse { code, message: "the driver refuses".into() }
        }
        _ => Fault::error(code, "the driver refuses"),
    }
}
