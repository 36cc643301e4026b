//! Limits failed joins of an address, and renewals of a node.
//!
//! A token's secret cannot be guessed; the limit of failures spares the log and the CPU. Both maps
//! are bounded.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

use proto::names::NodeName;
use tokio::time::{Duration, Instant};

/// The time in which failures and renewals are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// The failures of one address in that time.
const FAILURES: u32 = 10;
/// The entries of a map. Beyond them it is emptied, so that no stranger can keep others out.
const ENTRIES: usize = 4096;

/// The tokens that were refused, by address; of IPv6, by /64.
#[derive(Default)]
pub(super) struct Failures(HashMap<IpAddr, (u32, Instant)>);

impl Failures {
    /// True if an address has failed too often.
    pub(super) fn is_full(&self, from: IpAddr) -> bool {
        let of = self.0.get(&counted(from));
        of.is_some_and(|(count, begun)| *count >= FAILURES && begun.elapsed() < WINDOW)
    }

    /// Counts a failure.
    pub(super) fn add(&mut self, from: IpAddr) {
        bound(&mut self.0, |(_, begun)| begun.elapsed() < WINDOW);
        let (count, begun) = self.0.entry(counted(from)).or_insert_with(|| (0, Instant::now()));
        if begun.elapsed() >= WINDOW {
            *count = 0;
            *begun = Instant::now();
        }
        *count += 1;
    }
}

/// The renewals of nodes.
#[derive(Default)]
pub(super) struct Renewals(HashMap<NodeName, Instant>);

impl Renewals {
    /// Counts a renewal; false if the node has had one in the last minute.
    pub(super) fn take(&mut self, node: &NodeName) -> bool {
        if self.0.get(node).is_some_and(|last| last.elapsed() < WINDOW) {
            return false;
        }
        // Only nodes with a certificate get here.
        self.0.retain(|_, last| last.elapsed() < WINDOW);
        self.0.insert(node.clone(), Instant::now());
        true
    }
}

/// Removes the entries of ended windows from a full map; if there are none, all entries.
fn bound<K: Hash + Eq, V>(map: &mut HashMap<K, V>, is_current: impl Fn(&V) -> bool) {
    if map.len() >= ENTRIES {
        map.retain(|_, value| is_current(value));
    }
    if map.len() >= ENTRIES {
        map.clear();
    }
}

/// The address that is counted: of IPv6, a /64 belongs to one host.
fn counted(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_fails_waits_and_others_do_not() {
        let mut failures = Failures::default();
        let [one, same, other] =
            ["2001:db8::1", "2001:db8::2", "192.0.2.1"].map(|text| text.parse().unwrap());
        for _ in 0..FAILURES {
            assert!(!failures.is_full(one));
            failures.add(one);
        }
        assert!(failures.is_full(one) && failures.is_full(same) && !failures.is_full(other));
        tokio::time::advance(WINDOW).await;
        assert!(!failures.is_full(one));
        failures.add(one);
        assert!(!failures.is_full(one));
    }

    #[tokio::test(start_paused = true)]
    async fn the_addresses_are_bounded() {
        let mut failures = Failures::default();
        for n in 0..3 * ENTRIES as u32 {
            failures.add(IpAddr::V4(n.into()));
        }
        assert!(failures.0.len() <= ENTRIES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_renews_once_a_minute() {
        let mut renewals = Renewals::default();
        let [one, other] = ["n1", "n2"].map(|name| name.parse().unwrap());
        assert!(renewals.take(&one) && !renewals.take(&one) && renewals.take(&other));
        tokio::time::advance(WINDOW).await;
        assert!(renewals.take(&one));
        assert_eq!(renewals.0.len(), 1);
    }
}
