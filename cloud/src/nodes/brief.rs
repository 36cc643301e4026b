//! Connections that end at once, and how long the next ones of the same host wait for that.
//!
//! A handshake costs far more than its refusal. So a host whose connections keep ending within a
//! second is served at a bounded pace. Whoever shares its address, as behind a NAT, loses a second
//! at most.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::host::limit::{Bucket, Rate, host_network};
use tokio::time::Instant;

/// A connection that lasts less is brief.
const BRIEF: Duration = Duration::from_secs(1);
/// Brief connections of a host for which nobody waits.
const RATE: Rate = Rate::per_second(100, 200);
/// The longest wait of a connection.
const LONGEST: Duration = Duration::from_secs(1);
/// How often hosts are forgotten that have had none for a while.
const SWEEP: Duration = Duration::from_secs(1);

/// The brief connections of all hosts. Clones share them.
#[derive(Clone, Default)]
pub(super) struct BriefConnections(Arc<Mutex<Hosts>>);

#[derive(Default)]
struct Hosts {
    /// By the address, or the /64 of IPv6.
    buckets: HashMap<IpAddr, Bucket>,
    swept: Option<Instant>,
}

/// A connection. If it is brief, that is noted when this is dropped.
pub(super) struct Stay {
    all: BriefConnections,
    host: IpAddr,
    /// `None` if it is not noted.
    begun: Option<Instant>,
}

impl BriefConnections {
    /// A connection from this address.
    pub(super) fn begin(&self, from: IpAddr) -> Stay {
        Stay { all: self.clone(), host: host_network(from), begun: Some(Instant::now()) }
    }

    fn wait(&self, host: IpAddr) -> Duration {
        let bucket = self.0.lock().buckets.get(&host).copied();
        bucket.unwrap_or_default().take(RATE, Instant::now()).min(LONGEST)
    }

    fn note(&self, host: IpAddr) {
        let now = Instant::now();
        let Hosts { buckets, swept } = &mut *self.0.lock();
        if swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            *swept = Some(now);
            buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let bucket = buckets.entry(host).or_default();
        let mut taken = *bucket;
        if taken.take(RATE, now) <= LONGEST {
            *bucket = taken;
        }
    }
}

impl Stay {
    /// Waits for as long as the brief connections of its host make it wait, a second at most.
    pub(super) async fn admitted(&mut self) {
        let wait = self.all.wait(self.host);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
            self.begun = Some(Instant::now());
        }
    }

    /// Ends it without a note: it was handed over to another connection, or is nobody's.
    pub(super) fn hand_over(mut self) {
        self.begun = None;
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if self.begun.is_some_and(|begun| begun.elapsed() < BRIEF) {
            self.all.note(self.host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The time that a connection from this address waits.
    async fn waits(all: &BriefConnections, from: &str) -> Duration {
        let begun = Instant::now();
        let mut stay = all.begin(address(from));
        stay.admitted().await;
        stay.hand_over();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_whose_connections_end_at_once_waits_and_no_other_one() {
        let all = BriefConnections::default();
        for _ in 0..200 {
            drop(all.begin(address("192.0.2.1")));
        }
        assert_eq!(waits(&all, "192.0.2.2").await, Duration::ZERO);
        assert_eq!(waits(&all, "192.0.2.1").await, Duration::from_millis(10));
        for _ in 0..100_000 {
            drop(all.begin(address("2001:db8::1")));
        }
        assert_eq!(waits(&all, "2001:db8::ffff").await, LONGEST, "the same /64");
        let later = waits(&all, "2001:db8::ffff").await;
        assert_eq!(later, Duration::from_millis(10), "a second later");
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_of_four_has_a_hundred_connections_a_second() {
        let all = BriefConnections::default();
        let end = Instant::now() + Duration::from_secs(62);
        let looping = || async {
            let mut made = 0;
            while Instant::now() < end {
                let mut stay = all.begin(address("192.0.2.1"));
                stay.admitted().await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                made += 1;
            }
            made
        };
        let (a, b, c, d) = tokio::join!(looping(), looping(), looping(), looping());
        let made = a + b + c + d;
        assert!((5_000..7_000).contains(&made), "{made}");
    }

    #[tokio::test(start_paused = true)]
    async fn links_that_last_cost_nothing_and_hosts_are_forgotten() {
        let all = BriefConnections::default();
        let stays: Vec<_> = (0..1_000).map(|_| all.begin(address("192.0.2.1"))).collect();
        tokio::time::sleep(BRIEF).await;
        drop(stays);
        assert!(all.0.lock().buckets.is_empty());
        for host in 0..100_u8 {
            drop(all.begin(IpAddr::from([192, 0, 2, host])));
        }
        tokio::time::sleep(SWEEP).await;
        drop(all.begin(address("192.0.2.1")));
        assert_eq!(all.0.lock().buckets.len(), 1);
    }
}
