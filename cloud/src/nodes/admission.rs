//! Who may come in, and how many at a time: no address keeps others out, by slowness or by number.
//!
//! Handshakes of one address wait for each other, and all handshakes for the processor; what waits is bounded,
//! for each address and in all. Many edges behind one NAT share an address, so it may have many links.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Handshakes at the same time. One takes about a millisecond of CPU, so more would not be done sooner.
const HANDSHAKES: usize = 256;
/// Connections of all addresses that are not links yet; beyond that they wait in the kernel's backlog.
const WAITING: usize = 8192;
/// For each handshake that an address may do at a time, so many of its connections may wait for one.
const WAITING_EACH: usize = 32;

/// What one remote address (of IPv6, one /64) may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handshakes at the same time; more wait.
    pub handshakes: usize,
    /// Connections; more are closed.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { handshakes: 64, connections: 32_768 }
    }
}

/// The room of all listeners. Clones are the same room.
#[derive(Clone)]
pub(crate) struct Room(Arc<Inner>);

struct Inner {
    limits: Limits,
    waiting: Arc<Semaphore>,
    handshakes: Semaphore,
    addresses: Mutex<HashMap<IpAddr, Address>>,
}

struct Address {
    connections: usize,
    waiting: usize,
    handshakes: Arc<Semaphore>,
}

/// Why a connection is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("its address has {0} connections, which is the limit (connections_per_address)")]
    Connections(usize),
    #[error("{0} connections of its address wait for their handshake, which is the limit")]
    Waiting(usize),
}

/// A connection's place; free again when dropped.
pub(crate) struct Place {
    room: Room,
    address: IpAddr,
    handshakes: Arc<Semaphore>,
}

/// A connection that is not a link yet.
pub(crate) struct Waiting {
    /// Here until it is a link.
    place: Option<Place>,
    _one_of_all: Option<OwnedSemaphorePermit>,
}

impl Room {
    pub(crate) fn new(limits: Limits) -> Self {
        let (waiting, handshakes) = (Arc::new(Semaphore::new(WAITING)), Semaphore::new(HANDSHAKES));
        Self(Arc::new(Inner { limits, waiting, handshakes, addresses: Mutex::default() }))
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Address>> {
        self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many are at the door that who cannot be at the address that it shows should be found out first.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.waiting.available_permits() < WAITING - HANDSHAKES
    }

    /// Takes a connection, when there is room for one more of anybody's.
    ///
    /// # Errors
    /// Its own address has all that it may have.
    pub(crate) async fn enter(&self, from: IpAddr) -> Result<Waiting, Full> {
        // The semaphore is never closed.
        let permit = self.0.waiting.clone().acquire_owned().await.ok();
        let (limits, address) = (self.0.limits, whose(from));
        let mut addresses = self.addresses();
        let entry = addresses.entry(address).or_insert_with(|| Address {
            connections: 0,
            waiting: 0,
            handshakes: Arc::new(Semaphore::new(limits.handshakes)),
        });
        if entry.connections >= limits.connections {
            return Err(Full::Connections(limits.connections));
        }
        if entry.waiting >= limits.handshakes * WAITING_EACH {
            return Err(Full::Waiting(entry.waiting));
        }
        entry.connections += 1;
        entry.waiting += 1;
        let place = Place { room: self.clone(), address, handshakes: entry.handshakes.clone() };
        Ok(Waiting { place: Some(place), _one_of_all: permit })
    }

    fn count(&self, address: IpAddr, count: impl FnOnce(&mut Address)) {
        let mut addresses = self.addresses();
        if let Some(entry) = addresses.get_mut(&address) {
            count(entry);
            if entry.connections == 0 {
                addresses.remove(&address);
            }
        }
    }
}

impl Waiting {
    /// Waits for its turn and lets `handshake` be done; gives the place of the link that it becomes.
    pub(crate) async fn pass<T>(mut self, handshake: impl Future<Output = T>) -> (T, Option<Place>) {
        let done = match &self.place {
            Some(place) => {
                let _own_turn = place.handshakes.acquire().await;
                let _turn = place.room.0.handshakes.acquire().await;
                handshake.await
            }
            // It is there until here.
            None => handshake.await,
        };
        self.waited();
        (done, self.place.take())
    }

    fn waited(&self) {
        if let Some(place) = &self.place {
            place.room.count(place.address, |entry| entry.waiting = entry.waiting.saturating_sub(1));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waited();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.count(self.address, |entry| entry.connections = entry.connections.saturating_sub(1));
    }
}

/// Whom an address stands for: a host has a whole /64 of IPv6.
fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn room(handshakes: usize, connections: usize) -> Room {
        Room::new(Limits { handshakes, connections })
    }

    #[tokio::test(start_paused = true)]
    async fn slow_handshakes_of_one_address_do_not_keep_another_out() {
        let room = room(2, 1000);
        let slow =
            async |room: &Room| room.enter(ONE).await.unwrap().pass(std::future::pending::<()>()).await.0;
        let three = async { tokio::join!(slow(&room), slow(&room), slow(&room)) };
        let mut three = std::pin::pin!(three);
        assert!(timeout(Duration::from_secs(1), three.as_mut()).await.is_err());
        // Its fourth waits.
        let fourth = room.enter(ONE).await.unwrap();
        assert!(timeout(Duration::from_secs(1), fourth.pass(async {})).await.is_err());
        let waiting = room.enter(OTHER).await.unwrap();
        assert!(timeout(Duration::from_secs(1), waiting.pass(async {})).await.is_ok());
    }

    #[tokio::test]
    async fn connections_are_counted_while_they_are_there() {
        let room = room(8, 2);
        let (_, first) = room.enter(ONE).await.unwrap().pass(async {}).await;
        let second = room.enter(ONE).await.unwrap();
        assert_eq!(room.enter(ONE).await.err(), Some(Full::Connections(2)));
        assert!(room.enter(OTHER).await.is_ok());
        drop(second);
        let (_, third) = room.enter(ONE).await.unwrap().pass(async {}).await;
        drop((first, third));
        assert!(room.addresses().is_empty(), "nothing is kept of who is gone");
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_counted_down_when_it_gives_up() {
        let room = room(1, 1000);
        let mut waiting = Vec::new();
        for _ in 0..WAITING_EACH {
            waiting.push(room.enter(ONE).await.unwrap());
        }
        assert_eq!(room.enter(ONE).await.err(), Some(Full::Waiting(WAITING_EACH)));
        waiting.pop();
        assert!(room.enter(ONE).await.is_ok());
    }

    #[test]
    fn one_host_of_ipv6_is_one_address() {
        let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| whose(text.parse().unwrap()));
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], whose("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(whose("::ffff:192.0.2.1".parse().unwrap()), ONE);
    }
}
