//! Looks at everything: makes a snapshot of the parts that the admin commands read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proto::admin::view;
use proto::admin::view::{
    DriverCell, InFlight, NodeCell, NodeState, ReplicaCell, Several, Snapshot, TroubledVolume, near,
};
use proto::csi::Id;
use proto::host::clock;
use proto::host::clock::millis;
use proto::names::{DriverName, NodeName};
use tokio::time::timeout;

use super::sweep::{Sweep, TroubledHome};
use super::trouble;
use crate::admin::admin_state::AdminState;
use crate::admin::replicas::ReplicaView;
use crate::state::condition::NodeCondition;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::telemetry::calls::{LONG, Stage};

/// A certificate that ends within this time ends soon.
const WEEK: Duration = Duration::from_secs(7 * 86_400);
/// How long a look waits for etcd.
const ETCD_WAIT: Duration = Duration::from_millis(500);

/// What the store says of a node.
struct StoredNode {
    name: NodeName,
    condition: NodeCondition,
    /// Since when it is removed, in ms since 1970.
    removed: Option<u64>,
    /// Since when it is set apart, in ms since 1970.
    apart: Option<u64>,
    drivers: Vec<Arc<DriverName>>,
    volumes: u64,
}

/// The fleet at this moment.
///
/// Times since which something is so are those of `before` as long as they are near: each look
/// computes them anew.
pub(super) async fn look(state: &AdminState, sweep: &mut Sweep, before: &Snapshot) -> Snapshot {
    let now = clock::now();
    let several = replicas(state, before.several.as_ref(), now).await;
    let drivers: Vec<_> = state.policies.keys().cloned().map(Arc::new).collect();
    sweep.step(&state.store, &state.policies.keys().cloned().collect());
    let stored: Vec<_> = state.store.read(|known| {
        let of: Vec<_> = drivers.iter().map(|driver| (driver, known.driver(driver))).collect();
        known.nodes().keys().map(|name| stored(state, known, name, &of)).collect()
    });
    let soon = soon(state);
    let mut snapshot = Snapshot {
        at: now,
        nodes: stored.into_iter().map(|node| cell(state, node, now, soon)).collect(),
        drivers: driver_cells(state, drivers),
        problems: Vec::new(),
        in_flight: in_flight(state, now),
        own_ends: own_ends(state),
        node_ca: node_ca(state),
        several,
        troubled: sweep.found().map(troubled).collect(),
    };
    steady(&mut snapshot.nodes, before);
    snapshot.problems = trouble::rows(trouble::faults(state, &snapshot, sweep));
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

fn troubled(found: &TroubledHome) -> TroubledVolume {
    TroubledVolume {
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
fn soon(state: &AdminState) -> Duration {
    let ca = state.installation.as_ref().and_then(|installed| installed.ca.as_ref());
    ca.map_or(WEEK, |ca| WEEK.min(ca.node_life / 3))
}

fn stored(
    state: &AdminState,
    known: &State,
    name: &NodeName,
    drivers: &[(&Arc<DriverName>, Option<&DriverState>)],
) -> StoredNode {
    let of = drivers.iter().filter_map(|(driver, of)| Some((driver, (*of)?)));
    let has = of.clone().filter(|(_, of)| of.at(name).is_some_and(|at| at.gone.is_none()));
    StoredNode {
        name: name.clone(),
        condition: NodeCondition::of(known, name, state.links.now(name).is_some()),
        removed: known.node(name).and_then(|node| node.removed),
        apart: known.apart().at(name).map(|(_, apart)| apart.since).min(),
        drivers: has.map(|(driver, _)| (**driver).clone()).collect(),
        volumes: of.map(|(_, of)| of.load(name)).sum(),
    }
}

/// Adds what the node's link says, to a node as the store has it.
fn cell(state: &AdminState, stored: StoredNode, now: u64, soon: Duration) -> NodeCell {
    let StoredNode { name, condition, removed, apart, drivers, volumes } = stored;
    let link = state.links.now(&name);
    let ago = |time: Duration| now.saturating_sub(millis(time));
    let end = link.as_ref().and_then(|link| link.expires()?.duration_since(UNIX_EPOCH).ok());
    let ends = end.map(millis);
    let away = || state.links.away(&name).map(ago);
    let down = || {
        let health = |driver| state.links.driver_health(&name, driver);
        drivers.iter().filter_map(|driver| health(driver)?.down()).max()
    };
    let (state, since) = match condition {
        NodeCondition::Removed => (NodeState::Removed, removed),
        NodeCondition::Revoked => (NodeState::Revoked, away()),
        NodeCondition::Away | NodeCondition::Unknown => (NodeState::Away, away()),
        NodeCondition::Linked => match (down(), apart) {
            (Some(down), _) => (NodeState::Down, Some(ago(down))),
            (None, Some(since)) => (NodeState::Apart, Some(since)),
            (None, None) if ends.is_some_and(|end| end <= now.saturating_add(millis(soon))) => {
                (NodeState::Ending, None)
            }
            (None, None) => (NodeState::Linked, link.map(|link| ago(link.begun.elapsed()))),
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
    let ends = own.into_iter().filter_map(|(of, validity)| {
        let end = validity?.not_after.duration_since(UNIX_EPOCH).ok()?;
        Some((of.to_owned(), millis(end)))
    });
    ends.collect()
}

/// The csi-clouds that share the store, as `csi-cloud replicas` lists them; `None` if this one has
/// it alone. If etcd gives no answer soon, they are what it said last.
async fn replicas(state: &AdminState, before: Option<&Several>, now: u64) -> Option<Several> {
    state.store.cluster()?;
    let before = before.cloned().unwrap_or_default();
    let Ok(Ok(views)) = timeout(ETCD_WAIT, state.replicas()).await else {
        return Some(Several { is_old: true, ..before });
    };
    let began = now.saturating_sub(millis(state.links.leading().age()));
    let cells = views.into_iter().map(|view| replica(view, &before, began, now));
    Some(Several { replicas: cells.collect(), is_old: false })
}

/// `began` is the moment at which this csi-cloud began to lead, if it does.
fn replica(view: ReplicaView, before: &Several, began: u64, now: u64) -> ReplicaCell {
    let ReplicaView { name, leads, epoch, lag, version, drained, this, .. } = view;
    let cell = ReplicaCell { name, leads, epoch, lag, version, drained, this, since: None };
    let then = before.replicas.iter().find(|then| then.name == cell.name);
    let since = match then {
        Some(then) if part(then) == part(&cell) && then.since.is_some() => then.since,
        _ if cell.this && cell.leads => Some(began),
        Some(then) if part(then) == part(&cell) => None,
        // It was so before this csi-cloud looked for the first time.
        None if before.replicas.is_empty() => None,
        _ => Some(now),
    };
    ReplicaCell { since, ..cell }
}

/// What a replica is, apart from how far it is.
fn part(cell: &ReplicaCell) -> (bool, Option<u64>, bool, Option<&str>) {
    (cell.leads, cell.epoch, cell.drained, cell.version.as_deref())
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

    fn replica_view(name: &str) -> ReplicaView {
        ReplicaView {
            name: name.into(),
            leads: false,
            epoch: None,
            lag: 0,
            version: Some("1".into()),
            drained: false,
            endpoints: Vec::new(),
            this: false,
        }
    }

    fn seen(views: Vec<ReplicaView>, before: &Several, now: u64) -> Several {
        let cells = views.into_iter().map(|view| replica(view, before, 500, now));
        Several { replicas: cells.collect(), is_old: false }
    }

    fn since(several: &Several) -> Vec<Option<u64>> {
        several.replicas.iter().map(|cell| cell.since).collect()
    }

    #[test]
    fn a_replica_is_what_it_is_since_that_was_seen_first() {
        let a = ReplicaView { leads: true, this: true, ..replica_view("a") };
        let first = seen(vec![a, replica_view("b")], &Several::default(), 1_000);
        assert_eq!(since(&first), [Some(500), None], "nothing is known of before");
        let behind = ReplicaView { lag: 9, ..replica_view("b") };
        let same = seen(vec![replica_view("a"), behind, replica_view("c")], &first, 2_000);
        assert_eq!(since(&same), [Some(2_000), None, Some(2_000)], "c is new, a leads no more");
        let drained = ReplicaView { drained: true, ..replica_view("c") };
        let last = seen(vec![replica_view("a"), drained], &same, 3_000);
        assert_eq!(since(&last), [Some(2_000), Some(3_000)]);
    }
}
