//! What must always hold, and what must be reachable, or the model is empty.

use stateright::Property;

use crate::edge::{Call, Op, Use};
use crate::etcd::{EdgeId, NUMBER, Record};
use crate::replica::{Replica, Witness};
use crate::state::{Stage, State};
use crate::system::System;

/// No two leaders' commits interleave, and none is of a leader that lost its key.
pub const COMMITS: &str = "each commit is of the leader in office";
/// No name is at two nodes, or on its way to a second one.
pub const ONE_NODE: &str = "no name is dispatched to two nodes while its outcome is unknown";
/// No volume is lost to the store.
pub const NO_LEAK: &str = "what exists, or may be made yet, has its node in the store";
/// A create that was answered is true.
pub const MADE: &str = "an acknowledged volume exists, and has its home in the store";
/// A delete that was answered is true.
pub const GONE: &str = "an acknowledged delete left nothing";
/// The fence.
pub const STALE: &str = "no call is carried out after one of a later leader";
/// The lease.
pub const LEASE: &str = "no lease is held by two nodes, or without the store";

/// All properties of the model.
pub fn all() -> Vec<Property<System>> {
    vec![
        Property::always(COMMITS, |_, state: &State| !state.etcd.interleaved),
        Property::always(ONE_NODE, |system, state: &State| {
            names(state).all(|name| nodes_of(system, state, name).count() <= 1)
        }),
        Property::always(NO_LEAK, |system, state: &State| {
            names(state)
                .all(|name| nodes_of(system, state, name).all(|edge| is_known(state, name, edge)))
        }),
        Property::always(MADE, |_, state: &State| {
            names(state).all(|name| state.callers[name] != Stage::Made || is_made(state, name))
        }),
        Property::always(GONE, |_, state: &State| {
            names(state).all(|name| state.callers[name] != Stage::Gone || is_gone(state, name))
        }),
        Property::always(STALE, |_, state: &State| !state.edges.iter().any(|edge| edge.ran_stale)),
        Property::always(LEASE, |_, state: &State| {
            (0..)
                .zip(&state.edges)
                .all(|(edge, it)| it.lease != Use::Held || state.etcd.records.lease == Some(edge))
        }),
        Property::sometimes("a second leader commits", |_, state: &State| state.etcd.last > 1),
        Property::sometimes("a leader does not know that its lease ended", |_, state: &State| {
            state.leaders().any(|leading| state.etcd.leader != Some(leading.epoch))
        }),
        Property::sometimes("a commit of a deposed leader is refused", |_, state: &State| {
            state.replicas.contains(&Replica::Deposed(Witness::Store))
        }),
        Property::sometimes(
            "a commit is done, and its leader has to read it back",
            |_, state: &State| {
                let is_lost = |leading: &&crate::replica::Leading| {
                    leading.writing.is_some() && leading.number + 1 == NUMBER
                };
                let in_office =
                    |leading: &crate::replica::Leading| state.etcd.leader == Some(leading.epoch);
                state.leaders().filter(is_lost).any(in_office)
            },
        ),
    ]
}

/// Those of a model that has names.
pub fn of_names() -> Vec<Property<System>> {
    vec![
        Property::sometimes("a stale call is refused by its edge", |_, state: &State| {
            state.replicas.contains(&Replica::Deposed(Witness::Edge))
        }),
        Property::sometimes("a volume is made", |_, state: &State| {
            state.callers.contains(&Stage::Made)
        }),
        Property::sometimes("a volume is made again", |_, state: &State| {
            names(state).any(|name| state.callers[name] == Stage::Deleting && is_gone(state, name))
        }),
    ]
}

/// Those of a model that has leases.
pub fn of_leases() -> Vec<Property<System>> {
    vec![Property::sometimes("a node has a lease of a second leader", |_, state: &State| {
        state.etcd.last > 1 && state.edges.iter().any(|edge| edge.lease == Use::Held)
    })]
}

fn names(state: &State) -> std::ops::Range<usize> {
    0..state.callers.len()
}

/// The nodes that have the name's volume, or will make it when a call arrives.
fn nodes_of<'a>(
    system: &'a System,
    state: &'a State,
    name: usize,
) -> impl Iterator<Item = EdgeId> + 'a {
    let passes = move |call: &Call| !system.bounds.fault.fences() || state.passes(call);
    (0..).zip(&state.edges).filter_map(move |(edge, it)| {
        let creates =
            |call: &Call| call.edge == edge && call.op == Op::Create(name) && passes(call);
        (it.volumes[name] || state.calls.iter().any(creates)).then_some(edge)
    })
}

fn is_known(state: &State, name: usize, edge: EdgeId) -> bool {
    match state.etcd.records.names[name] {
        Record::None => false,
        Record::Intent(known) | Record::Home(known) => known == edge,
    }
}

fn is_made(state: &State, name: usize) -> bool {
    match state.etcd.records.names[name] {
        Record::Home(edge) => state.edges[usize::from(edge)].volumes[name],
        Record::None | Record::Intent(_) => false,
    }
}

fn is_gone(state: &State, name: usize) -> bool {
    let is_unknown = state.etcd.records.names[name] == Record::None;
    is_unknown && !state.edges.iter().any(|edge| edge.volumes[name])
}
