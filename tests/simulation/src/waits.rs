//! How long honest callers wait with a liar among the nodes: no longer than with that node away.
//!
//! Lists wait a second for nodes, whatever happens. When everything works but the liar, calls that
//! concern honest nodes only are answered at once. No code says to try again.

use std::time::Duration;

use cloud::state::record::Change;
use prost::Message;
use proto::csi::{CreateSnapshotRequest, CreateVolumeRequest, Id, Method, Topology};
use tokio::time::Instant;
use tonic::Code;

use super::homes::Homes;
use super::keys::LIAR;
use super::model::World;
use super::record::{Called, Ending, is_open};
use drivers::testdriver::TOPOLOGY_KEY;

/// How long a call to a node's driver takes at most, to the farthest node and back, with the
/// opening of a byte stream.
const CALL: Duration = Duration::from_secs(1);
/// How long a call takes that no node is asked for.
const LOCAL: Duration = Duration::from_millis(10);
/// How long lists and the sum of capacities take: they wait a second for nodes.
const MANY: Duration = Duration::from_millis(1_100);

/// The honest callers that waited too long between two moments at which everything worked.
pub(super) fn while_calm(world: &World, from: Instant, to: Instant) -> Vec<String> {
    let homes = world.fleet.read_noted(Homes::of);
    let mut wrong = Vec::new();
    for (number, called) in world.record.all().iter().enumerate() {
        if called.sent < from || called.sent + MANY > to {
            continue;
        }
        let Some(most) = longest(world, &homes, called) else { continue };
        let waited = called.ended.as_ref().map_or(to, |(at, _)| *at) - called.sent;
        let what = || format!("#{number} {} {}", called.method, called.key);
        if waited > most {
            wrong.push(format!("{} waited for {waited:?}, with a liar about", what()));
        }
        if let Some((_, Ending::Answer(code, text))) = &called.ended
            && is_open(*code)
            && !is_for_other_reasons(*code, text)
        {
            wrong.push(format!("{} was answered {code:?} ({text}), with a liar about", what()));
        }
    }
    wrong
}

/// Whether this open code is one that the liar is not needed for, or that it may cause.
fn is_for_other_reasons(code: Code, text: &str) -> bool {
    // Another call about the same volume is under way.
    code == Code::Aborted
        // A shared driver's call from before the quiet time had a long deadline.
        || text.contains("may still be carried out there")
        || text.contains("may begin there")
        // Of a node that was never listed, all may be unknown, also while it is away; and it may
        // dispute what has no home (docs/security/README.md, "What nothing stops").
        || text.contains("cannot be listed whole") && text.contains(LIAR)
}

/// The lists that took longer than they wait for nodes, whatever went wrong.
pub(super) fn of_lists(world: &World) -> Vec<String> {
    let Some(several) = several_since(world) else { return Vec::new() };
    let calls = world.record.all();
    let lists = calls.iter().enumerate().filter(|(_, called)| called.method == "ListVolumes");
    let late = lists.filter_map(|(number, called)| {
        let (at, ending) = called.ended.as_ref()?;
        let waited = *at - called.sent;
        let is_late = matches!(ending, Ending::Answer(..)) && waited > MANY;
        (called.sent >= several && is_late)
            .then(|| format!("#{number} ListVolumes took {waited:?}"))
    });
    late.collect()
}

/// Since when the cloud knows several nodes. One alone answers lists by itself.
fn several_since(world: &World) -> Option<Instant> {
    if !world.fleet.shape().is_liar_a_place() {
        return None;
    }
    world.fleet.read_noted(|noted| {
        let mut first = None;
        noted.iter().find_map(|(at, change)| {
            let Change::NodeDriver(_, node, Some(_)) = change else { return None };
            let first = first.get_or_insert_with(|| node.clone());
            (first != node).then_some(*at)
        })
    })
}

/// The longest that a call may take; none if it does not concern honest nodes only.
fn longest(world: &World, homes: &Homes, called: &Called) -> Option<Duration> {
    let at_honest = |id: Id| {
        let home = homes.at(&id, called.sent)?;
        (home != LIAR).then_some(CALL)
    };
    match called.method {
        "ListVolumes" | "GetCapacity" => Some(MANY),
        "CreateVolume" => is_for_honest(world, called).then_some(CALL),
        "CreateSnapshot" => {
            let request = CreateSnapshotRequest::decode(called.message.clone()).ok()?;
            at_honest(Id::Volume(request.source_volume_id))
        }
        "DeleteSnapshot" => at_honest(Id::Snapshot(called.key.clone())),
        method if Method::of_name(method).and_then(Method::local).is_some() => Some(LOCAL),
        _ => at_honest(Id::Volume(called.key.clone())),
    }
}

/// Whether a volume may be made at one honest node only, and was never sent to the liar.
fn is_for_honest(world: &World, called: &Called) -> bool {
    let request = CreateVolumeRequest::decode(called.message.clone()).unwrap_or_default();
    let wanted = request.accessibility_requirements.unwrap_or_default().requisite;
    let is_honest = |of: &Topology| of.segments.get(TOPOLOGY_KEY).is_some_and(|node| node != LIAR);
    let was_sent = world.fleet.read_noted(|noted| {
        noted.iter().any(|(_, change)| match change {
            Change::Intent(_, Id::Name(_, name), Some(intent)) => {
                *name == called.key && intent.node.as_str() == LIAR
            }
            _ => false,
        })
    });
    wanted.len() == 1 && wanted.iter().all(is_honest) && !was_sent
}
