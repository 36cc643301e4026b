//! No create is pinned to a node whose driver never had it.
//!
//! If the edge refused each attempt of a name before dispatch, the name is free. The check leaves
//! out names with an attempt of unknown outcome, because those stay where they are.

use std::time::Duration;

use cloud::state::record::Change;
use proto::csi::Id;
use tokio::time::Instant;
use tonic::Code;

use super::model::World;
use super::record::{Called, Ending};

/// The creating RPCs.
const CREATES: [&str; 2] = ["CreateVolume", "CreateSnapshot"];
/// The text of an edge whose driver is away. It refuses every call before dispatch.
const REFUSED: &str = "cannot be reached";
/// What the cloud logs when it sends a call again. Its first copy may have arrived.
const SENT_AGAIN: &str = "sending the call again";
/// The trace has tenths of milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// The names that were not free after nothing but refusals.
pub(super) fn pinned(world: &World) -> Vec<String> {
    let calls = world.record.all();
    let again = world.trace.moments(SENT_AGAIN);
    let mut wrong = Vec::new();
    for (number, called) in calls.iter().enumerate() {
        let Some(ended) = refused(called, &again) else { continue };
        let mut attempts =
            calls.iter().filter(|other| is_same(called, other) && other.sent <= ended);
        let is_free = |other: &Called| refused(other, &again).is_some_and(|at| at <= ended);
        if !attempts.all(is_free) {
            continue;
        }
        if let Some(node) = kept(world, called, ended) {
            let at = world.trace.at(ended);
            let Called { method, key, .. } = called;
            wrong.push(format!(
                "#{number} {method} {key} was pinned to {node} at {at}, whose driver never had it"
            ));
        }
    }
    wrong
}

/// How many creates an edge refused before dispatch.
pub(super) fn refusals(world: &World) -> u64 {
    let again = world.trace.moments(SENT_AGAIN);
    world.record.all().iter().filter(|called| refused(called, &again).is_some()).count() as u64
}

fn is_same(one: &Called, other: &Called) -> bool {
    (one.method, &one.key) == (other.method, &other.key)
}

/// When an edge refused a create that was sent once; none if anything else came of it.
fn refused(called: &Called, again: &[Instant]) -> Option<Instant> {
    let (ended, ending) = called.ended.as_ref()?;
    let is_refused = matches!(
        ending,
        Ending::Answer(Code::Unavailable, text) if text.contains(REFUSED)
    );
    let sent = called.sent.checked_sub(ROUNDED).unwrap_or(called.sent);
    let is_twice = again.iter().any(|at| (sent..=*ended + ROUNDED).contains(at));
    (CREATES.contains(&called.method) && is_refused && !is_twice).then_some(*ended)
}

/// The node of the intent that was durable at this moment.
fn kept(world: &World, called: &Called, at: Instant) -> Option<String> {
    world.fleet.read_noted(|noted| {
        let of_name = noted.iter().filter_map(|(when, change)| match change {
            Change::Intent(_, Id::Name(method, name), intent)
                if *when <= at && method.name() == called.method && *name == called.key =>
            {
                Some(intent)
            }
            _ => None,
        });
        of_name.last().and_then(|intent| intent.as_ref().map(|intent| intent.node.to_string()))
    })
}
