//! Limits failed joins of an address, renewals of a node, and the keys of a token.
//!
//! A token's secret cannot be guessed; the limit of failures spares the log and the CPU. Both maps
//! are bounded.

use std::collections::HashMap;
use std::net::IpAddr;

use proto::host::limit::{Window, host_network};
use proto::names::NodeName;
use tokio::time::{Duration, Instant};

use crate::state::trust::Hash;

/// The time in which failures and renewals are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// The failures of one address in that time.
const FAILURES: usize = 10;
/// A ServiceAccount's token has ended after this time. The chart's are for ten minutes.
const TOKEN_TTL: Duration = Duration::from_secs(3600);
/// The entries of a map. Beyond them it is emptied, so that no stranger can keep others out.
const ENTRIES: usize = 4096;

/// The tokens that were refused, by address; of IPv6, by /64.
#[derive(Default)]
pub(super) struct Failures(HashMap<IpAddr, Window>);

impl Failures {
    /// True if an address has failed too often.
    pub(super) fn is_full(&self, from: IpAddr) -> bool {
        let failed = self.0.get(&host_network(from));
        failed.is_some_and(|failed| failed.wait(FAILURES, WINDOW, Instant::now()).is_some())
    }

    /// Counts a failure.
    pub(super) fn add(&mut self, from: IpAddr) {
        let now = Instant::now();
        if self.0.len() >= ENTRIES {
            self.0.retain(|_, failed| failed.is_current(WINDOW, now));
        }
        if self.0.len() >= ENTRIES {
            self.0.clear();
        }
        self.0.entry(host_network(from)).or_default().add(WINDOW, now);
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

/// The keys with which tokens of ServiceAccounts were used first.
#[derive(Default)]
pub(super) struct FirstKeys(HashMap<Hash, (Hash, Instant)>);

impl FirstKeys {
    /// Notes that a good token is used with a key. Returns `false` if it was used with another one.
    pub(super) fn take(&mut self, token: Hash, key: Hash) -> bool {
        // Only tokens that Kubernetes authenticates get here, and they end.
        self.0.retain(|_, (_, at)| at.elapsed() < TOKEN_TTL);
        let (first, _) = self.0.entry(token).or_insert_with(|| (key, Instant::now()));
        *first == key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_for_the_first_key_that_used_it() {
        let mut keys = FirstKeys::default();
        let [token, other_token, key, other_key] =
            ["t1", "t2", "k1", "k2"].map(|text| Hash::of(text.as_bytes()));
        assert!(keys.take(token, key));
        assert!(keys.take(token, key), "its answer was lost");
        assert!(!keys.take(token, other_key));
        assert!(keys.take(other_token, other_key));
        tokio::time::advance(TOKEN_TTL).await;
        assert!(keys.take(token, other_key), "Kubernetes has ended it long ago");
        assert_eq!(keys.0.len(), 1);
    }

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
