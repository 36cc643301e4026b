//! Of a shared driver's volume, two nodes do nothing at the same time. An election moves its calls,
//! and one that still runs at the node elected before keeps the others away.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::keys::name;
use super::record::Called;
use super::runs::Run;

/// How long csi-cloud remembers calls that were sent before it began, or before an election.
const REMEMBERED: Duration = Duration::from_secs(120);
/// The least time after its begin for which a call keeps others about the same from other nodes,
/// though its caller no longer waits: it may begin for the first half of 30 s.
const BEGIN: Duration = Duration::from_secs(15);
/// The calls that change a volume. Creates have intents.
const CHANGES: [&str; 4] = [
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
    "DeleteVolume",
];

/// The pairs of calls that ran at two nodes at once. A call that outlives its caller's deadline is
/// not waited for, nor one that began a while ago and whose caller waits no longer.
pub(super) fn at_once(runs: &[Run], calls: &[Called]) -> Vec<String> {
    let mut by_volume = BTreeMap::<&str, Vec<(&Run, &Called)>>::new();
    for run in runs {
        let called = run.number.and_then(|number| calls.get(number));
        if let Some(called) = called.filter(|called| CHANGES.contains(&called.method)) {
            by_volume.entry(&called.key).or_default().push((run, called));
        }
    }
    let mut found = Vec::new();
    for (volume, mut runs) in by_volume {
        runs.sort_by_key(|(run, _)| run.received.at);
        for (at, (first, called)) in runs.iter().enumerate() {
            let Some(end) = waited_for(first, called) else { continue };
            let later = runs.iter().skip(at + 1).take_while(|(run, _)| run.received.at < end);
            found.extend(later.filter(|(run, _)| run.node != first.node).map(|(run, second)| {
                format!(
                    "volume {volume}: {} ran at {} when {} began at {}",
                    called.method,
                    name(first.node),
                    second.method,
                    name(run.node)
                )
            }));
        }
    }
    found
}

/// Until when a call that ran keeps others from other nodes.
fn waited_for(run: &Run, called: &Called) -> Option<Instant> {
    let remembered = run.received.at + REMEMBERED;
    let deadline = called.deadline.unwrap_or(remembered);
    // csi-cloud waits with the caller; afterwards it counts from when it sent the call.
    let answered = called.ended.as_ref().map_or(called.sent, |(at, _)| *at);
    let held = answered.max(run.received.at + BEGIN);
    Some(run.ended()?.min(deadline).min(remembered).min(held))
}
