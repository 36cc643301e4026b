//! Drivers: their front, and the nodes that have them.

use std::collections::BTreeSet;

use proto::csi::topology::NODE_SEGMENT;
use proto::host::plain::plain;
use proto::names::{DriverName, NodeName};

use super::answer::{Cause, Chain, Explanation, Verdict};
use super::explainer::Explainer;
use super::node::{Need, judge};
use super::reported::{
    class, class_contradicted, class_open_to_all, contradicted, misplaced, reported,
    unregistered_at,
};
use crate::kubernetes::object_facts::{ClassFacts, CsiDriverFacts};
use crate::kubernetes::objects::Objects;
use crate::state::driver_state::DriverState;
use crate::state::known::State;

/// Nodes in trouble that are shown.
const SHOWN: usize = 10;

impl Explainer<'_> {
    /// A driver: what it reports, which nodes are in trouble, and whether Kubernetes' objects agree
    /// with it.
    pub(super) async fn driver(&self, driver: &DriverName) -> Explanation {
        let mut chain = Chain::default();
        if self.has_front(&mut chain, driver) {
            self.follow_driver(&mut chain, driver);
            for contradiction in self.contradictions(&mut chain, driver).await {
                chain.judge_weakly(contradiction);
            }
        }
        chain.end(|| Verdict::fine(format!("driver {driver} is up at all nodes that have it")))
    }

    fn follow_driver(&self, chain: &mut Chain, driver: &DriverName) {
        let (nodes, elected) = self.store.read(|state| {
            let members = state.members(driver).map(|(node, _)| node.clone());
            let elected = state.driver(driver).and_then(|of| of.elected().cloned());
            (members.collect::<Vec<NodeName>>(), elected)
        });
        let is_node_only =
            self.store.read(|state| state.driver(driver).is_some_and(DriverState::is_node_only));
        let need = if is_node_only { Need::Use } else { Need::NewVolumes };
        let in_trouble = self.in_trouble(driver, &nodes, need);
        let good = nodes.len() - in_trouble.len();
        let found = match is_node_only {
            true => format!("mounts volumes at {good} of {} nodes, and makes none", nodes.len()),
            false => format!("{good} of {} nodes can make volumes now", nodes.len()),
        };
        chain.step(format!("driver {driver}"), "served", found);
        let policy = self.links.authority().policy(driver);
        let steps = self.store.read(|state| Some(reported(state.driver(driver)?, policy)));
        for (object, state, found) in steps.unwrap_or_default() {
            chain.step(object, state, found);
        }
        for key in self.undeclared_keys(driver) {
            chain.step(format!("topology key {key}"), "not declared", undeclared(driver, &key));
        }
        if nodes.is_empty() {
            chain.judge(Some(nowhere(driver)));
        }
        if let Some(elected) = &elected {
            self.follow_node(chain, elected, Some(driver), need);
        }
        for verdict in in_trouble.iter().take(SHOWN) {
            let node = verdict.node.as_ref().map(ToString::to_string).unwrap_or_default();
            chain.step(format!("node {node}"), "cannot", &verdict.text);
        }
        chain.judge(several(driver, &in_trouble));
    }

    /// What says otherwise than the driver, for an operator who did not ask for its chain.
    pub(crate) async fn contradicted(&self, driver: &DriverName) -> Vec<Verdict> {
        self.contradictions(&mut Chain::default(), driver).await
    }

    /// What says otherwise than the driver: its volumes as they are stored, its CSIDriver, its
    /// StorageClasses, and the CSINodes of its linked nodes.
    async fn contradictions(&self, chain: &mut Chain, driver: &DriverName) -> Vec<Verdict> {
        let policy = self.links.authority().policy(driver);
        let misplaced = self.store.read(|state| {
            let of = state.driver(driver)?;
            misplaced(driver, of, policy, of.homes())
        });
        let mut found = Vec::from_iter(misplaced);
        let Some(objects) = self.objects else { return found };
        match objects.csidriver(driver).await {
            Ok(Some(facts)) => {
                let CsiDriverFacts { attach_required, storage_capacity } = facts;
                let shown =
                    format!("attachRequired {attach_required}, storageCapacity {storage_capacity}");
                chain.step(format!("CSIDriver {driver}"), "there", shown);
                let contradicted =
                    |state: &State| contradicted(driver, state.driver(driver)?, &facts);
                found.extend(self.store.read(contradicted));
            }
            Ok(None) => {
                let shown = "Kubernetes then waits for an attachment of each volume";
                chain.step(format!("CSIDriver {driver}"), "missing", shown);
            }
            Err(why) => chain.not_visible(format!("CSIDriver {driver}"), &why),
        }
        match objects.classes_of(driver).await {
            Ok(classes) => found.extend(self.of_classes(chain, driver, &classes)),
            Err(why) => chain.not_visible("the StorageClasses", &why),
        }
        found.extend(self.unregistered(chain, objects, driver).await);
        found
    }

    /// The first linked nodes whose CSINode lacks the driver.
    async fn unregistered(
        &self,
        chain: &mut Chain,
        objects: &Objects,
        driver: &DriverName,
    ) -> Option<Verdict> {
        let members = self
            .store
            .read(|state| state.members(driver).map(|(node, _)| node.clone()).collect::<Vec<_>>());
        let linked = members.into_iter().filter(|node| self.links.now(node).is_some());
        let mut without = Vec::new();
        for node in linked.take(SHOWN) {
            match objects.registered(&node, driver).await {
                Ok(Some(true)) => {}
                Ok(_) => without.push(node),
                Err(why) => {
                    chain.not_visible(format!("CSINode {node}"), &why);
                    return None;
                }
            }
        }
        unregistered_at(driver, &without)
    }

    /// What each class of the driver promises, and which of them promise too much.
    fn of_classes(
        &self,
        chain: &mut Chain,
        driver: &DriverName,
        classes: &[(String, ClassFacts)],
    ) -> Vec<Verdict> {
        if classes.is_empty() {
            let found = "no class names the driver, so no claim gets a volume of it";
            chain.step("StorageClass", "missing", found);
        }
        let policy = self.links.authority().policy(driver);
        let mut contradictions = Vec::new();
        for (name, facts) in classes {
            let (object, state, found) = class(name, facts);
            chain.step(object, state, found);
            self.store.read(|state| {
                let Some(of) = state.driver(driver) else { return };
                contradictions.extend(class_contradicted(driver, of, name, facts));
                contradictions.extend(class_open_to_all(driver, of, policy, name, facts));
            });
        }
        contradictions
    }

    /// The topology keys that may identify nodes, and that the operator does not declare.
    fn undeclared_keys(&self, driver: &DriverName) -> Vec<String> {
        let policy = self.links.authority().policy(driver);
        let is_declared = |key: &str| {
            key == NODE_SEGMENT || policy.is_some_and(|policy| policy.topology.contains_key(key))
        };
        self.store.read(|state| {
            let keys = state.driver(driver).map(DriverState::keys_with_own_values);
            let keys = keys.unwrap_or_default().into_iter().filter(|key| !is_declared(key));
            keys.map(plain).collect()
        })
    }

    /// Which of these nodes cannot do with a driver what it is needed for now, and why.
    fn in_trouble(&self, driver: &DriverName, nodes: &[NodeName], need: Need) -> Vec<Verdict> {
        let trouble = nodes.iter().filter_map(|node| {
            judge(&self.node_facts(node, Some(driver)), node, Some(driver), need)
        });
        trouble.collect()
    }

    /// The nodes that have some of these drivers and can make no volume of it now.
    pub(super) fn without_room(&self, drivers: &BTreeSet<DriverName>) -> BTreeSet<NodeName> {
        let nodes = drivers.iter().flat_map(|driver| {
            let members: Vec<_> = self
                .store
                .read(|state| state.members(driver).map(|(node, _)| node.clone()).collect());
            self.in_trouble(driver, &members, Need::NewVolumes)
        });
        nodes.filter_map(|verdict| verdict.node).collect()
    }
}

