//! The rules of several clouds: commits follow each other, and no node carries out a call of one
//! after a call of its successor.

use std::collections::BTreeMap;

use super::keys::name;
use super::model::World;
use super::replicas::RUN;

/// Commits that do not follow the one before, and calls that drivers got after one of a later
/// cloud.
pub(super) fn stale(world: &World) -> Vec<String> {
    let Some(replicas) = &world.fleet.replicas else { return Vec::new() };
    let epochs = replicas.epochs();
    let mut wrong = replicas.wrong();
    for (node, driver) in world.fleet.drivers.iter().enumerate() {
        let mut latest = BTreeMap::new();
        for call in driver.calls() {
            let run = call.headers.get(RUN).and_then(|value| value.to_str().ok()?.parse().ok());
            let epoch = run.and_then(|run: u64| epochs.get(&run).copied());
            let Some(epoch) = epoch else { continue };
            let at = call.at;
            // Those of one moment have no order.
            let later = latest.range(epoch + 1..).find(|(_, first)| **first < at);
            if let Some((later, _)) = later {
                wrong.push(format!(
                    "{} of epoch {epoch} came to the driver of {} at {}, after a call of {later}",
                    call.method(),
                    name(node),
                    world.trace.at(at)
                ));
            }
            latest.entry(epoch).or_insert(at);
        }
    }
    wrong
}
