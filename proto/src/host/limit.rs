//! Limits of the rate at which a peer, an address or this program itself does something.
//!
//! All of them are values that take the time from the caller, so they lock nothing and read no
//! clock.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// A rate, with the burst that it allows.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The time in which one more is allowed.
    interval: Duration,
    at_once: u32,
}

impl Rate {
    /// So many each second in the long run, at least one, and `at_once` after a time without any.
    pub const fn per_second(count: u32, at_once: u32) -> Self {
        Self::within(Duration::from_secs(1), count, at_once)
    }

    /// The same for each hour.
    pub const fn per_hour(count: u32, at_once: u32) -> Self {
        Self::within(Duration::from_secs(3600), count, at_once)
    }

    const fn within(span: Duration, count: u32, at_once: u32) -> Self {
        let interval = match span.checked_div(count) {
            Some(interval) => interval,
            None => span,
        };
        Self { interval, at_once }
    }
}

/// A token bucket. It begins full.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    /// The time at which it is full again; `None` before the first token is taken.
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes a token. Returns `false` if there is none, and takes nothing.
    pub fn try_take(&mut self, rate: Rate, now: Instant) -> bool {
        let mut taken = *self;
        let is_there = taken.take(rate, now).is_zero();
        if is_there {
            *self = taken;
        }
        is_there
    }

    /// Takes a token that may still have to come, and returns how long to wait for it.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Duration {
        let Rate { interval, at_once } = rate;
        let full_at = self.full_at.map_or(now, |full_at| full_at.max(now)) + interval;
        self.full_at = Some(full_at);
        full_at.saturating_duration_since(now + interval * at_once)
    }

    /// Returns `true` if a whole burst may be taken again.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at <= now)
    }
}

/// A count of failures, which begins again some time after the first one that it counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    begun: Option<Instant>,
    count: usize,
}

impl Window {
    /// Counts a failure.
    pub fn add(&mut self, length: Duration, now: Instant) {
        if !self.is_current(length, now) {
            *self = Self { begun: Some(now), count: 0 };
        }
        self.count += 1;
    }

    /// Returns `true` if its failures still count.
    pub fn is_current(&self, length: Duration, now: Instant) -> bool {
        self.begun.is_some_and(|begun| now.saturating_duration_since(begun) < length)
    }

    /// Returns how long to wait, or `None` if there were fewer failures than `limit`.
    pub fn wait(&self, limit: usize, length: Duration, now: Instant) -> Option<Duration> {
        let begun = self.begun?;
        let is_reached = self.count >= limit && self.is_current(length, now);
        is_reached.then(|| length.saturating_sub(now.saturating_duration_since(begun)))
    }
}

/// Returns the network of the host at this address: the address itself, or a /64 of IPv6, because a
/// host can choose any address in it.
pub fn host_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(ipv6_network(address, 64)),
    }
}

/// Returns the network of this prefix, from 1 to 128, that the address is in.
pub fn ipv6_network(address: Ipv6Addr, prefix: u32) -> Ipv6Addr {
    let host_bits = 128_u32.saturating_sub(prefix).min(127);
    Ipv6Addr::from_bits(address.to_bits() >> host_bits << host_bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate::per_second(20, 200);
    const MINUTE: Duration = Duration::from_secs(60);

    fn take_all(bucket: &mut Bucket, rate: Rate, now: Instant) -> usize {
        (0..1000).filter(|_| bucket.try_take(rate, now)).count()
    }

    #[test]
    fn a_burst_is_allowed_and_then_a_rate() {
        let mut bucket = Bucket::default();
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(take_all(&mut bucket, RATE, after(3600)), 200);
        assert_eq!(take_all(&mut bucket, RATE, after(3601)), 20);
        assert_eq!(take_all(&mut bucket, RATE, after(3661)), 200);
        assert!(!bucket.is_full(after(3661)));
        assert!(bucket.is_full(after(3671)));
    }

    #[test]
    fn another_rate_counts() {
        let mut bucket = Bucket::default();
        let rate = Rate::per_second(1000, 3);
        let now = Instant::now();
        assert_eq!(take_all(&mut bucket, rate, now), 3);
        let now = now + Duration::from_millis(2);
        assert_eq!(take_all(&mut bucket, rate, now), 2);
        let mut bucket = Bucket::default();
        let rate = Rate::per_hour(20, 200);
        assert_eq!(take_all(&mut bucket, rate, now), 200);
        assert_eq!(take_all(&mut bucket, rate, now + 3 * MINUTE), 1);
    }

    #[test]
    fn an_ipv4_address_is_a_host_and_so_is_a_64_of_ipv6() {
        let host = |address: &str| host_network(address.parse().unwrap());
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
    }

    proptest! {
        /// However tokens are taken, no span has more than a burst and the rate of that span.
        #[test]
        fn no_span_has_more_than_a_burst_and_its_rate(
            per_second in 1..2000_u32,
            at_once in 1..100_u32,
            pauses in prop::collection::vec(0..300_u64, 1..200),
        ) {
            let rate = Rate::per_second(per_second, at_once);
            let mut bucket = Bucket::default();
            let mut now = Instant::now();
            let mut taken = Vec::new();
            for pause in pauses {
                now += Duration::from_millis(pause);
                if bucket.try_take(rate, now) {
                    taken.push(now);
                }
            }
            let interval = Duration::from_secs(1) / per_second;
            for (from, begun) in taken.iter().enumerate() {
                for (to, end) in taken.iter().enumerate().skip(from) {
                    let span = end.saturating_duration_since(*begun);
                    let more = u32::try_from(to - from + 1).unwrap().saturating_sub(at_once);
                    prop_assert!(interval * more <= span);
                }
            }
        }

        /// Whoever waits as long as they are told keeps the rate.
        #[test]
        fn those_who_wait_come_evenly(per_second in 1..2000_u32, at_once in 0..50_u32) {
            let rate = Rate::per_second(per_second, at_once);
            let interval = Duration::from_secs(1) / per_second;
            let mut bucket = Bucket::default();
            let now = Instant::now();
            for number in 1..200_u32 {
                let expected = interval * number.saturating_sub(at_once);
                prop_assert_eq!(bucket.take(rate, now), expected);
            }
            let later = now + 200 * interval + MINUTE;
            prop_assert!(bucket.take(rate, later).is_zero() || at_once == 0);
        }

        /// A window asks for a wait from the last allowed failure on, until it ends.
        #[test]
        fn a_window_waits_until_it_ends(
            limit in 1..20_usize,
            failures in 0..40_usize,
            later in 0..120_u64,
        ) {
            let mut window = Window::default();
            let begun = Instant::now();
            for _ in 0..failures {
                window.add(MINUTE, begun);
            }
            let now = begun + Duration::from_secs(later);
            let is_full = failures >= limit && later < 60;
            let expected = is_full.then(|| Duration::from_secs(60 - later));
            prop_assert_eq!(window.wait(limit, MINUTE, now), expected);
            if later >= 60 {
                window.add(MINUTE, now);
                prop_assert_eq!(window.wait(2, MINUTE, now), None);
            }
        }
    }
}
