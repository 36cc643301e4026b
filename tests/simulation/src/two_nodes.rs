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
/// The calls that change a volume. Creates have intents.
const CHANGES: [&str; 4] = [
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
    "DeleteVolume",
];

/// The pairs of calls that ran at two nodes at once. A call that outlives its caller's deadline is
/// not waited for.
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
    Some(run.ended()?.min(deadline).min(remembered))
}
