//! What a node's whole list teaches, as one durable change; nothing is written if all of it is known.
//!
//! A list is older than what happened while it was read: homes that changed since are left alone, what changed and
//! has no home yet is asked for again, and homes are never forgotten here. What a list no longer has is absent: it is
//! not shown, and a delete still goes to its node.

use std::collections::{HashMap, HashSet};

use proto::csi::{Id, Made};
use proto::names::{DriverName, NodeName};
use tracing::warn;

use super::kind::Kind;
use crate::state::clock::now;
use crate::state::known::State;
use crate::state::recent::Stale;
use crate::state::record::{Home, NodeDriver};
use crate::state::txn::Txn;

/// All that a node has of a kind.
pub(super) struct Whole {
    pub(super) kind: Kind,
    /// The driver's count of changes before the node was asked.
    pub(super) since: u64,
    pub(super) things: Vec<Made>,
}

impl Whole {
    /// Keeps what it teaches. Gives back whether that is all; if not, it is too old for something that it names, and
    /// the node must be asked again.
    pub(super) fn learn(self, txn: &mut Txn<'_>, driver: &DriverName, node: &NodeName) -> bool {
        let Self { kind, since, things } = self;
        let state = txn.state();
        let missing = missing(state, driver, node, kind, since, &things);
        let without =
            state.driver(driver).map_or_else(|| Some(HashMap::new()), |of| of.stale_since(since));
        // What is not remembered any more may have been changed.
        let why = |txn: &Txn<'_>, id: &Id| match &without {
            Some(without) if !txn.is_stale(driver, id) => without.get(id).copied(),
            _ => Some(Stale::Changed),
        };
        let mut whole = true;
        for Made { id, entry, source } in things {
            match txn.home(driver, &id).cloned() {
                Some(home) if home.node != *node => claimed(txn, driver, node, &id, home),
                _ if txn.is_changing(driver, &id) => {}
                Some(home) => {
                    let newer = state
                        .driver(driver)
                        .is_some_and(|driver| driver.changed_since(node, &id, since));
                    if !newer && (home.absent || home.entry != entry) {
                        let source = source.map(Box::new).or(home.source);
                        txn.set_home(
                            driver,
                            &id,
                            Some(Home { absent: false, entry, source, ..home }),
                        );
                    }
                }
                None => match why(txn, &id) {
                    None => {
                        let home = Home {
                            entry,
                            source: source.map(Box::new),
                            ..Home::at(node.clone(), now())
                        };
                        txn.set_home(driver, &id, Some(home));
                    }
                    // It was deleted, and the list is older.
                    Some(Stale::Forgotten) => {}
                    Some(Stale::Changed) => whole = false,
                },
            }
        }
        for id in
            missing.iter().filter(|id| !txn.is_changing(driver, id)).cloned().collect::<Vec<_>>()
        {
            if let Some(home) = txn.home(driver, &id).filter(|home| !home.absent).cloned() {
                txn.set_home(driver, &id, Some(Home { absent: true, ..home }));
            }
        }
        if let Some(at) =
            txn.at(driver, node).filter(|at| whole && kind == Kind::Volumes && at.listed == 0)
        {
            let at = NodeDriver { listed: now(), ..at.clone() };
            txn.set_at(driver, node, Some(at));
        }
        whole
    }
}

/// What lists have shown of a node, and this one does not have.
pub(super) fn missing(
    state: &State,
    driver: &DriverName,
    node: &NodeName,
    kind: Kind,
    since: u64,
    things: &[Made],
) -> Vec<Id> {
    let Some(driver) = state.driver(driver) else { return Vec::new() };
    let listed: HashSet<&Id> = things.iter().map(|thing| &thing.id).collect();
    let homes = driver.homes_of(node).filter(|(id, change)| kind.is_of(id) && *change <= since);
    let shown = homes.filter(|(id, _)| driver.home(id).is_some_and(|home| !home.absent));
    shown.map(|(id, _)| id).filter(|id| !listed.contains(id)).cloned().collect()
}

/// Two nodes say that they have it: the first keeps it.
fn claimed(txn: &mut Txn<'_>, driver: &DriverName, node: &NodeName, id: &Id, mut home: Home) {
    if home.conflicts.contains(node) {
        return;
    }
    warn!(%driver, home = %home.node, %node, id = id.text(),
        "two nodes list the same id; the first one keeps it, and no call for it reaches the other");
    home.conflicts.push(node.clone());
    txn.set_home(driver, id, Some(home));
}
