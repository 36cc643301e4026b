//! The race over all addresses of a name, so that one that is swallowed does not keep a node away.
//!
//! Families are interleaved. The address that worked last is dialed alone at first; then another
//! one joins every 250 ms, with two in flight at most. TCP races its connects, and TLS follows on
//! the one that won; QUIC races its handshakes.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, select_all};
use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::endpoint::Transport;

/// The shortest time for which an address is dialed before the next one joins.
const HEAD_START_MIN: Duration = Duration::from_millis(250);
/// The addresses that are dialed at the same time.
const IN_FLIGHT_MAX: usize = 2;
/// While others wait, an address without an answer is given up after this time: long enough for a
/// second SYN over a satellite, and short enough for six addresses within a handshake's limit.
const PLACE_MAX: Duration = Duration::from_secs(3);
/// The addresses of a name that are dialed.
const ADDRESSES_MAX: usize = 16;
/// The names whose last address is remembered. More are only the leaders that a cloud names.
const NAMES_MAX: usize = 64;

/// How long connections to a name are narrow after one was silent.
const NARROW: Duration = Duration::from_secs(24 * 3600);

/// Resolves `host:port` to addresses.
pub type Resolve =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Resolves names, and remembers which address of each worked last. Clones share the memory.
#[derive(Clone)]
pub struct Addresses {
    resolve: Resolve,
    last: Arc<Mutex<HashMap<(Transport, String), LastAddress>>>,
    /// When a connection to a name was silent last.
    silent: Arc<Mutex<HashMap<String, Instant>>>,
}

/// The address that worked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastAddress {
    addr: SocketAddr,
    /// The duration of its connect or handshake.
    handshake: Duration,
    /// It connected, and said nothing after that: others are dialed before it.
    is_suspect: bool,
}

/// The reason why no address of a name could be used.
#[derive(Debug)]
pub(super) enum NotReached<E> {
    /// The name has no address.
    Unresolved(io::Error),
    /// Each address failed, and this one last; or it failed, and the others did not answer in time.
    Failed(E),
    /// No address answered in time.
    Silent,
}

/// One address that is being dialed.
struct AddressDial<F> {
    addr: SocketAddr,
    begun: Instant,
    dialing: Pin<Box<F>>,
}

impl Addresses {
    /// Resolves names as the system does.
    pub fn system() -> Self {
        Self::new(Arc::new(|at| Box::pin(async move { Ok(lookup_host(at).await?.collect()) })))
    }

    /// Resolves names with `resolve`.
    pub fn new(resolve: Resolve) -> Self {
        Self { resolve, last: Arc::default(), silent: Arc::default() }
    }

    /// Every name has this address alone.
    pub fn only(addr: SocketAddr) -> Self {
        Self::new(Arc::new(move |_| Box::pin(std::future::ready(Ok(vec![addr])))))
    }

    /// The addresses of `at` in the order in which they are dialed, without an earlier dial.
    ///
    /// # Errors
    /// The name cannot be resolved, or has no address.
    pub async fn resolve(&self, at: &str) -> io::Result<Vec<SocketAddr>> {
        let resolved = interleaved((self.resolve)(at.to_owned()).await?);
        if resolved.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(resolved)
    }

    /// Dials the addresses of `at` with `connect` until one succeeds, at most for `limit`.
    ///
    /// # Errors
    /// See [`NotReached`].
    pub(super) async fn race<T, E, F>(
        &self,
        (transport, at): (Transport, &str),
        limit: Duration,
        connect: impl Fn(SocketAddr) -> F,
    ) -> Result<T, NotReached<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let end = Instant::now() + limit;
        let resolved = timeout_at(end, self.resolve(at)).await;
        let resolved = resolved.map_err(|_| NotReached::Silent)?.map_err(NotReached::Unresolved)?;
        let key = (transport, at.to_owned());
        let last = self.last.lock().get(&key).copied();
        let mut waiting = VecDeque::from(in_order(resolved, last));
        let mut running: Vec<AddressDial<F>> = Vec::new();
        let mut next = Instant::now();
        let mut failure = None;
        loop {
            if running.len() < IN_FLIGHT_MAX
                && next <= Instant::now()
                && let Some(addr) = waiting.pop_front()
            {
                let begun = Instant::now();
                running.push(AddressDial { addr, begun, dialing: Box::pin(connect(addr)) });
                next = begun + head_start(addr, last);
            }
            if running.is_empty() {
                return Err(failure.map_or(NotReached::Silent, NotReached::Failed));
            }
            let joins = joins(&running, next).filter(|_| !waiting.is_empty());
            tokio::select! {
                biased;
                (ended, place, _) = select_all(running.iter_mut().map(|one| &mut one.dialing)) => {
                    let AddressDial { addr, begun, .. } = running.remove(place);
                    match ended {
                        Ok(reached) => {
                            self.worked(key, addr, begun.elapsed());
                            return Ok(reached);
                        }
                        Err(error) => failure = Some(error),
                    }
                    next = Instant::now();
                }
                () = sleep_until(end) => {
                    return Err(failure.map_or(NotReached::Silent, NotReached::Failed));
                }
                () = sleep_until(joins.unwrap_or(end)), if joins.is_some() => {
                    if running.len() == IN_FLIGHT_MAX {
                        running.remove(0);
                        next = Instant::now();
                    }
                }
            }
        }
    }

    /// The address of each name that worked last.
    pub(super) fn worked_last(&self) -> Vec<SocketAddr> {
        self.last.lock().values().map(|last| last.addr).collect()
    }

    /// Notes that the address which connected last said nothing after that.
    pub(super) fn suspect(&self, transport: Transport, at: &str) {
        if let Some(last) = self.last.lock().get_mut(&(transport, at.to_owned())) {
            last.is_suspect = true;
        }
    }

    /// Notes that a TCP connection to `at` ended by silence. A router on the way may swallow large
    /// packets and not say so, so the next connections have small segments for a day.
    pub(super) fn narrow(&self, at: &str) {
        let mut silent = self.silent.lock();
        silent.retain(|_, since| since.elapsed() < NARROW);
        if silent.len() < NAMES_MAX {
            silent.insert(at.to_owned(), Instant::now());
        }
    }

    /// True if connections to `at` are to have small segments.
    pub(super) fn is_narrow(&self, at: &str) -> bool {
        self.silent.lock().get(at).is_some_and(|since| since.elapsed() < NARROW)
    }

    fn worked(&self, key: (Transport, String), addr: SocketAddr, handshake: Duration) {
        let mut last = self.last.lock();
        if last.len() >= NAMES_MAX && !last.contains_key(&key) {
            last.clear();
        }
        last.insert(key, LastAddress { addr, handshake, is_suspect: false });
    }
}

