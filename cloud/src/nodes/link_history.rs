//! The history of each node's links: the loss of the last link, and faults of the certificate.
//!
//! It is in memory only, and small: it has only nodes to which the CA gave a certificate.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use proto::control::hello::Run;
use proto::control::machine::MachineId;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::names::NodeName;
use tokio::time::Instant;

use crate::nodes::handle::Peer;

/// A certificate counts as shared for this time after an edge has replaced its own successor, or
/// another machine was refused. That one tries again every 16 s or sooner.
const SHARED: Duration = Duration::from_secs(60);
/// The refusal to renew an older certificate counts for this time. csi-edge asks again within two
/// hours: 1 h, and as much for jitter.
const OLDER: Duration = Duration::from_secs(2 * 3600);

/// The runs of a node that are remembered.
const RUNS: usize = 16;

/// A fault of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CertificateFault {
    /// It ended at this time, and an edge tried to link with it.
    Ended(SystemTime),
    /// Two running edges share it, at these addresses.
    Shared([Option<SocketAddr>; 2]),
    /// These runs of csi-edge were alive with it at the same time, and none may link.
    Cordoned(Vec<Run>),
    /// Another machine than the node has it, and is refused.
    OtherMachine(RefusedMachine),
    /// An older certificate of the node was not renewed. It was shown from this address.
    Older(Option<SocketAddr>),
}

impl CertificateFault {
    /// The fault in a word.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ended(_) => "ended",
            Self::Shared(_) => "shared",
            Self::Cordoned(_) => "cordoned",
            Self::OtherMachine(_) => "other-machine",
            Self::Older(_) => "older",
        }
    }
}

/// A machine that wants to link as a node that is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedMachine {
    /// Its id.
    pub(crate) machine: MachineId,
    /// The address it dialed from.
    pub(crate) address: Option<SocketAddr>,
}

impl fmt::Display for RefusedMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} at {address}", self.machine),
            None => self.machine.fmt(f),
        }
    }
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
    /// The edges that linked before it, the oldest first, and each once.
    earlier: Vec<Edge>,
    /// The last time at which an edge replaced the one that had replaced it.
    returned: Option<Instant>,
    /// The other machine that was refused last, and when.
    refused: Option<(RefusedMachine, Instant)>,
    /// The address from which an older certificate was shown last to be renewed, and when.
    older: Option<(Option<SocketAddr>, Instant)>,
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
        if history.refused.is_some_and(|(refused, _)| Some(refused.machine) == peer.machine) {
            history.refused = None;
        }
        let Some(run) = peer.run else { return };
        let edge = Edge { run, address: peer.address };
        let is_last = history.last.is_some_and(|last| last.run == run);
        // A program that was started again is another run, and the run before never comes back.
        if !is_last && history.earlier.last().is_some_and(|before| before.run == run) {
            history.returned = Some(Instant::now());
            let other = history.last.and_then(|last| last.address);
            peer_warn!(
                LogPeer::Node(node), %node, address = ?peer.address, ?other,
                "two csi-edges with one certificate replace each other's links"
            );
        }
        if !is_last {
            history.earlier.retain(|earlier| earlier.run != run);
            history.earlier.extend(history.last);
            let over = history.earlier.len().saturating_sub(RUNS);
            history.earlier.drain(..over);
        }
        history.last = Some(edge);
    }

    /// The run that linked last, if this one linked before it.
    pub(super) fn successor(&self, node: &NodeName, run: Run) -> Option<Run> {
        let all = self.lock();
        let history = all.get(node)?;
        let was_before = history.earlier.iter().any(|earlier| earlier.run == run);
        history.last.map(|last| last.run).filter(|_| was_before)
    }

    /// Forgets the runs of a node, since an operator chose among them.
    pub(crate) fn forget_runs(&self, node: &NodeName) {
        if let Some(history) = self.lock().get_mut(node) {
            (history.last, history.returned) = (None, None);
            history.earlier.clear();
        }
    }

    /// Notes that a node has no link any more.
    pub(super) fn lost(&self, node: &NodeName) {
        self.lock().entry(node.clone()).or_default().lost = Some(Instant::now());
    }

    /// Notes that the certificate with which an edge is, or wants to be, linked ended at this time.
    pub(super) fn ended(&self, node: &NodeName, at: SystemTime) {
        self.lock().entry(node.clone()).or_default().ended = Some(at);
    }

    /// Notes that this machine was refused, because the node is another one.
    pub(super) fn refused_machine(
        &self,
        node: &NodeName,
        machine: MachineId,
        address: Option<SocketAddr>,
    ) {
        let refused = Some((RefusedMachine { machine, address }, Instant::now()));
        self.lock().entry(node.clone()).or_default().refused = refused;
    }

    /// Notes that an older certificate of a node was not renewed.
    pub(super) fn refused_renewal(&self, node: &NodeName, from: Option<SocketAddr>) {
        let older = Some((from, Instant::now()));
        self.lock().entry(node.clone()).or_default().older = older;
    }

    /// The time since a node lost its link; none if it had none.
    pub(crate) fn lost_for(&self, node: &NodeName) -> Option<Duration> {
        self.lock().get(node)?.lost.map(|lost| lost.elapsed())
    }

    /// The fault of a node's certificate, if there is one.
    pub(crate) fn fault(&self, node: &NodeName) -> Option<CertificateFault> {
        self.lock().get(node)?.fault()
    }

    /// The nodes whose certificate, or an older one, somebody else has, as far as it shows.
    pub(crate) fn shared(&self) -> BTreeMap<NodeName, CertificateFault> {
        let mut shared = BTreeMap::new();
        for (node, history) in self.lock().iter() {
            match history.fault() {
                None | Some(CertificateFault::Ended(_)) => {}
                Some(fault) => {
                    shared.insert(node.clone(), fault);
                }
            }
        }
        shared
    }
}

