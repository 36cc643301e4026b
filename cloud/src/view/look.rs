//! Looks at everything: makes a snapshot of the parts that the admin commands read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::admin::view;
use proto::admin::view::{DriverCell, InFlight, NodeCell, NodeState, Snapshot, near};
use proto::csi::Id;
use proto::host::clock;
use proto::names::certificate::Validity;
use proto::names::{DriverName, NodeName};

use super::problem::rows;
use super::sweep::{Sweep, Troubled};
use super::trouble;
use crate::admin::admin_state::AdminState;
use crate::state::condition::NodeCondition;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::telemetry::calls::{LONG, Stage};

/// A certificate that ends within this time ends soon.
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// What the store says of a node.
struct Stored {
    name: NodeName,
    condition: NodeCondition,
    /// Since when it is removed or revoked, in ms since 1970.
    ended: Option<u64>,
    /// Since when it is set apart, in ms since 1970.
    apart: Option<u64>,
    drivers: Vec<Arc<DriverName>>,
    volumes: u64,
}

/// The fleet at this moment.
///
/// Times since which something is so are those of `before` as long as they are near: each look
/// computes them anew.
pub(super) fn look(state: &AdminState, sweep: &mut Sweep, before: &Snapshot) -> Snapshot {
    let drivers: Vec<_> = state.policies.keys().cloned().map(Arc::new).collect();
    let names: BTreeSet<_> = state.policies.keys().cloned().collect();
    sweep.step(&state.store, &names);
    let now = clock::now();
    let stored: Vec<_> = state.store.read(|known| {
        let of: Vec<_> = drivers.iter().map(|driver| (driver, known.driver(driver))).collect();
        known.nodes().keys().map(|name| stored(state, known, name, &of)).collect()
    });
    let soon = soon(state);
    let nodes = stored.into_iter().map(|node| cell(state, node, now, soon)).collect();
    let mut snapshot = Snapshot {
        at: now,
        nodes,
        drivers: driver_cells(state, drivers),
        problems: Vec::new(),
        in_flight: in_flight(state, now),
        own_ends: own_ends(state),
        node_ca: node_ca(state),
        several: None,
        troubled: sweep.found().map(troubled).collect(),
    };
    steady(&mut snapshot.nodes, before);
    snapshot.problems = rows(trouble::faults(state, &snapshot, sweep));
    snapshot
}

fn steady(nodes: &mut [NodeCell], before: &Snapshot) {
    for now in nodes {
        let Some(then) = before.node(now.name.as_str()) else { continue };
        if now.state == then.state && near(now.since, then.since) {
            now.since = then.since;
        }
    }
}

fn troubled(found: &Troubled) -> view::Troubled {
    view::Troubled {
        driver: found.driver.clone(),
        is_volume: matches!(found.id, Id::Volume(_)),
        id: found.id.text().to_owned(),
        node: found.node.clone(),
        state: found.condition.name().to_owned(),
    }
}

/// The public keys of the CA of the nodes, as hashes; a CA that is renewed keeps its key.
fn node_ca(state: &AdminState) -> BTreeSet<String> {
    let Some(credentials) = &state.credentials else { return BTreeSet::new() };
    credentials.ca().iter().filter_map(view::key_hash).collect()
}

/// Within what time a node's certificate ends soon: it should have been renewed after a half.
pub(super) fn soon(state: &AdminState) -> Duration {
    let ca = state.installation.as_ref().and_then(|installed| installed.ca.as_ref());
    ca.map_or(WEEK, |ca| WEEK.min(ca.node_life / 3))
}

fn stored(
    state: &AdminState,
    known: &State,
    name: &NodeName,
    drivers: &[(&Arc<DriverName>, Option<&DriverState>)],
) -> Stored {
    let condition = NodeCondition::of(known, name, state.links.now(name).is_some());
    let removed = known.node(name).and_then(|node| node.removed);
    let of = drivers.iter().filter_map(|(driver, of)| Some((driver, (*of)?)));
    let has = of.clone().filter(|(_, of)| of.at(name).is_some_and(|at| at.gone.is_none()));
    Stored {
        name: name.clone(),
        condition,
        ended: removed,
        apart: known.apart().at(name).map(|(_, apart)| apart.since).min(),
        drivers: has.map(|(driver, _)| (**driver).clone()).collect(),
        volumes: of.map(|(_, of)| of.load(name)).sum(),
    }
}

