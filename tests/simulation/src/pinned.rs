//! No create is pinned to a node whose driver never had it.
//!
//! If the edge refused each attempt of a name before dispatch, the name is free. The check leaves
//! out names with an attempt of unknown outcome, because those stay where they are. And no name is
//! free that a driver got, unless the driver denied that anything exists.

use std::collections::BTreeMap;
use std::time::Duration;

use cloud::state::record::Change;
use proto::csi::Id;
use tokio::time::Instant;
use tonic::Code;

use super::durable::made_by;
use super::keys::LIAR;
use super::model::World;
use super::record::{Called, Ending, is_open};
use drivers::testdriver::{Received, TestDriver};

/// The creating RPCs.
const CREATES: [&str; 2] = ["CreateVolume", "CreateSnapshot"];
/// The text of an edge whose driver is away. It refuses every call before dispatch.
const REFUSED: &str = "cannot be reached";
/// What the cloud logs when it sends a call again. Its first copy may have arrived.
const SENT_AGAIN: &str = "sending the call again";
/// What the cloud logs when its store refuses the change that would free a name.
const NOT_FREED: &str = "the name of a create is not freed";
/// The trace has tenths of milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// The names that were not free after nothing but refusals.
pub(super) fn pinned(world: &World) -> Vec<String> {
    let calls = world.record.all();
    let again = world.trace.moments(SENT_AGAIN);
    let not_freed = world.trace.moments(NOT_FREED);
    let mut wrong = Vec::new();
    for (number, called) in calls.iter().enumerate() {
        let Some(ended) = refused(called, &again) else { continue };
        let mut attempts =
            calls.iter().filter(|other| is_same(called, other) && other.sent <= ended);
        // An attempt that the store did not take back stays counted, and later ones keep that.
        let is_taken_back = |other: &Called| {
            let end = refused(other, &again).filter(|at| *at <= ended);
            end.is_some_and(|end| !not_freed.iter().any(|at| is_during(other, end, *at)))
        };
        if !attempts.all(is_taken_back) {
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
    let is_twice = again.iter().any(|at| is_during(called, *ended, *at));
    (CREATES.contains(&called.method) && is_refused && !is_twice).then_some(*ended)
}

/// True if a moment of the trace is within a call that ended.
fn is_during(called: &Called, ended: Instant, at: Instant) -> bool {
    let sent = called.sent.checked_sub(ROUNDED).unwrap_or(called.sent);
    (sent..=ended + ROUNDED).contains(&at)
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

/// The names that were freed though a driver may have what they made.
pub(super) fn freed(world: &World) -> Vec<String> {
    let runs: Vec<_> = world.fleet.drivers.iter().flat_map(TestDriver::calls).collect();
    let mut open: BTreeMap<Id, Instant> = BTreeMap::new();
    let mut wrong = Vec::new();
    world.fleet.read_noted(|noted| {
        for (at, change) in noted {
            let Change::Intent(_, name, intent) = change else { continue };
            match intent {
                Some(intent) if intent.made.is_none() && intent.node.as_str() != LIAR => {
                    open.entry(name.clone()).or_insert(*at);
                }
                Some(_) => drop(open.remove(name)),
                None => {
                    let Some(since) = open.remove(name) else { continue };
                    let of_name = runs.iter().filter(|run| {
                        (since..=*at).contains(&run.at) && made_by(run).as_ref() == Some(name)
                    });
                    let mut denials = of_name.clone().filter(|run| is_denied(run));
                    if of_name.count() > 0 && denials.next().is_none() {
                        let at = world.trace.at(*at);
                        wrong.push(format!("{name:?} was freed at {at}, and a driver got it"));
                    }
                }
            }
        }
    });
    wrong
}

/// Whether the driver's answer says that nothing exists.
fn is_denied(run: &Received) -> bool {
    let code = run.ended.and_then(|(_, code)| code);
    code.is_some_and(|code| code != Code::Ok && !is_open(code))
}
