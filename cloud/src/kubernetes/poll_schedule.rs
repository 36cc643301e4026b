//! Limits how often objects that wait for nodes are looked up. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proto::names::NodeName;
use tokio::time::Instant;

/// The nodes whose pods are listed in one round.
const NODES: usize = 5;
/// The shortest time between two lookups of the same objects.
const PAUSE: Duration = Duration::from_secs(60);
/// The pause after a lookup is at least this many times its duration.
const SHARE: u32 = 20;

/// The time since each node's link was lost.
pub(super) type NodesAway = BTreeMap<NodeName, Duration>;

/// The times of the next lookups.
#[derive(Default)]
pub(super) struct PollSchedule {
    /// The pods of each node.
    pods: HashMap<NodeName, Instant>,
    /// Attachments and snapshots; none if they never were.
    others: Option<Instant>,
}

impl PollSchedule {
    /// Takes the nodes that are due, longest waiting first, and schedules their next lookup.
    pub(super) fn turns(&mut self, away: &NodesAway, now: Instant) -> Vec<NodeName> {
        self.pods.retain(|node, _| away.contains_key(node));
        let next = |node: &NodeName| self.pods.get(node).copied();
        let mut due: Vec<_> = away
            .keys()
            .filter(|node| next(node).is_none_or(|at| at <= now))
            .map(|node| (next(node), node.clone()))
            .collect();
        due.sort();
        due.truncate(NODES);
        let due: Vec<_> = due.into_iter().map(|(_, node)| node).collect();
        self.pods.extend(due.iter().map(|node| (node.clone(), now + PAUSE)));
        due
    }

    /// True if attachments and snapshots may be looked up.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.others.is_none_or(|at| at <= now)
    }

    /// Attachments and snapshots were looked at.
    pub(super) fn polled(&mut self, begun: Instant, end: Instant) {
        let pause = PAUSE.max(end.saturating_duration_since(begun) * SHARE);
        self.others = Some(end + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_nodes_at_a_time_have_their_turn_and_none_has_it_twice_a_minute() {
        let mut schedule = PollSchedule::default();
        let now = Instant::now();
        let name = |number: usize| format!("n{number}").parse::<NodeName>().unwrap();
        let mut away: NodesAway = (0..7).map(|number| (name(number), PAUSE)).collect();
        let names = |numbers: &[usize]| numbers.iter().map(|of| name(*of)).collect::<Vec<_>>();
        assert_eq!(schedule.turns(&away, now), names(&[0, 1, 2, 3, 4]));
        let second = Duration::from_secs(1);
        assert_eq!(schedule.turns(&away, now + second), names(&[5, 6]));
        assert_eq!(schedule.turns(&away, now + second * 2), names(&[]));
        // One is back, and another one is new: it comes first.
        away.remove(&name(0));
        away.insert(name(8), PAUSE);
        assert_eq!(schedule.turns(&away, now + PAUSE), names(&[8, 1, 2, 3, 4]));
        assert_eq!(schedule.pods.len(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_look_is_followed_by_a_longer_pause() {
        let mut schedule = PollSchedule::default();
        let begun = Instant::now();
        assert!(schedule.is_due(begun), "it never was looked");
        let second = Duration::from_secs(1);
        schedule.polled(begun, begun + second);
        assert!(!schedule.is_due(begun + PAUSE) && schedule.is_due(begun + second + PAUSE));
        schedule.polled(begun, begun + PAUSE);
        assert!(!schedule.is_due(begun + PAUSE * 20) && schedule.is_due(begun + PAUSE * 21));
    }
}