/// Adds what the node's link says, to a node as the store has it.
fn cell(state: &AdminState, stored: Stored, now: u64, soon: Duration) -> NodeCell {
    let Stored { name, condition, ended, apart, drivers, volumes } = stored;
    let link = state.links.now(&name);
    let ends = link.as_ref().and_then(|link| link.expires()).and_then(millis);
    let down = || {
        let down = |driver: &Arc<DriverName>| state.links.driver_health(&name, driver)?.down();
        drivers.iter().filter_map(down).max()
    };
    let ago = |time: Duration| now.saturating_sub(u64::try_from(time.as_millis()).unwrap_or(0));
    let is_soon =
        |end: &u64| *end <= now.saturating_add(u64::try_from(soon.as_millis()).unwrap_or(0));
    let away = || state.links.away(&name).map(ago);
    let (state, since) = match condition {
        NodeCondition::Removed => (NodeState::Removed, ended),
        NodeCondition::Revoked => (NodeState::Revoked, away()),
        NodeCondition::Away | NodeCondition::Unknown => (NodeState::Away, away()),
        NodeCondition::Linked => match (down(), apart, ends.filter(is_soon)) {
            (Some(down), ..) => (NodeState::Down, Some(ago(down))),
            (None, Some(since), _) => (NodeState::Apart, Some(since)),
            (None, None, Some(_)) => (NodeState::Ending, None),
            (None, None, None) => {
                let begun = link.as_ref().map(|link| ago(link.begun.elapsed()));
                (NodeState::Linked, begun)
            }
        },
    };
    NodeCell { name, state, since, drivers, volumes, ends }
}

fn driver_cells(state: &AdminState, drivers: Vec<Arc<DriverName>>) -> Vec<DriverCell> {
    let totals = state.calls.totals();
    let cell = |name: Arc<DriverName>| {
        let totals = totals.get(&*name).copied().unwrap_or_default();
        let (homes, intents) = state.store.read(|known| {
            let of = known.driver(&name);
            of.map_or((0, 0), |of| (of.homes().len(), of.open_intents()))
        });
        DriverCell { name, homes, intents, answered: totals.calls, failed: totals.failed }
    };
    drivers.into_iter().map(cell).collect()
}

fn in_flight(state: &AdminState, now: u64) -> InFlight {
    let running = state.calls.running();
    let waits = running.iter().filter(|(_, call)| call.progress().stage == Stage::Waiting);
    let long = running.iter().filter(|(_, call)| call.begun.elapsed() >= LONG);
    let oldest = running.first().map(|(_, call)| clock::at(call.begun).min(now));
    InFlight { calls: running.len(), waiting: waits.count(), long: long.count(), oldest }
}

fn own_ends(state: &AdminState) -> Vec<(String, u64)> {
    let Some(credentials) = &state.credentials else { return Vec::new() };
    let own = [
        ("csi-cloud's certificate", credentials.validity()),
        ("the CA's certificate", credentials.ca_validity()),
    ];
    let end = |validity: Validity| millis(validity.not_after);
    own.into_iter().filter_map(|(of, validity)| Some((of.to_owned(), end(validity?)?))).collect()
}

/// A time, in ms since 1970.
fn millis(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, state: NodeState, since: u64) -> NodeCell {
        let (name, since) = (name.parse().unwrap(), Some(since));
        NodeCell { name, state, since, drivers: Vec::new(), volumes: 0, ends: None }
    }

    #[test]
    fn a_time_that_is_near_stays_and_another_does_not() {
        let nodes = ["b", "c", "d"].map(|name| node(name, NodeState::Away, 1_000));
        let before = Snapshot { nodes: nodes.into(), ..Snapshot::default() };
        let mut now = [
            node("a", NodeState::Away, 1_002),
            node("b", NodeState::Away, 1_002),
            node("c", NodeState::Away, 9_000),
            node("d", NodeState::Linked, 1_002),
        ];
        steady(&mut now, &before);
        let since: Vec<_> = now.iter().filter_map(|node| node.since).collect();
        assert_eq!(since, [1_002, 1_000, 9_000, 1_002]);
    }
}
