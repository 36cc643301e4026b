//! Drivers: their front, and the nodes that have them.

use std::collections::BTreeSet;

use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::explainer::Explainer;
use super::node::{Need, judge};

/// Nodes in trouble that are shown.
const SHOWN: usize = 10;

impl Explainer<'_> {
    /// A driver by itself, with the nodes that are in trouble.
    pub(super) fn driver(&self, driver: &DriverName) -> Explanation {
        let mut chain = Chain::default();
        if self.has_front(&mut chain, driver) {
            self.follow_driver(&mut chain, driver);
        }
        chain.end(|| Verdict::fine(format!("driver {driver} is up at all nodes that have it")))
    }

    fn follow_driver(&self, chain: &mut Chain, driver: &DriverName) {
        let (nodes, elected) = self.store.read(|state| {
            let members = state.members(driver).map(|(node, _)| node.clone());
            let elected = state.driver(driver).and_then(|of| of.elected().cloned());
            (members.collect::<Vec<NodeName>>(), elected)
        });
        let in_trouble = self.in_trouble(driver, &nodes);
        let good = nodes.len() - in_trouble.len();
        let found = format!("{good} of {} nodes can make volumes now", nodes.len());
        chain.step(format!("driver {driver}"), "served", found);
        if nodes.is_empty() {
            chain.judge(Some(nowhere(driver)));
        }
        if let Some(elected) = &elected {
            self.follow_node(chain, elected, Some(driver), Need::NewVolumes);
        }
        for verdict in in_trouble.iter().take(SHOWN) {
            let node = verdict.node.as_ref().map(ToString::to_string).unwrap_or_default();
            chain.step(format!("node {node}"), "cannot", &verdict.text);
        }
        chain.judge(several(driver, &in_trouble));
    }

    /// Which of these nodes can make no volume of a driver now, and why.
    fn in_trouble(&self, driver: &DriverName, nodes: &[NodeName]) -> Vec<Verdict> {
        let trouble = nodes.iter().filter_map(|node| {
            judge(&self.node_facts(node, Some(driver)), node, Some(driver), Need::NewVolumes)
        });
        trouble.collect()
    }

    /// The nodes that have some of these drivers and can make no volume of it now.
    pub(super) fn without_room(&self, drivers: &BTreeSet<DriverName>) -> BTreeSet<NodeName> {
        let nodes = drivers.iter().flat_map(|driver| {
            let members: Vec<_> = self
                .store
                .read(|state| state.members(driver).map(|(node, _)| node.clone()).collect());
            self.in_trouble(driver, &members)
        });
        nodes.filter_map(|verdict| verdict.node).collect()
    }
}

fn nowhere(driver: &DriverName) -> Verdict {
    Verdict::of(
        Cause::DriverMissing,
        format!("no node with driver {driver} has ever linked"),
        "look whether csi-edge runs at the nodes, and whether its configuration names the driver",
    )
}

/// The first of the nodes in trouble, and how many more there are.
fn several(driver: &DriverName, in_trouble: &[Verdict]) -> Option<Verdict> {
    let first = in_trouble.first()?.clone();
    match in_trouble.len() - 1 {
        0 => Some(first),
        more => {
            let text = format!("{}, and driver {driver} cannot at {more} more nodes", first.text);
            Some(Verdict { text, next: "`csi-cloud nodes` shows all".into(), ..first })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::commands::check_commands;
    use super::*;

    #[test]
    fn the_first_node_in_trouble_is_named_and_the_others_are_counted() {
        let driver: DriverName = "d.example".parse().unwrap();
        let away = Verdict::of(Cause::NodeAway, "node n1 has no link", "look there");
        assert_eq!(several(&driver, &[]), None);
        assert_eq!(several(&driver, std::slice::from_ref(&away)), Some(away.clone()));
        let several = several(&driver, &[away.clone(), away.clone(), away]).unwrap();
        assert_eq!(check_commands(&several), 1);
        assert_eq!(
            several.sentence(),
            "node n1 has no link, and driver d.example cannot at 2 more nodes; `csi-cloud nodes` \
             shows all"
        );
    }
}
