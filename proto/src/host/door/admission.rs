//! Limits connections and handshakes, so that no address blocks another by slowness or by number.
//!
//! A connection first sends its ClientHello, which costs little here. Then it waits for a turn
//! among the handshakes of its address, and among all. Addresses that have linked before have
//! places and turns of their own. Many edges behind one NAT share an address, so an address may
//! have many links.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::host::door::source::{Linked, Source};
use crate::host::door::turns::Turns;
use crate::host::door::waiting_slots::{WaitingSlot, WaitingSlots};

/// Concurrent handshakes. Each takes about a millisecond of CPU, so more would not be faster.
const HANDSHAKES: usize = 256;
/// Connections with a ClientHello that are not links yet; more stay at the door.
const WAITING: usize = 8192;
/// Connections of one address that may wait, per concurrent handshake of that address.
const WAITING_EACH: usize = 32;
/// Connections at the door: those that have sent no ClientHello yet.
const AT_DOOR: usize = 4096;

/// Connections at the door that are given up together when the system has no room.
const ROOM: usize = 64;

/// The limits of one remote address, or of one /64 of IPv6. A /48 has four times as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent handshakes; more wait.
    pub handshakes: usize,
    /// Connections; more are closed.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { handshakes: 64, connections: 32_768 }
    }
}

/// The admission of all listeners. Clones share their counts.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    limits: Limits,
    /// For addresses that have not linked yet.
    strangers: Share,
    /// For addresses that have.
    known: Share,
    sources: Mutex<Sources>,
}

/// The limits that connections of one sort share.
struct Share {
    door: WaitingSlots,
    waiting: Arc<Semaphore>,
    turns: Turns,
}

#[derive(Default)]
struct Sources {
    counts: HashMap<Source, Counts>,
    linked: Linked,
}

struct Counts {
    connections: usize,
    waiting: usize,
    turns: Turns,
}

/// The reason why a connection is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Its address has too many connections.
    #[error("its address has {0} connections, which is the limit (connections_per_address)")]
    Connections(usize),
    /// Too many connections of its address wait.
    #[error("{0} connections of its address wait for their handshake, which is the limit")]
    Waiting(usize),
}

/// A connection at the door.
pub struct AtDoor {
    given_up: CancellationToken,
    _place: WaitingSlot,
}

/// The slot of a connection; free again when dropped.
pub struct Slot {
    admission: Admission,
    sources: Box<[Source]>,
}

/// A connection that is not a link yet.
pub struct Pending {
    slot: Option<Slot>,
    /// Those of its sources, the narrowest first, and those of its share.
    turns: Vec<Turns>,
    _one_of_all: Option<OwnedSemaphorePermit>,
}

impl Share {
    fn new() -> Self {
        Self {
            door: WaitingSlots::new(AT_DOOR),
            waiting: Arc::new(Semaphore::new(WAITING)),
            turns: Turns::new(HANDSHAKES),
        }
    }
}