/// What an undeclared key of this kind means, and the lines that declare it.
fn undeclared(driver: &DriverName, key: &str) -> String {
    format!(
        "each node reports another value, and a node may report the value of another one; if a \
         value belongs to one node, add to csi-cloud's configuration: [driver.\"{driver}\"] \
         topology = {{ \"{key}\" = \"node\" }} (or \"any\" if nodes may share a value)"
    )
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
    use std::sync::Arc;

    use bytes::Bytes;
    use proto::csi::{Capabilities, Local, Method};

    use super::super::commands::check_commands;
    use super::*;
    use crate::state::record::NodeDriver;

    #[test]
    fn a_key_that_is_not_declared_comes_with_the_lines_that_declare_it() {
        let driver: DriverName = "d.example".parse().unwrap();
        let text = undeclared(&driver, "d.example/node");
        let line = r#"[driver."d.example"] topology = { "d.example/node" = "node" }"#;
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_driver_without_a_controller_at_any_node_is_node_only() {
        let answers = |capabilities: &'static [u8]| {
            let method = Method::answering(Local::Capabilities(Capabilities::Plugin)).name();
            Arc::new([(method.to_owned(), Bytes::from_static(capabilities))].into())
        };
        let mut of = DriverState::default();
        assert!(!of.is_node_only(), "nothing is known of it yet");
        let node_only = NodeDriver { answers: answers(b""), ..NodeDriver::default() };
        of.set_at("n1".parse().unwrap(), Some(node_only));
        assert!(of.is_node_only());
        // CONTROLLER_SERVICE.
        let whole =
            NodeDriver { answers: answers(b"\x0a\x04\x0a\x02\x08\x01"), ..NodeDriver::default() };
        of.set_at("n2".parse().unwrap(), Some(whole));
        assert!(!of.is_node_only());
    }

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
