//! `csi-cloud node remove` and `node admit`: a node is gone for good, or comes back after all.

use clap::Args;
use proto::admin::command::{Command, Done, Refusal};
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::{Deserialize, Serialize};

use crate::admin::admin_state::AdminState;
use crate::admin::leases::{Hold, hold};
use crate::state::clock::now;
use crate::state::known::State;
use crate::state::record::{Home, Node};
use crate::state::txn::Txn;

/// Remove a node for good: its link is refused, its volumes are lost, unpublishing them is OK.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveNode {
    /// Its name
    pub node: NodeName,
    /// Do it, and not only say what it would do
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,
}

impl Command<AdminState> for RemoveNode {
    const NAME: &'static str = "node remove";
    const PATH: &'static str = "/node/remove";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { node, yes } = self;
        let known = admin.known_node(&node)?;
        if known.removed.is_some() {
            return Ok(Done { done: true, text: format!("{node} was removed before") });
        }
        let homes = admin.store.read(|state| homes_at(state, &node).len());
        let open = admin.store.read(|state| state.open_intents_at(&node).count());
        let held = admin.store.read(|state| still_held(state, &node));
        if !yes {
            let text = format!(
                "{node} would be removed: its link ends and it is let in no more, {homes} volumes \
                 and snapshots are marked lost, and unpublishing them is OK from then on; {open} \
                 creates there stay open{held}. Give --yes to do it; `csi-cloud node admit {node}` \
                 undoes it"
            );
            return Ok(Done { done: false, text });
        }
        let at = node.clone();
        let written = admin.store.write(move |txn| {
            set_removed(txn, &at, Some(now()));
            mark(txn, &at, true)
        });
        let lost = written.await?;
        admin.links.end_removed(&node);
        // Homes that were recorded during that write. None follow, since the link is gone.
        let at = node.clone();
        let late = admin.store.write(move |txn| mark(txn, &at, true)).await?;
        Ok(Done::logged(format!(
            "{node} is removed; {} volumes and snapshots are marked lost, {open} creates there \
             stay open (`csi-cloud intents`){held}",
            lost + late
        )))
    }
}

/// Admit a removed node again; its volumes are no longer lost.
#[derive(Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitNode {
    /// Its name
    pub node: NodeName,
}

impl Command<AdminState> for AdmitNode {
    const NAME: &'static str = "node admit";
    const PATH: &'static str = "/node/admit";
    type Answer = Done;

    async fn carry_out(self, admin: &AdminState) -> Result<Done, Refusal> {
        let Self { node } = self;
        let known = admin.known_node(&node)?;
        if known.removed.is_none() {
            return Ok(Done { done: true, text: format!("{node} is not removed") });
        }
        let at = node.clone();
        let written = admin.store.write(move |txn| {
            set_removed(txn, &at, None);
            mark(txn, &at, false)
        });
        let found = written.await?;
        Ok(Done::logged(format!(
            "{node} is let in again; {found} volumes and snapshots are no longer lost"
        )))
    }
}

impl AdminState {
    /// A node that has linked.
    ///
    /// # Errors
    /// It never did.
    pub(super) fn known_node(&self, node: &NodeName) -> Result<Node, Refusal> {
        let known = self.store.read(|state| state.node(node).cloned());
        known.ok_or_else(|| {
            Refusal::unknown(format!("{node} never linked; `csi-cloud nodes` shows those that did"))
        })
    }
}

/// Sets or ends the removal of a node. Its machine may have been recorded since it was read.
fn set_removed(txn: &mut Txn<'_>, node: &NodeName, removed: Option<u64>) {
    if let Some(known) = txn.node(node).cloned() {
        txn.set_node(node, Some(Node { removed, ..known }));
    }
}

/// The homes at a node.
fn homes_at(state: &State, node: &NodeName) -> Vec<(DriverName, Id)> {
    let mut homes = Vec::new();
    for (driver, of) in state.drivers() {
        homes.extend(of.homes_of(node).map(|(id, _)| (driver.clone(), id.clone())));
    }
    homes
}

/// Marks the homes at a node as lost or not lost; returns how many changed.
fn mark(txn: &mut Txn<'_>, node: &NodeName, lost: bool) -> usize {
    let mut marked = 0;
    for (driver, id) in homes_at(txn.state(), node) {
        // The same commit may have changed it.
        let home = txn.home(&driver, &id).filter(|home| home.node == *node && home.lost != lost);
        if let Some(home) = home.cloned() {
            txn.set_home(&driver, &id, Some(Home { lost, ..home }));
            marked += 1;
        }
    }
    marked
}

/// Says which direct volumes a node keeps though it is removed; empty if none.
fn still_held(state: &State, node: &NodeName) -> String {
    let mut held = 0;
    let mut attached = 0;
    let leases = state.drivers().values().flat_map(|of| of.leases().values());
    for hold in leases.filter_map(|lease| hold(lease, node)) {
        match hold {
            Hold::Pod(_) | Hold::Claimed => held += 1,
            Hold::Attached => attached += 1,
        }
    }
    let mut text = String::new();
    if held > 0 {
        text = format!(
            ", and {held} volumes that one guest owns stay its own, since a guest may write to \
             them, and it is not told when they are taken from it: `csi-cloud leases --node \
             {node}`, `csi-cloud volume release`"
        );
    }
    if attached > 0 {
        text +=
            &format!(", and {attached} direct volumes stay attached to it until they are detached");
    }
    text
}