impl Admission {
    /// Nobody is admitted yet.
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Inner {
            limits,
            strangers: Share::new(),
            known: Share::new(),
            sources: Mutex::default(),
        }))
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.0.sources.lock()
    }

    fn share(&self, sources: &[Source]) -> &Share {
        let is_known = sources.first().is_some_and(|own| self.sources().linked.contains(*own));
        if is_known { &self.0.known } else { &self.0.strangers }
    }

    /// True when clients at this address must prove it (QUIC Retry).
    pub fn is_busy(&self, from: IpAddr) -> bool {
        let sources = Source::all_of(from);
        let is_full = self.share(&sources).waiting.available_permits() < WAITING - HANDSHAKES;
        let counts = &self.sources().counts;
        let own = sources.first().and_then(|own| counts.get(own));
        is_full || own.is_some_and(|own| own.waiting >= self.0.limits.handshakes)
    }

    /// A place at the door. Without a free one, the connection that came first is given up.
    pub fn at_door(&self, from: IpAddr) -> AtDoor {
        let given_up = CancellationToken::new();
        let place = self.share(&Source::all_of(from)).door.take(&given_up);
        AtDoor { given_up, _place: place }
    }

    /// Gives up the oldest connections at the door, because the system has no room for more.
    pub fn make_room(&self) {
        let Inner { strangers, known, .. } = &*self.0;
        for _ in 0..ROOM {
            if !strangers.door.give_up_oldest() && !known.door.give_up_oldest() {
                return;
            }
        }
    }

    /// Admits a connection, as soon as the total limit allows one more.
    ///
    /// # Errors
    /// The limits of its own address are reached.
    pub async fn enter(&self, from: IpAddr) -> Result<Pending, Full> {
        let sources = Source::all_of(from);
        let share = self.share(&sources);
        // The semaphore is never closed.
        let permit = share.waiting.clone().acquire_owned().await.ok();
        let mut turns = self.count_in(&sources)?;
        turns.push(share.turns.clone());
        let slot = Slot { admission: self.clone(), sources };
        Ok(Pending { slot: Some(slot), turns, _one_of_all: permit })
    }

    /// Counts a connection, unless a limit is reached. Returns the turns of its sources.
    fn count_in(&self, sources: &[Source]) -> Result<Vec<Turns>, Full> {
        let limits = self.0.limits;
        let mut all = self.sources();
        for source in sources {
            let Some(counts) = all.counts.get(source) else { continue };
            let connections = limits.connections * source.weight();
            if counts.connections >= connections {
                return Err(Full::Connections(connections));
            }
            if counts.waiting >= limits.handshakes * WAITING_EACH * source.weight() {
                return Err(Full::Waiting(counts.waiting));
            }
        }
        let count = |source: &Source| {
            let counts = all.counts.entry(*source).or_insert_with(|| Counts {
                connections: 0,
                waiting: 0,
                turns: Turns::new(limits.handshakes * source.weight()),
            });
            counts.connections += 1;
            counts.waiting += 1;
            counts.turns.clone()
        };
        Ok(sources.iter().map(count).collect())
    }

    fn count(&self, sources: &[Source], count: impl Fn(&mut Counts)) {
        let mut all = self.sources();
        for source in sources {
            if let Some(counts) = all.counts.get_mut(source) {
                count(counts);
                if counts.connections == 0 {
                    all.counts.remove(source);
                }
            }
        }
    }
}

impl AtDoor {
    /// Waits for the handshake of the connection; none if it is given up.
    pub async fn wait<T>(self, greeting: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.given_up.cancelled() => None,
            greeted = greeting => Some(greeted),
        }
    }
}

impl Pending {
    /// Waits for the turn of this connection and runs `handshake`; returns its result and the slot
    /// of the link. None if it takes long while others wait.
    pub async fn pass<T>(
        mut self,
        handshake: impl Future<Output = T>,
    ) -> Option<(T, Option<Slot>)> {
        let given_up = CancellationToken::new();
        let handshaking = async {
            let mut taken = Vec::new();
            for turns in &self.turns {
                taken.push(turns.take().await);
            }
            // The wait for a turn does not count.
            for turn in &mut taken {
                turn.begin(&given_up);
            }
            handshake.await
        };
        let done = tokio::select! {
            biased;
            () = given_up.cancelled() => return None,
            done = handshaking => done,
        };
        self.waited();
        Some((done, self.slot.take()))
    }

    fn waited(&self) {
        if let Some(slot) = &self.slot {
            slot.count(|counts| counts.waiting = counts.waiting.saturating_sub(1));
        }
    }
}

impl Slot {
    /// Notes that its address has linked.
    pub fn note_linked(&self) {
        if let Some(own) = self.sources.first() {
            self.admission.sources().linked.note(*own);
        }
    }