impl NodeHistory {
    /// The fault of the node's certificate, if there is one.
    fn fault(&self) -> Option<CertificateFault> {
        if let Some((refused, at)) = self.refused
            && at.elapsed() < SHARED
        {
            return Some(CertificateFault::OtherMachine(refused));
        }
        if self.returned.is_some_and(|at| at.elapsed() < SHARED) {
            let both = [self.earlier.last(), self.last.as_ref()];
            return Some(CertificateFault::Shared(both.map(|edge| edge.and_then(|at| at.address))));
        }
        if let Some((from, at)) = self.older
            && at.elapsed() < OLDER
        {
            return Some(CertificateFault::Older(from));
        }
        self.ended.map(CertificateFault::Ended)
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
        assert_eq!(history.successor(&node, one), Some(other));
        assert_eq!(history.successor(&node, other), None, "nobody linked after it");
        assert_eq!(history.successor(&node, Run::begin()), None, "a start");
        let chosen = LinkHistory::default();
        chosen.linked(&node, &peer(one, 1));
        chosen.linked(&node, &peer(other, 1));
        chosen.forget_runs(&node);
        assert_eq!(chosen.successor(&node, one), None, "an operator chose it");
        history.linked(&node, &Peer::default());
        history.linked(&node, &peer(one, 4));
        let [port_3, port_4] = [3, 4].map(|port| peer(one, port).address);
        assert_eq!(history.fault(&node), Some(CertificateFault::Shared([port_3, port_4])));
        tokio::time::advance(SHARED).await;
        assert_eq!(history.fault(&node), None, "it has not happened again");
    }

    #[tokio::test(start_paused = true)]
    async fn another_machine_that_is_refused_is_a_fault_until_it_is_accepted_or_gone() {
        let history = LinkHistory::default();
        let node: NodeName = "n1".parse().unwrap();
        let machine = MachineId::new("board 2");
        let refused = RefusedMachine { machine, address: peer(Run::begin(), 1).address };
        let refuse = || history.refused_machine(&node, machine, refused.address);
        refuse();
        assert_eq!(history.fault(&node), Some(CertificateFault::OtherMachine(refused)));
        assert_eq!(refused.to_string(), format!("{machine} at 192.0.2.1:1"));
        tokio::time::advance(SHARED).await;
        assert_eq!(history.fault(&node), None, "it does not try any more");
        refuse();
        let linked = |own: &str| {
            let machine = Some(MachineId::new(own));
            history.linked(&node, &Peer { machine, ..peer(Run::begin(), 2) });
        };
        linked("board 1");
        assert!(history.fault(&node).is_some(), "the node's own machine has a link");
        linked("board 2");
        assert_eq!(history.fault(&node), None, "it was accepted");
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_certificate_that_is_not_renewed_is_a_fault_though_the_node_is_linked() {
        let history = LinkHistory::default();
        let node: NodeName = "n1".parse().unwrap();
        let copy = peer(Run::begin(), 1).address;
        history.refused_renewal(&node, copy);
        history.linked(&node, &peer(Run::begin(), 2));
        assert_eq!(history.fault(&node), Some(CertificateFault::Older(copy)));
        history.ended(&"n2".parse().unwrap(), SystemTime::UNIX_EPOCH);
        assert_eq!(history.shared(), [(node.clone(), CertificateFault::Older(copy))].into());
        tokio::time::advance(OLDER).await;
        assert_eq!(history.fault(&node), None, "it was not asked again");
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
