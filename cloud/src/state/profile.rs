//! The profile of a driver: what its front reports, whatever single nodes say later.
//!
//! It is pinned when three nodes agree, or all if fewer are known. After that only an operator
//! changes it. A node whose driver lacks something of it is set apart for the driver.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use proto::csi::{Capabilities, Local};
use proto::names::{DriverName, NodeName};
use tracing::info;

use crate::state::capabilities::lacking;
use crate::state::clock::now;
use crate::state::known::State;
use crate::state::record::{NodeDriver, Profile};
use crate::state::set_apart::{Reason, ReasonKind};
use crate::state::store::backend::StoreError;
use crate::state::store::writer::Store;

/// The number of nodes that must agree, if so many are known.
const AGREEING: usize = 3;
/// The number of missing capabilities that are named.
const FEW: usize = 5;

/// Pins the profile of a driver that has none, if enough nodes agree. Then sets this node apart if
/// it lacks something of the profile, or ends that; and all others when the profile is new.
///
/// # Errors
/// The profile is not durable.
pub async fn update(store: &Store, driver: &DriverName, node: &NodeName) -> Result<(), StoreError> {
    let agreed = store.read(|state| agreed(state, driver));
    if let Some(profile) = agreed {
        let nodes: Vec<_> = profile.from.iter().map(ToString::to_string).collect();
        let of = driver.clone();
        let pinned = store.write(move |txn| {
            let is_first = txn.profile(&of).is_none();
            if is_first {
                txn.set_profile(&of, Some(profile));
            }
            is_first
        });
        if pinned.await? {
            info!(%driver, nodes = nodes.join(" "), "the driver's profile is pinned: they agree");
            check(store, driver);
        }
    }
    let found = store.read(|state| {
        let of = state.driver(driver)?;
        let at = of.at(node).filter(|at| at.has_spoken())?;
        Some(lacks(of.profile()?, at))
    });
    if let Some(lacks) = found {
        judge(store, driver, node, &lacks);
    }
    Ok(())
}

fn judge(store: &Store, driver: &DriverName, node: &NodeName, lacks: &[String]) {
    if lacks.is_empty() {
        store.clear_apart(node, Some(driver), ReasonKind::LessThanProfile);
    } else {
        let lacks = first_few(lacks);
        store.set_apart(node, Some(driver), Reason::LessThanProfile { lacks });
    }
}

/// Sets apart each node that lacks something of the driver's profile, or ends that.
pub fn check(store: &Store, driver: &DriverName) {
    let found = store.read(|state| {
        let of = state.driver(driver)?;
        let profile = of.profile()?;
        let apart = |node: &NodeName| {
            let mut reasons = state.apart().of(node, driver);
            reasons.any(|apart| apart.reason.kind() == ReasonKind::LessThanProfile)
        };
        let spoken = of.nodes().iter().filter(|(_, at)| at.has_spoken());
        let found = spoken.map(|(node, at)| (node.clone(), lacks(profile, at), apart(node)));
        // Nearly all nodes are as they should be, and stay so.
        Some(found.filter(|(_, lacks, apart)| *apart || !lacks.is_empty()).collect::<Vec<_>>())
    });
    for (node, lacks, _) in found.unwrap_or_default() {
        judge(store, driver, &node, &lacks);
    }
}

/// The capabilities of a profile that the driver at a node lacks.
pub fn lacks(profile: &Profile, at: &NodeDriver) -> Vec<String> {
    // Most nodes share the profile's copy.
    if Arc::ptr_eq(&profile.answers, &at.answers) {
        return Vec::new();
    }
    let of = |capabilities| {
        let local = Local::Capabilities(capabilities);
        lacking(capabilities, profile.answer(local), at.answer(local))
    };
    Capabilities::ALL.into_iter().flat_map(of).collect()
}

fn first_few(lacks: &[String]) -> String {
    let few = lacks.iter().take(FEW).cloned().collect::<Vec<_>>().join(", ");
    match lacks.len().saturating_sub(FEW) {
        0 => few,
        more => format!("{few} and {more} more"),
    }
}

/// The profile on which enough nodes agree; none if the driver has one.
fn agreed(state: &State, driver: &DriverName) -> Option<Profile> {
    let of = state.driver(driver).filter(|of| of.profile().is_none())?;
    let members: Vec<_> = of.members().collect();
    let mut groups: HashMap<Vec<Option<&Bytes>>, Vec<(&NodeName, &NodeDriver)>> = HashMap::new();
    let apart = |node: &NodeName| state.apart().why(node, driver).is_some();
    let may = members.iter().filter(|(node, at)| at.has_spoken() && !apart(node));
    for (node, at) in may {
        let said = Capabilities::ALL.map(|kind| at.answer(Local::Capabilities(kind)));
        groups.entry(said.to_vec()).or_default().push((*node, *at));
    }
    let most = groups.values().map(Vec::len).max()?;
    let mut largest = groups.into_values().filter(|group| group.len() == most);
    // Nodes that labels select may be more than are known.
    let awaited = match state.awaits_labels(driver) {
        true => AGREEING,
        false => state.awaited(driver).take(AGREEING).count(),
    };
    let known = members.len() + awaited;
    let group = largest.next().filter(|_| most >= AGREEING.min(known))?;
    // Two groups of one size do not agree.
    if largest.next().is_some() {
        return None;
    }
    let (_, first) = group.first()?;
    let from = group.iter().take(AGREEING).map(|(node, _)| (*node).clone()).collect();
    Some(Profile { answers: first.answers.clone(), since: now(), from })
}

/// The capabilities that a front gains and loses if `after` replaces `before`.
pub fn difference(
    before: Option<&Profile>,
    after: &Profile,
) -> BTreeMap<Capabilities, (Vec<String>, Vec<String>)> {
    let mut changed = BTreeMap::new();
    for kind in Capabilities::ALL {
        let local = Local::Capabilities(kind);
        let was = before.and_then(|before| before.answer(local));
        let is = after.answer(local);
        let more = lacking(kind, is, was);
        let less = lacking(kind, was, is);
        if !more.is_empty() || !less.is_empty() {
            changed.insert(kind, (more, less));
        }
    }
    changed
}

#[cfg(test)]
mod tests;