    fn count(&self, count: impl Fn(&mut Counts)) {
        self.admission.count(&self.sources, count);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.waited();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.count(|counts| counts.connections = counts.connections.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn admission(handshakes: usize, connections: usize) -> Admission {
        Admission::new(Limits { handshakes, connections })
    }

    /// A handshake that never ends.
    async fn stalled(admission: Admission, from: IpAddr) {
        if let Ok(pending) = admission.enter(from).await {
            pending.pass(std::future::pending::<()>()).await;
        }
    }

    /// An address that is not in use otherwise.
    fn stranger(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_handshakes_of_one_address_do_not_keep_another_out() {
        let admission = admission(2, 1000);
        let slow = || stalled(admission.clone(), ONE);
        let three = async { tokio::join!(slow(), slow(), slow()) };
        let mut three = std::pin::pin!(three);
        assert!(timeout(Duration::from_secs(1), three.as_mut()).await.is_err());
        // The fourth handshake of the same address waits.
        let fourth = admission.enter(ONE).await.unwrap();
        assert!(timeout(Duration::from_secs(1), fourth.pass(async {})).await.is_err());
        let waiting = admission.enter(OTHER).await.unwrap();
        assert!(timeout(Duration::from_secs(1), waiting.pass(async {})).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_that_stall_give_way_to_those_that_wait() {
        let admission = admission(HANDSHAKES, 100_000);
        let stalled = (0..HANDSHAKES).map(|number| {
            let number = u32::try_from(number).unwrap();
            stalled(admission.clone(), stranger(number))
        });
        let mut stalled = std::pin::pin!(futures_util::future::join_all(stalled));
        assert!(timeout(Duration::from_secs(60), stalled.as_mut()).await.is_err());
        let honest = async { admission.enter(ONE).await.unwrap().pass(async {}).await };
        let both = async {
            tokio::select! {
                biased;
                passed = honest => passed,
                _ = stalled => None,
            }
        };
        let passed = timeout(Duration::from_millis(10), both).await;
        assert!(passed.is_ok_and(|passed| passed.is_some()), "the oldest has stalled for a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_has_linked_waits_for_no_stranger() {
        let admission = admission(64, 1000);
        let (_, slot) = admission.enter(ONE).await.unwrap().pass(async {}).await.unwrap();
        slot.unwrap().note_linked();
        let number = |number: usize| u32::try_from(number).unwrap();
        let mut waiting = Vec::new();
        for each in 0..WAITING {
            waiting.push(admission.enter(stranger(number(each))).await.unwrap());
        }
        let second = Duration::from_secs(1);
        assert!(timeout(second, admission.enter(OTHER)).await.is_err(), "strangers wait");
        let pending = timeout(second, admission.enter(ONE)).await.unwrap().unwrap();
        assert!(timeout(second, pending.pass(async {})).await.is_ok_and(|done| done.is_some()));
        // The same at the door.
        let known = admission.at_door(ONE);
        let first = admission.at_door(OTHER);
        let others: Vec<_> =
            (0..AT_DOOR).map(|each| admission.at_door(stranger(number(each)))).collect();
        assert!(timeout(second, known.wait(sleep(second / 2))).await.unwrap().is_some());
        assert!(first.wait(sleep(second)).await.is_none(), "it came first");
        let last = others.into_iter().next_back().unwrap();
        assert!(last.wait(async {}).await.is_some());
    }

    #[tokio::test]
    async fn connections_are_counted_while_they_are_there() {
        let admission = admission(8, 2);
        let (_, first) = admission.enter(ONE).await.unwrap().pass(async {}).await.unwrap();
        let second = admission.enter(ONE).await.unwrap();
        assert_eq!(admission.enter(ONE).await.err(), Some(Full::Connections(2)));
        assert!(admission.enter(OTHER).await.is_ok());
        drop(second);
        let (_, third) = admission.enter(ONE).await.unwrap().pass(async {}).await.unwrap();
        drop((first, third));
        assert!(admission.sources().counts.is_empty(), "nothing is kept of who is gone");
    }

    #[tokio::test]
    async fn a_site_of_ipv6_has_four_times_as_much_as_a_host() {
        let admission = admission(8, 2);
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, host, 0, 0, 0, 1]);
        let mut slots = Vec::new();
        for host in 0..4 {
            slots.push(admission.enter(address(host)).await.unwrap());
            slots.push(admission.enter(address(host)).await.unwrap());
        }
        assert_eq!(admission.enter(address(0)).await.err(), Some(Full::Connections(2)));
        assert_eq!(admission.enter(address(4)).await.err(), Some(Full::Connections(8)));
        let elsewhere = IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, 0, 1]);
        assert!(admission.enter(elsewhere).await.is_ok());
        drop(slots);
        assert!(admission.sources().counts.is_empty(), "nothing is kept of who is gone");
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_counted_down_when_it_gives_up() {
        let admission = admission(1, 1000);
        let mut waiting = Vec::new();
        for _ in 0..WAITING_EACH {
            waiting.push(admission.enter(ONE).await.unwrap());
        }
        assert_eq!(admission.enter(ONE).await.err(), Some(Full::Waiting(WAITING_EACH)));
        assert!(admission.is_busy(ONE) && !admission.is_busy(OTHER));
        waiting.pop();
        assert!(admission.enter(ONE).await.is_ok());
    }
}
