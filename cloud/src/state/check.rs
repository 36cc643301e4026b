//! Finds records that contradict each other.
//!
//! Each contradiction comes from a fault: in csi-cloud, in a driver, or in an export edited by
//! hand. Routing goes on; an operator has to look.

use prost::Message;
use proto::csi;
use proto::csi::Id;
use proto::names::{DriverName, NodeName};
use serde::Serialize;

use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::record::{Home, Intent, LeaseRecord};

/// A contradiction.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Wrong {
    /// The driver of the record; empty if several drivers are concerned.
    pub(crate) driver: String,
    /// The record, for example `volume vol-1`.
    pub(crate) what: String,
    /// The problem.
    pub(crate) why: String,
}

/// All contradictions, ordered by driver and record.
pub(super) fn disagreements(state: &State) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    for (driver, of) in state.drivers() {
        let mut say = |what: String, why: Vec<String>| {
            let of_record = |why| Wrong { driver: driver.to_string(), what: what.clone(), why };
            wrong.extend(why.into_iter().map(of_record));
        };
        for (id, home) in of.homes() {
            say(named(id), about_home(state, id, home));
        }
        for (name, intent) in of.intents() {
            say(named(name), about_intent(state, of, name, intent));
        }
        for (id, lease) in of.leases() {
            say(format!("owner of the {}", named(id)), about_lease(state, lease));
        }
        for node in of.nodes().keys() {
            say(format!("driver at {node}"), unknown(state, node).into_iter().collect());
        }
        if let Some(node) = of.elected() {
            say("election".into(), about_election(driver, of, node).into_iter().collect());
        }
    }
    wrong
}

/// An id in words.
fn named(id: &Id) -> String {
    match id {
        Id::Volume(text) => format!("volume {text:?}"),
        Id::Snapshot(text) => format!("snapshot {text:?}"),
        Id::Group(text) => format!("group {text:?}"),
        Id::Name(method, text) => format!("{method} of {text:?}"),
    }
}

fn about_home(state: &State, id: &Id, home: &Home) -> Vec<String> {
    let mut why: Vec<_> = unknown(state, &home.node).into_iter().collect();
    if matches!(id, Id::Name(..)) {
        why.push("a name has no home, what was made under it has".into());
    }
    if home.lost && !state.is_removed(&home.node) {
        why.push(format!("it is marked lost, and its node {} was not removed", home.node));
    }
    for other in &home.conflicts {
        why.extend(unknown(state, other));
        why.push(if *other == home.node {
            format!("its own node {other} is among those that claim it as well")
        } else {
            format!(
                "it lives at {}, and {other} says that it lives there; give one of them another id",
                home.node
            )
        });
    }
    why.extend(about_entry(id, home));
    why
}

/// A list must not show one thing under the id of another.
fn about_entry(id: &Id, home: &Home) -> Option<String> {
    if home.entry.is_empty() {
        return None;
    }
    let entry = home.entry.clone();
    let shown = match id {
        Id::Volume(_) => csi::list_volumes_response::Entry::decode(entry)
            .map(|entry| Id::Volume(entry.volume.unwrap_or_default().volume_id)),
        Id::Snapshot(_) => csi::list_snapshots_response::Entry::decode(entry)
            .map(|entry| Id::Snapshot(entry.snapshot.unwrap_or_default().snapshot_id)),
        Id::Group(_) => csi::CreateVolumeGroupSnapshotResponse::decode(entry)
            .map(|entry| Id::Group(entry.group_snapshot.unwrap_or_default().group_snapshot_id)),
        Id::Name(..) => return None,
    };
    match shown {
        Err(error) => Some(format!("its entry in lists cannot be read: {error}")),
        Ok(shown) if shown != *id => Some(format!("lists show it as {}", named(&shown))),
        Ok(_) => None,
    }
}

fn about_intent(state: &State, of: &DriverState, name: &Id, intent: &Intent) -> Vec<String> {
    let mut why: Vec<_> = unknown(state, &intent.node).into_iter().collect();
    let Some(made) = &intent.made else { return why };
    let made = match name {
        Id::Name(method, _) => method.creates().map(|kind| kind.id(made.to_string())),
        Id::Volume(_) | Id::Snapshot(_) | Id::Group(_) => None,
    };
    let Some(made) = made else {
        why.push("nothing is made by this".into());
        return why;
    };
    if of.home(&made).is_none() {
        why.push(format!("it made the {}, which has no home", named(&made)));
    }
    why
}

fn about_lease(state: &State, lease: &LeaseRecord) -> Vec<String> {
    let holder = lease.holder.iter().map(|holder| &holder.node);
    let nodes = holder.chain(lease.attached.iter().map(|attached| &attached.node));
    let nodes = nodes.chain(lease.claims.iter().map(|claim| &claim.node));
    let mut why: Vec<_> = nodes.filter_map(|node| unknown(state, node)).collect();
    why.dedup();
    let broken = lease.broken.iter().map(|broken| broken.epoch).max();
    // What a node states without a proof is not counted as given out.
    let granted = lease.holder.as_ref().filter(|holder| !holder.unproven);
    let epoch = granted.map(|holder| holder.epoch).max(broken).unwrap_or_default();
    if epoch > state.epoch() {
        why.push(format!(
            "its epoch {epoch} may be given out again: the last one is said to be {}",
            state.epoch()
        ));
    }
    why
}

fn about_election(driver: &DriverName, of: &DriverState, node: &NodeName) -> Option<String> {
    of.at(node)
        .is_none()
        .then(|| format!("{node} is to carry out the calls, and never had {driver}"))
}

fn unknown(state: &State, node: &NodeName) -> Option<String> {
    state.node(node).is_none().then(|| format!("its node {node} never linked"))
}
