//! Limits connections and handshakes, so that no address blocks another by slowness or by number.
//!
//! Handshakes of one address wait for each other, and all handshakes wait for the processor. The
//! queues are bounded, per address and in total. Many edges behind one NAT share an address, so an
//! address may have many links.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent handshakes. Each takes about a millisecond of CPU, so more would not be faster.
const HANDSHAKES: usize = 256;
/// Connections that are not links yet, of all addresses; more wait in the kernel's backlog.
const WAITING: usize = 8192;
/// Connections of one address that may wait, per concurrent handshake of that address.
const WAITING_EACH: usize = 32;

/// The limits of one remote address, or of one /64 of IPv6.
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
pub(crate) struct Admission(Arc<Inner>);

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

/// Why a connection is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("its address has {0} connections, which is the limit (connections_per_address)")]
    Connections(usize),
    #[error("{0} connections of its address wait for their handshake, which is the limit")]
    Waiting(usize),
}

/// The slot of a connection; free again when dropped.
pub(crate) struct Slot {
    admission: Admission,
    address: IpAddr,
    handshakes: Arc<Semaphore>,
}

/// A connection that is not a link yet.
pub(crate) struct Pending {
    /// Taken when the connection becomes a link.
    slot: Option<Slot>,
    _one_of_all: Option<OwnedSemaphorePermit>,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Inner {
            limits,
            waiting: Arc::new(Semaphore::new(WAITING)),
            handshakes: Semaphore::new(HANDSHAKES),
            addresses: Mutex::default(),
        }))
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Address>> {
        self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when clients must prove their address (QUIC Retry).
    pub(crate) fn is_busy(&self) -> bool {
        self.0.waiting.available_permits() < WAITING - HANDSHAKES
    }

    /// Admits a connection, as soon as the total limit allows one more.
    ///
    /// # Errors
    /// The limits of its own address are reached.
    pub(crate) async fn enter(&self, from: IpAddr) -> Result<Pending, Full> {
        // The semaphore is never closed.
        let permit = self.0.waiting.clone().acquire_owned().await.ok();
        let limits = self.0.limits;
        let address = counted(from);
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
        let slot = Slot { admission: self.clone(), address, handshakes: entry.handshakes.clone() };
        Ok(Pending { slot: Some(slot), _one_of_all: permit })
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

impl Pending {
    /// Waits for the turn of this connection and runs `handshake`; returns its result and the slot
    /// of the link.
    pub(crate) async fn pass<T>(mut self, handshake: impl Future<Output = T>) -> (T, Option<Slot>) {
        let done = match &self.slot {
            Some(slot) => {
                let _own_turn = slot.handshakes.acquire().await;
                let _turn = slot.admission.0.handshakes.acquire().await;
                handshake.await
            }
            // Never: the slot is taken only below.
            None => handshake.await,
        };
        self.waited();
        (done, self.slot.take())
    }

    fn waited(&self) {
        if let Some(slot) = &self.slot {
            slot.admission
                .count(slot.address, |entry| entry.waiting = entry.waiting.saturating_sub(1));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.waited();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.admission
            .count(self.address, |entry| entry.connections = entry.connections.saturating_sub(1));
    }
}

/// The address that counts: a host has a whole /64 of IPv6.
fn counted(address: IpAddr) -> IpAddr {
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

    fn admission(handshakes: usize, connections: usize) -> Admission {
        Admission::new(Limits { handshakes, connections })
    }

    #[tokio::test(start_paused = true)]
    async fn slow_handshakes_of_one_address_do_not_keep_another_out() {
        let admission = admission(2, 1000);
        let slow = async |admission: &Admission| {
            admission.enter(ONE).await.unwrap().pass(std::future::pending::<()>()).await.0
        };
        let three = async { tokio::join!(slow(&admission), slow(&admission), slow(&admission)) };
        let mut three = std::pin::pin!(three);
        assert!(timeout(Duration::from_secs(1), three.as_mut()).await.is_err());
        // The fourth handshake of the same address waits.
        let fourth = admission.enter(ONE).await.unwrap();
        assert!(timeout(Duration::from_secs(1), fourth.pass(async {})).await.is_err());
        let waiting = admission.enter(OTHER).await.unwrap();
        assert!(timeout(Duration::from_secs(1), waiting.pass(async {})).await.is_ok());
    }

    #[tokio::test]
    async fn connections_are_counted_while_they_are_there() {
        let admission = admission(8, 2);
        let (_, first) = admission.enter(ONE).await.unwrap().pass(async {}).await;
        let second = admission.enter(ONE).await.unwrap();
        assert_eq!(admission.enter(ONE).await.err(), Some(Full::Connections(2)));
        assert!(admission.enter(OTHER).await.is_ok());
        drop(second);
        let (_, third) = admission.enter(ONE).await.unwrap().pass(async {}).await;
        drop((first, third));
        assert!(admission.addresses().is_empty(), "nothing is kept of who is gone");
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_counted_down_when_it_gives_up() {
        let admission = admission(1, 1000);
        let mut waiting = Vec::new();
        for _ in 0..WAITING_EACH {
            waiting.push(admission.enter(ONE).await.unwrap());
        }
        assert_eq!(admission.enter(ONE).await.err(), Some(Full::Waiting(WAITING_EACH)));
        waiting.pop();
        assert!(admission.enter(ONE).await.is_ok());
    }

    #[test]
    fn one_host_of_ipv6_is_one_address() {
        let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| counted(text.parse().unwrap()));
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], counted("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(counted("::ffff:192.0.2.1".parse().unwrap()), ONE);
    }
}
