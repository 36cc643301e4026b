//! The machine that a node is: the first that told its id, until an operator accepts another one.
//!
//! A copy of a node's disk has its certificate and a disk of its own. With a link it would make
//! every volume again that the node makes, say that it does not have the node's volumes, and delete
//! what it never had with success. So it gets no link; its own front works.

use proto::host::chain;
use proto::names::NodeName;

use crate::nodes::handle::Peer;
use crate::nodes::links::Links;
use crate::state::ingest;

/// The reason given when the link of another machine than the node's ends.
pub(crate) const OTHER_MACHINE: &str = "an operator accepted another machine as this node";

/// Checks that a link is one of the machine that the node is. An edge that does not tell its
/// machine, such as an older one, is taken at its certificate's word. A refusal does not tell the
/// node's id: whoever states that may renew an older certificate.
///
/// # Errors
/// The node is another machine: the reason, and the command that moves it.
pub(super) fn check(links: &Links, node: &NodeName, peer: &Peer) -> Result<(), String> {
    let known = links.store().read(|state| state.node(node)?.machine);
    let Some(machine) = peer.machine else { return Ok(()) };
    if known.is_none_or(|known| known == machine) {
        return Ok(());
    }
    links.history.refused_machine(node, machine, peer.address);
    Err(format!(
        "node {node} is another machine, and this is {machine}. If the node has moved here, \
         `csi-cloud node accept {node} --machine {machine}` moves it. If this is a copy of its \
         disk, delete its identity and state, and let it join under a name of its own"
    ))
}

/// Records the machine of a node that has none yet, and the issue number of the certificate on its
/// disk.
///
/// # Errors
/// The change is not durable, or another machine was faster: the reason, for the edge.
pub(super) async fn record(
    links: &Links,
    node: &NodeName,
    peer: &Peer,
    issue: Option<u64>,
) -> Result<(), String> {
    let recorded = ingest::identity(links.store(), node, peer.machine, issue).await;
    recorded.map_err(|error| chain(&error))?;
    check(links, node, peer)
}
