//! The simulated network between edges and cloud: connections, delays and faults.
//!
//! WebSocket only. QUIC opens its own sockets below this seam, and real sockets do not work with a
//! paused clock. Above the seam no code knows the transport.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use proto::host::tasks::Tasks;
use proto::link::{Connect, Io};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dice::Dice;
use super::trace::Trace;
use super::wire::{Mishap, Plan, Way, Wire, end, wire};

/// Takes a connection at the cloud.
pub type Door = Arc<dyn Fn(Io) + Send + Sync>;

/// How a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// Whoever dials is refused at once.
    Refused,
    /// No answer arrives, as with dropped packets.
    Silent,
}

/// The network. A clone is the same one.
#[derive(Clone)]
pub struct Net {
    inner: Arc<Mutex<Inner>>,
    trace: Trace,
    tasks: Tasks,
}

/// A connection.
struct Laid {
    node: usize,
    at: String,
    wire: Arc<Wire>,
}

struct Inner {
    dice: Dice,
    /// How many of a hundred connections are made to break.
    bad: u32,
    /// By address.
    doors: HashMap<&'static str, (Door, CancellationToken)>,
    /// The addresses whose cloud stands still, until then.
    still: HashMap<&'static str, Instant>,
    /// By node and address.
    away: HashMap<(usize, String), (Away, Instant)>,
    wires: Vec<Laid>,
    counted: BTreeMap<&'static str, u64>,
}

impl Net {
    /// A network in which this percentage of connections breaks.
    pub fn new(dice: Dice, bad: u32, trace: Trace, tasks: Tasks) -> Self {
        let inner = Inner {
            dice,
            bad,
            doors: HashMap::new(),
            still: HashMap::new(),
            away: HashMap::new(),
            wires: Vec::new(),
            counted: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)), trace, tasks }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// From now on connections to these addresses go to this acceptor, as long as its owner lives.
    pub fn open(&self, at: &[&'static str], door: Door, owner: CancellationToken) {
        let doors = at.iter().map(|at| (*at, (door.clone(), owner.clone())));
        self.lock().doors.extend(doors);
    }

    /// The cloud at this address stands still for a while: nothing is lost, and all is late.
    pub fn stand_still(&self, at: &'static str, time: Duration) {
        let mut inner = self.lock();
        inner.still.insert(at, Instant::now() + time);
        let wires = inner.wires.iter().filter(|wire| wire.at == at && !wire.wire.is_over());
        for Laid { wire, .. } in wires {
            [Way::Up, Way::Down].into_iter().for_each(|way| wire.suffer(way, Mishap::Stall(time)));
        }
        *inner.counted.entry("stall").or_default() += 1;
    }

    /// How a node's edge, a process that this token ends, reaches the cloud.
    pub fn way(&self, node: usize, owner: CancellationToken) -> Connect {
        let net = self.clone();
        Arc::new(move |at| {
            let net = net.clone();
            let owner = owner.clone();
            Box::pin(async move { net.connect(node, &at, owner).await })
        })
    }

    async fn connect(&self, node: usize, at: &str, owner: CancellationToken) -> io::Result<Io> {
        let away = self.lock().away.get(&(node, at.to_owned())).copied();
        let away = away.filter(|(_, until)| *until > Instant::now());
        match away {
            Some((Away::Refused, _)) => return Err(io::ErrorKind::HostUnreachable.into()),
            Some((Away::Silent, until)) => {
                tokio::time::sleep_until(until).await;
                return Err(io::ErrorKind::TimedOut.into());
            }
            None => {}
        }
        let still = self.lock().still.get(at).copied().filter(|until| *until > Instant::now());
        if let Some(until) = still {
            tokio::time::sleep_until(until).await;
            return Err(io::ErrorKind::TimedOut.into());
        }
        let plan = self.lock().plan();
        tokio::time::sleep(plan.delay * 2).await;
        let mut inner = self.lock();
        let door = inner.doors.get(at).cloned();
        let Some((door, cloud)) = door.filter(|(_, cloud)| !cloud.is_cancelled()) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        if owner.is_cancelled() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (near, far, wire) = wire(&plan, [owner, cloud], &self.tasks);
        let (near, far) = (end(near, &wire, Way::Down), end(far, &wire, Way::Up));
        self.trace.say(format_args!("net: n{} dials {at}; {}", node + 1, describe(&plan)));
        *inner.counted.entry("connections").or_default() += 1;
        if let Some((_, _, mishap)) = plan.mishap {
            *inner.counted.entry(name(mishap)).or_default() += 1;
        }
        inner.wires.retain(|laid| !laid.wire.is_over());
        inner.wires.push(Laid { node, at: at.to_owned(), wire });
        drop(inner);
        door(far);
        Ok(near)
    }

    /// Applies a mishap to all connections of a node.
    pub fn suffer(&self, node: usize, way: Way, mishap: Mishap) {
        let mut inner = self.lock();
        let wires: Vec<_> =
            inner.wires.iter().filter(|of| of.node == node && !of.wire.is_over()).collect();
        self.trace.say(format_args!(
            "net: {mishap:?} {way:?} for n{} ({} connections)",
            node + 1,
            wires.len()
        ));
        let hit = u64::from(!wires.is_empty());
        for Laid { wire, .. } in wires {
            wire.suffer(way, mishap);
        }
        *inner.counted.entry(name(mishap)).or_default() += hit;
    }

    /// Keeps a node from dialing some addresses for a while.
    pub fn cut_off(&self, node: usize, endpoints: &[&str], away: Away, time: Duration) {
        self.trace.say(format_args!(
            "net: n{} cannot dial {endpoints:?} for {time:?}: {away:?}",
            node + 1
        ));
        let mut inner = self.lock();
        for endpoint in endpoints {
            inner.away.insert((node, (*endpoint).to_owned()), (away, Instant::now() + time));
        }
        *inner.counted.entry("cut off").or_default() += 1;
    }

    /// From now on nothing goes wrong any more; what is broken stays broken until its ends find
    /// out.
    pub fn calm(&self) {
        let mut inner = self.lock();
        inner.bad = 0;
        inner.away.clear();
        inner.still.clear();
        inner.wires.iter().for_each(|laid| laid.wire.calm());
    }

    /// How often what went wrong.
    pub fn counted(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counted.clone()
    }
}

impl Inner {
    fn plan(&mut self) -> Plan {
        let delay = self.dice.time(1, 60);
        let way = self.dice.pick(&[Way::Up, Way::Down]);
        // A handshake has some 3,000 bytes, a call some 300.
        let after = self.dice.between(0, 9_000);
        let stall = self.dice.time(100, 40_000);
        let mishap = self.dice.pick(&[
            Mishap::Cut,
            Mishap::Cut,
            Mishap::Cut,
            Mishap::Stall(stall),
            Mishap::Dead,
            Mishap::BothDead,
        ]);
        let mishap = self.dice.chance(self.bad).then_some((way, after, mishap));
        Plan { delay, mishap }
    }
}

fn name(mishap: Mishap) -> &'static str {
    match mishap {
        Mishap::Cut => "cut",
        Mishap::Stall(_) => "stall",
        Mishap::Dead => "half-open",
        Mishap::BothDead => "black hole",
        Mishap::Panic => "a link panicked",
    }
}

fn describe(plan: &Plan) -> String {
    match plan.mishap {
        None => format!("{:?} away", plan.delay),
        Some((way, after, mishap)) => {
            format!("{:?} away, {mishap:?} {way:?} after {after} bytes", plan.delay)
        }
    }
}
