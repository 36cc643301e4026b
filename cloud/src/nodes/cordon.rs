//! Two csi-edges that are alive with one certificate, on machines that tell no id of their own or
//! the same one.
//!
//! Each has a disk, so what is made twice or asked of the wrong one is lost. A program that was
//! started again is another run, and the run before never comes back: one that does, and answers a
//! challenge, is alive beside its successor. Then neither may link, until an operator says which
//! one is the node. A hello that lay in a buffer answers nothing.

use std::collections::BTreeMap;

use proto::control::hello::{Message, Run};
use proto::control::machine::MachineId;
use proto::host::chain;
use proto::host::peer_log::{LogPeer, peer_warn};
use proto::link::{Event, HANDSHAKE, Link};
use proto::names::NodeName;
use tokio::time::timeout;
use uuid::Uuid;

use crate::nodes::handle::Peer;
use crate::nodes::link_history::CertificateFault;
use crate::nodes::links::Links;
use crate::state::record::{Cordon, Intent, Node};
use crate::state::txn::Txn;

/// The refused runs of a node that are kept.
const MOST_REFUSED: usize = 16;

/// The reason given when links of a cordoned node end.
pub(crate) const CORDONED: &str = "two csi-edges are alive with this node's certificate";

/// Checks that this run may link. One that comes back after its successor is challenged, and if it
/// answers, the node is cordoned.
///
/// # Errors
/// It may not: the reason, for the edge.
pub(super) async fn check(
    links: &Links,
    node: &NodeName,
    peer: &Peer,
    link: &mut Link,
) -> Result<(), String> {
    check_record(links, node, peer)?;
    let Some(run) = peer.run.filter(|_| peer.answers_challenge) else { return Ok(()) };
    let Some(successor) = links.history.successor(node, run) else { return Ok(()) };
    if !is_alive(link).await {
        return Err(
            "it did not answer the challenge, and a newer run of csi-edge has linked".into()
        );
    }
    peer_warn!(
        LogPeer::Node(node), %node, %run, %successor,
        "two csi-edges are alive with one certificate; neither may link until an operator accepts \
         one of them"
    );
    record(links, node, [run, successor]).await?;
    links.end(node, CORDONED);
    check_record(links, node, peer)
}

/// Checks that no operator has to say, or has said, that this run is not the node.
///
/// # Errors
/// It may not link: the reason, for the edge, which does not learn of the other one.
pub(super) fn check_record(links: &Links, node: &NodeName, peer: &Peer) -> Result<(), String> {
    let Some(run) = peer.run else { return Ok(()) };
    let cordon = links.store().read(|state| state.node(node)?.cordon.clone());
    let Some(Cordon { alive, refused }) = cordon.map(|cordon| *cordon) else { return Ok(()) };
    if !alive.is_empty() {
        return Err(format!(
            "{CORDONED}, and this is run {run}. Look which of them is node {node}: `csi-cloud node \
             accept {node} --run {run}` if it is this one. Let the other one join under a name of \
             its own"
        ));
    }
    if refused.contains(&run) {
        return Err(format!(
            "an operator accepted another csi-edge as node {node}, and this is run {run}. Delete \
             its identity and state, and let it join under a name of its own"
        ));
    }
    Ok(())
}

/// True if the program that said hello answers now.
async fn is_alive(link: &mut Link) -> bool {
    let nonce = Uuid::new_v4();
    if link.send(&Message::Challenge(nonce)).await.is_err() {
        return false;
    }
    let answer = timeout(HANDSHAKE, link.next()).await;
    matches!(answer, Ok(Event::Message(Message::ChallengeAnswer(answer))) if answer == nonce)
}

async fn record(links: &Links, node: &NodeName, runs: [Run; 2]) -> Result<(), String> {
    let at = node.clone();
    let written = links.store().write(move |txn| {
        // Another link may have been faster.
        if let Some(known) = txn.node(&at).filter(|known| known.cordoned().is_empty()).cloned() {
            let refused = known.cordon.map(|cordon| cordon.refused).unwrap_or_default();
            let cordon = Some(Box::new(Cordon { alive: runs.into(), refused }));
            txn.set_node(&at, Some(Node { cordon, ..known }));
        }
    });
    written.await.map_err(|error| chain(&error))
}

/// Lets a node link again, as this run: the others may not. What they may have done is not sent
/// again. Returns false if the node is not cordoned.
pub(crate) fn accept(txn: &mut Txn<'_>, node: &NodeName, run: Run) -> bool {
    let Some(known) = txn.node(node).filter(|known| !known.cordoned().is_empty()).cloned() else {
        return false;
    };
    let Cordon { alive, refused } = known.cordon.map(|cordon| *cordon).unwrap_or_default();
    let others = alive.into_iter().filter(|other| *other != run);
    let refused: Vec<_> = others.chain(refused).take(MOST_REFUSED).collect();
    let other = refused.first().map(|other| Box::new(MachineId::new(&other.to_string())));
    let cordon = Some(Box::new(Cordon { alive: Vec::new(), refused }));
    txn.set_node(node, Some(Node { cordon, ..known }));
    let open: Vec<_> = txn
        .state()
        .open_intents_at(node)
        .map(|(driver, name, intent)| (driver.clone(), name.clone(), intent.clone()))
        .collect();
    for (driver, name, intent) in open {
        txn.set_intent(&driver, &name, Some(Intent { machine: other.clone(), ..intent }));
    }
    true
}

/// Runs of csi-edge, for a sentence.
pub(crate) fn in_words(runs: &[Run]) -> String {
    runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// What is wrong with a node's certificate: the store has who is cordoned, the history the rest.
pub(crate) fn certificate_fault(links: &Links, node: &NodeName) -> Option<CertificateFault> {
    let cordoned = links.store().read(|state| state.node(node).map(|of| of.cordoned().to_vec()));
    match cordoned.filter(|runs| !runs.is_empty()) {
        Some(runs) => Some(CertificateFault::Cordoned(runs)),
        None => links.history.fault(node),
    }
}

/// The nodes whose certificate, or an older one, somebody else has, as far as it shows.
pub(crate) fn shared_certificates(links: &Links) -> BTreeMap<NodeName, CertificateFault> {
    let mut shared = links.history.shared();
    links.store().read(|state| {
        for (name, node) in state.nodes().iter().filter(|(_, node)| !node.cordoned().is_empty()) {
            shared.insert(name.clone(), CertificateFault::Cordoned(node.cordoned().to_vec()));
        }
    });
    shared
}
