//! Schedules the background lists of linked nodes. Pure.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proto::names::NodeName;
use tokio::time::Instant;

/// The interval between two lists of a node, which reveal lost volumes.
const AGAIN: Duration = Duration::from_secs(600);

/// The next turn of each node.
#[derive(Default)]
pub(super) struct Turns(HashMap<NodeName, Instant>);

impl Turns {
    /// Takes the nodes that are due, of those with a driver that is up. The first turns of nodes
    /// that come together are spread.
    pub(super) fn take(&mut self, up: Vec<NodeName>, now: Instant) -> Vec<NodeName> {
        let known: HashSet<_> = up.iter().collect();
        self.0.retain(|node, _| known.contains(node));
        let count = up.len().max(1) as f64;
        let mut taken = Vec::new();
        for (place, node) in (1_u32..).zip(up) {
            let share = f64::from(place) / count;
            let at = self.0.entry(node.clone()).or_insert_with(|| now + AGAIN.mul_f64(share));
            if *at <= now {
                *at = now + AGAIN;
                taken.push(node);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_node_has_its_own_turn_every_ten_minutes() {
        let mut turns = Turns::default();
        let begun = Instant::now();
        let up: Vec<NodeName> = ["n1", "n2"].map(|name| name.parse().unwrap()).into();
        let [n1, n2] = [up[..1].to_vec(), up[1..].to_vec()];
        let mut at =
            |share: f64, up: &[NodeName]| turns.take(up.into(), begun + AGAIN.mul_f64(share));
        assert_eq!(at(0.0, &up), []);
        assert_eq!(at(0.5, &up), n1);
        assert_eq!(at(0.9, &up), []);
        assert_eq!(at(1.0, &up), n2);
        assert_eq!(at(1.5, &up), n1);
        // One that was away, or whose driver was down, begins again.
        assert_eq!(at(1.6, &n1), []);
        assert_eq!(at(2.0, &up), []);
        assert_eq!(at(3.0, &up), up);
    }
}
