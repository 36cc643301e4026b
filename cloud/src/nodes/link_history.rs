//! The history of each node's links: the loss of the last link, and faults of the certificate.
//!
//! It is in memory only, and small: it has only nodes to which the CA gave a certificate.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use proto::control::hello::Run;
use proto::names::NodeName;
use tokio::time::Instant;

use crate::nodes::handle::Peer;

/// A certificate counts as shared for this time after an edge has replaced its own successor.
const SHARED: Duration = Duration::from_secs(60);

/// A fault of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CertificateFault {
    /// It ended at this time, and an edge tried to link with it.
    Ended(SystemTime),
    /// Two running edges share it, at these addresses.
    Shared([Option<SocketAddr>; 2]),
}

/// The links of all nodes, as they were. Boxed, since a table has up to two places for an entry.
#[derive(Default)]
pub(crate) struct LinkHistory(Mutex<HashMap<NodeName, Box<NodeHistory>>>);

#[derive(Default)]
struct NodeHistory {
    /// The time of the loss of its link; none while it has one.
    lost: Option<Instant>,
    ended: Option<SystemTime>,
    /// The edge that linked last.
    last: Option<Edge>,
    /// The edge before that one.
    before: Option<Edge>,
    /// The last time at which an edge replaced the one that had replaced it.
    returned: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Edge {
    run: Run,
    address: Option<SocketAddr>,
}

impl LinkHistory {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Box<NodeHistory>>> {
        self.0.lock()
    }

    /// Notes a new link of a node.
    pub(super) fn linked(&self, node: &NodeName, peer: &Peer) {
        let mut all = self.lock();
        let history = all.entry(node.clone()).or_default();
        history.lost = None;
        history.ended = None;
        let Some(run) = peer.run else { return };
        let edge = Edge { run, address: peer.address };
        let is_last = history.last.is_some_and(|last| last.run == run);
        // A program that was started again is another run, and the run before never comes back.
        if !is_last && history.before.is_some_and(|before| before.run == run) {
            history.returned = Some(Instant::now());
        }
        if !is_last {
            history.before = history.last;
        }
        history.last = Some(edge);
    }

    /// Notes that a node has no link any more.
    pub(super) fn lost(&self, node: &NodeName) {
        self.lock().entry(node.clone()).or_default().lost = Some(Instant::now());
    }

    /// Notes that the certificate with which an edge is, or wants to be, linked ended at this time.
    pub(super) fn ended(&self, node: &NodeName, at: SystemTime) {
        self.lock().entry(node.clone()).or_default().ended = Some(at);
    }

    /// The time since a node lost its link; none if it had none.
    pub(crate) fn lost_for(&self, node: &NodeName) -> Option<Duration> {
        self.lock().get(node)?.lost.map(|lost| lost.elapsed())
    }

    /// The fault of a node's certificate, if there is one.
    pub(crate) fn fault(&self, node: &NodeName) -> Option<CertificateFault> {
        let all = self.lock();
        let history = all.get(node)?;
        if history.returned.is_some_and(|at| at.elapsed() < SHARED) {
            let address = |edge: Option<Edge>| edge.and_then(|edge| edge.address);
            return Some(CertificateFault::Shared([
                address(history.before),
                address(history.last),
            ]));
        }
        history.ended.map(CertificateFault::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(run: Run, port: u16) -> Peer {
        let address = Some(([192, 0, 2, 1], port).into());
        Peer { run: Some(run), address, ..Peer::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn two_edges_that_replace_each_other_share_a_certificate() {
        let history = LinkHistory::default();
        let node: NodeName = "n1".parse().unwrap();
        let [one, other] = [Run::begin(), Run::begin()];
        history.linked(&node, &peer(one, 1));
        history.linked(&node, &peer(one, 2));
        history.linked(&node, &peer(other, 3));
        assert_eq!(history.fault(&node), None, "csi-edge was started again, say");
        history.linked(&node, &Peer::default());
        history.linked(&node, &peer(one, 4));
        let [port_3, port_4] = [3, 4].map(|port| peer(one, port).address);
        assert_eq!(history.fault(&node), Some(CertificateFault::Shared([port_3, port_4])));
        tokio::time::advance(SHARED).await;
        assert_eq!(history.fault(&node), None, "it has not happened again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_ended_counts_until_the_next_link() {
        let history = LinkHistory::default();
        let node: NodeName = "n1".parse().unwrap();
        let end = SystemTime::UNIX_EPOCH;
        history.lost(&node);
        history.ended(&node, end);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(history.lost_for(&node), Some(Duration::from_secs(5)));
        assert_eq!(history.fault(&node), Some(CertificateFault::Ended(end)));
        history.linked(&node, &peer(Run::begin(), 1));
        assert_eq!((history.lost_for(&node), history.fault(&node)), (None, None));
    }
}