/// When the next address joins those that run: in a free place, or in that of the oldest.
fn joins<F>(running: &[AddressDial<F>], next: Instant) -> Option<Instant> {
    if running.len() < IN_FLIGHT_MAX {
        return Some(next);
    }
    running.first().map(|oldest| oldest.begun + PLACE_MAX)
}

/// The time for which `addr` is dialed before another one joins. Twice its last handshake if it
/// worked last: else a slow address that works would always be raced.
fn head_start(addr: SocketAddr, last: Option<LastAddress>) -> Duration {
    match last {
        Some(last) if last.addr == addr && !last.is_suspect => {
            HEAD_START_MIN.max(last.handshake * 2)
        }
        _ => HEAD_START_MIN,
    }
}

/// Puts the address that worked last before the others, or after them if it is suspect.
fn in_order(mut resolved: Vec<SocketAddr>, last: Option<LastAddress>) -> Vec<SocketAddr> {
    let Some(last) = last else { return resolved };
    let Some(place) = resolved.iter().position(|addr| *addr == last.addr) else { return resolved };
    resolved.remove(place);
    let place = if last.is_suspect { resolved.len() } else { 0 };
    resolved.insert(place, last.addr);
    resolved
}

/// Alternates the families, beginning with that of the first address. Each address stands once.
fn interleaved(resolved: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_ipv4 = resolved.first().is_some_and(SocketAddr::is_ipv4);
    let (mut own, mut other): (VecDeque<_>, VecDeque<_>) =
        resolved.into_iter().partition(|addr| addr.is_ipv4() == first_is_ipv4);
    let mut ordered: Vec<SocketAddr> = Vec::new();
    while !(own.is_empty() && other.is_empty()) && ordered.len() < ADDRESSES_MAX {
        for addr in [own.pop_front(), other.pop_front()].into_iter().flatten() {
            if !ordered.contains(&addr) {
                ordered.push(addr);
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const AT: (Transport, &str) = (Transport::Quic, "cloud.example:1");

    fn addr(text: &str) -> SocketAddr {
        format!("{text}:1").parse().unwrap()
    }

    /// The addresses of `AT`, and a record of which were dialed when, in ms.
    fn named(all: &[&str]) -> Addresses {
        let all: Vec<_> = all.iter().map(|text| addr(text)).collect();
        Addresses::new(Arc::new(move |_| Box::pin(std::future::ready(Ok(all.clone())))))
    }

    /// Races addresses of which `good` answers after this time, `refused` at once, and no other.
    async fn raced(
        addresses: &Addresses,
        good: Option<(&str, Duration)>,
        refused: &[&str],
    ) -> (Vec<(String, u128)>, Result<SocketAddr, NotReached<&'static str>>) {
        let begun = Instant::now();
        let dialed = Mutex::new(Vec::new());
        let won = addresses
            .race(AT, LIMIT, |addr| {
                dialed.lock().push((addr.ip().to_string(), begun.elapsed().as_millis()));
                let ip = addr.ip().to_string();
                let is_refused = refused.contains(&ip.as_str());
                let answers = good.filter(|(good, _)| *good == ip).map(|(_, after)| after);
                async move {
                    match answers {
                        Some(after) => sleep(after).await,
                        None if is_refused => return Err("refused"),
                        None => pending().await,
                    }
                    Ok(addr)
                }
            })
            .await;
        (dialed.into_inner(), won)
    }

    fn times(dialed: &[(String, u128)]) -> Vec<(&str, u128)> {
        dialed.iter().map(|(ip, ms)| (ip.as_str(), *ms)).collect()
    }

    #[test]
    fn families_alternate_and_nothing_stands_twice() {
        let all = ["[2001:db8::1]", "[2001:db8::2]", "192.0.2.1", "[2001:db8::1]", "192.0.2.2"];
        let ordered = interleaved(all.map(addr).to_vec());
        let expected = ["[2001:db8::1]", "192.0.2.1", "[2001:db8::2]", "192.0.2.2"];
        assert_eq!(ordered, expected.map(addr));
        let many: Vec<_> = (0..99).map(|n| addr(&format!("192.0.2.{n}"))).collect();
        assert!(interleaved(many).len() <= ADDRESSES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_swallowed_holds_up_the_next_one_for_250_ms() {
        let addresses = named(&["[2001:db8::1]", "192.0.2.1"]);
        let answers = Some(("192.0.2.1", Duration::from_millis(20)));
        let begun = Instant::now();
        let (dialed, won) = raced(&addresses, answers, &[]).await;
        assert_eq!(won.unwrap(), addr("192.0.2.1"));
        assert_eq!(times(&dialed), [("2001:db8::1", 0), ("192.0.2.1", 250)]);
        assert!(begun.elapsed() < Duration::from_millis(280), "{:?}", begun.elapsed());
        let (dialed, _) = raced(&addresses, answers, &[]).await;
        assert_eq!(times(&dialed), [("192.0.2.1", 0)], "it worked last");
    }

    #[tokio::test(start_paused = true)]
    async fn two_are_in_flight_at_most_and_the_fifth_is_reached_in_time() {
        let all = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"];
        let answers = Some(("192.0.2.5", Duration::from_millis(20)));
        let (dialed, won) = raced(&named(&all), answers, &[]).await;
        assert_eq!(won.unwrap(), addr("192.0.2.5"));
        let at: Vec<_> = dialed.iter().map(|(_, ms)| *ms).collect();
        assert_eq!(at, [0, 250, 3000, 3250, 6000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_address_that_worked_last_has_twice_its_handshake_alone() {
        let addresses = named(&["192.0.2.1", "[2001:db8::1]"]);
        let slow = Duration::from_millis(800);
        raced(&addresses, Some(("192.0.2.1", slow)), &["2001:db8::1"]).await.1.unwrap();
        let (dialed, _) = raced(&addresses, Some(("192.0.2.1", slow)), &[]).await;
        assert_eq!(times(&dialed), [("192.0.2.1", 0)]);
        let (dialed, won) = raced(&addresses, Some(("2001:db8::1", slow)), &[]).await;
        assert_eq!(times(&dialed), [("192.0.2.1", 0), ("2001:db8::1", 1600)]);
        assert_eq!(won.unwrap(), addr("[2001:db8::1]"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_connected_and_was_silent_is_dialed_last() {
        let addresses = named(&["192.0.2.1", "[2001:db8::1]"]);
        let soon = Duration::from_millis(20);
        raced(&addresses, Some(("192.0.2.1", soon)), &[]).await.1.unwrap();
        addresses.suspect(AT.0, AT.1);
        let (dialed, _) = raced(&addresses, Some(("2001:db8::1", soon)), &[]).await;
        assert_eq!(times(&dialed), [("2001:db8::1", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_narrow_for_a_day_after_a_silence() {
        let addresses = named(&["192.0.2.1"]);
        assert!(!addresses.is_narrow(AT.1));
        addresses.narrow(AT.1);
        assert!(addresses.is_narrow(AT.1) && !addresses.is_narrow("other.example:1"));
        tokio::time::advance(NARROW).await;
        assert!(!addresses.is_narrow(AT.1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_lets_the_next_one_begin_and_says_more_than_silence() {
        let addresses = named(&["192.0.2.1", "[2001:db8::1]", "192.0.2.2"]);
        let begun = Instant::now();
        let (dialed, won) = raced(&addresses, None, &["192.0.2.1", "192.0.2.2"]).await;
        assert_eq!(times(&dialed), [("192.0.2.1", 0), ("2001:db8::1", 0), ("192.0.2.2", 250)]);
        assert!(matches!(won, Err(NotReached::Failed("refused"))), "{won:?}");
        assert_eq!(begun.elapsed(), LIMIT);
        let begun = Instant::now();
        let (_, won) = raced(&named(&["192.0.2.1"]), None, &["192.0.2.1"]).await;
        assert!(matches!(won, Err(NotReached::Failed("refused"))), "{won:?}");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let (_, won) = raced(&named(&["192.0.2.1"]), None, &[]).await;
        assert!(matches!(won, Err(NotReached::Silent)), "{won:?}");
        let (_, won) = raced(&named(&[]), None, &[]).await;
        assert!(matches!(won, Err(NotReached::Unresolved(_))), "{won:?}");
    }
}
