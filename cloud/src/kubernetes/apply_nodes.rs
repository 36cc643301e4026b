//! Applies what `node` plans: CSINode entries, labels and the annotation with ids.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use kube::Api;
use kube::api::{PartialObjectMeta, Patch, PatchParams};
use proto::names::{DriverName, NodeName};
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use crate::kubernetes::api::ApiError;
use crate::kubernetes::events;
use crate::kubernetes::front_topology;
use crate::kubernetes::keeper::{Away, Keeper, applied};
use crate::kubernetes::managed_fields::MANAGER;
use crate::kubernetes::mirror;
use crate::kubernetes::mirror::{KnownCsiNode, KnownNode, NODE_IDS, Objects};
use crate::kubernetes::node;
use crate::kubernetes::node::{NodePlan, NodeStep, WantedDriver};
use crate::kubernetes::settings::Publish;
use crate::nodes::published_topology::{ByNode, PublishedDrivers};
use crate::state::clock::now;
use crate::state::driver_state::DriverState;
use crate::state::known::State;
use crate::state::policy::Scope;
use crate::state::record::NodeDriver;

/// Nodes that one round changes.
const TURN: usize = 50;
/// The least time for edges to link after csi-cloud has begun.
const LINKING: Duration = Duration::from_secs(30);

/// These drivers, each with what its CSIDriver object says of asking for NodeGetInfo again.
fn with_periods(objects: &Objects, drivers: BTreeSet<DriverName>) -> PublishedDrivers {
    let of = drivers.into_iter().map(|driver| {
        let object = objects.drivers.items().get(driver.as_str());
        let every = object.and_then(|object| object.spec.node_allocatable_update_period_seconds);
        (driver, every.and_then(|every| u32::try_from(every).ok()))
    });
    of.collect()
}

impl Keeper {
    /// Publishes the drivers of nodes, and withdraws those that are gone.
    ///
    /// # Errors
    /// The API server is away. Other failures are tried again later.
    pub(super) async fn apply_nodes(&mut self) -> Result<(), Away> {
        let applied = self.apply_wanted().await;
        // Also when that failed: a kubelet may have begun to publish.
        self.set_published_topology();
        applied
    }

    /// Sets the drivers whose topology csi-cloud alone publishes. Edges are told, so that their
    /// fronts omit it.
    fn set_published_topology(&self) {
        let objects = self.mirror.objects();
        let has_node = |name: &str| objects.nodes.items().contains_key(name);
        let published = match self.settings.publish {
            Publish::Off => ByNode::new(),
            Publish::On | Publish::Auto => {
                let all = front_topology::all(objects.csinodes.items().iter(), has_node);
                all.map(|(node, drivers)| (node, with_periods(&objects, drivers))).collect()
            }
        };
        drop(objects);
        self.facts.links.publishes_topology(published);
    }

    async fn apply_wanted(&mut self) -> Result<(), Away> {
        let wanted = self.wanted();
        let plans = self.plans(&wanted);
        let now = Instant::now();
        self.wait_for_kubelets(&plans, now);
        let mut left = TURN;
        for (node, known, plan) in plans {
            for collision in &plan.collisions {
                self.publish_event(events::collision(&node, &known.uid, collision)).await?;
            }
            let Some(step) = plan.step else { continue };
            if left > 0 && self.retries.may(&format!("Node {node}"), now) {
                left -= 1;
                self.carry_out(&node, &known, step).await?;
            }
        }
        Ok(())
    }

    /// Each driver that nobody has published waits for its node's kubelet, for the grace.
    fn wait_for_kubelets(&mut self, plans: &[(NodeName, KnownNode, NodePlan)], now: Instant) {
        let mut missing = HashMap::new();
        for (node, _, plan) in plans {
            for driver in &plan.missing {
                let key = (node.clone(), driver.clone());
                let due = self.missing.get(&key).copied().unwrap_or(now + self.settings.grace);
                missing.insert(key, due);
            }
        }
        self.missing = missing;
    }

    /// The entries to publish, by node.
    fn wanted(&self) -> BTreeMap<NodeName, Vec<WantedDriver>> {
        let mut wanted: BTreeMap<NodeName, Vec<WantedDriver>> = BTreeMap::new();
        if self.settings.publish == Publish::Off {
            return wanted;
        }
        let grace = u64::try_from(self.settings.grace.as_millis()).unwrap_or(u64::MAX);
        for (driver, policy) in &self.facts.policies {
            // Copied, so that the store is locked for no longer.
            let (scope, nodes) = self.facts.store.read(|state| {
                let of = state.driver(driver);
                let inferred = of.map(|of| of.info().scope());
                let scope = policy.scope.or(inferred).unwrap_or(Scope::Node);
                (scope, of.map(|of| admitted_nodes(state, of)).unwrap_or_default())
            });
            for (node, at) in nodes {
                let gone = at.gone.is_some_and(|gone| now().saturating_sub(gone) >= grace);
                let one = (!gone).then(|| node::wanted(driver, &node, &at, scope)).flatten();
                wanted.entry(node).or_default().extend(one);
            }
        }
        wanted
    }

    /// The plans for the nodes that Kubernetes knows.
    fn plans(
        &self,
        wanted: &BTreeMap<NodeName, Vec<WantedDriver>>,
    ) -> Vec<(NodeName, KnownNode, NodePlan)> {
        let now = Instant::now();
        let objects = self.mirror.objects();
        let none = KnownCsiNode::default();
        let mut plans = Vec::new();
        for (name, known) in objects.nodes.items() {
            let csinode = objects.csinodes.items().get(name).unwrap_or(&none);
            let ours = !known.our_labels.is_empty()
                || known.our_ids
                || csinode.entries.values().any(|entry| entry.ours);
            let Ok(node) = name.parse::<NodeName>() else { continue };
            let here = wanted.get(&node).map(Vec::as_slice);
            let Some(wanted) = target(here, ours, || self.is_sure(&node)) else { continue };
            let at_once = self.settings.publish == Publish::On || front_topology::is_edge(known);
            let due = |driver: &DriverName| {
                let due = self.missing.get(&(node.clone(), driver.clone()));
                at_once || due.is_some_and(|due| *due <= now)
            };
            let plan = node::plan(wanted, known, csinode, due);
            if plan != NodePlan::default() {
                plans.push((node, known.clone(), plan));
            }
        }
        plans
    }

    /// True if a node without wanted entries certainly has no drivers.
    ///
    /// A new store learns the drivers of nodes from their links, which take a while to come.
    fn is_sure(&self, node: &NodeName) -> bool {
        let is_known = || self.facts.store.read(|state| state.nodes().contains_key(node));
        self.settings.publish == Publish::Off
            || self.facts.links.leading().age() >= self.settings.grace.max(LINKING)
            || is_known()
    }

    async fn carry_out(
        &mut self,
        node: &NodeName,
        known: &KnownNode,
        step: NodeStep,
    ) -> Result<(), Away> {
        let about = format!("Node {node}");
        match step {
            NodeStep::Entries(entries) => {
                let mut answered = self.apply_entries(node, known, &entries).await;
                if matches!(answered, Err(ApiError::Refused(_))) && entries.len() > 1 {
                    answered = self.apply_each(node, known, &entries).await;
                }
                if let Some(csinode) = self.settled(&about, answered)? {
                    let drivers: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
                    info!(%node, drivers = drivers.join(","), "applied entries of the CSINode");
                    // An entry that we withdrew to replace it waits for no kubelet.
                    for driver in self.facts.policies.keys() {
                        let key = (node.clone(), driver.clone());
                        self.missing.entry(key).or_insert_with(Instant::now);
                    }
                    let (name, csinode) = mirror::csinode(&csinode);
                    self.mirror.change(|objects| objects.csinodes.set(name, csinode));
                }
            }
            NodeStep::Labels { labels, ids, shared } => {
                let answered = self.apply_labels(node, known, &labels, ids, shared).await;
                if let Some(live) = self.settled(&about, answered)? {
                    info!(%node, ?labels, "applied labels of the node");
                    let (name, live) = mirror::node(&live);
                    self.mirror.change(|objects| objects.nodes.set(name, live));
                }
            }
        }
        Ok(())
    }

    async fn apply_entries(
        &self,
        node: &NodeName,
        known: &KnownNode,
        entries: &[CSINodeDriver],
    ) -> Result<CSINode, ApiError> {
        let api: Api<CSINode> = Api::all(self.server.client.clone());
        // As kubelets do: the CSINode goes with its node.
        let owner = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "name": node.as_str(),
            "uid": known.uid,
        });
        let metadata = json!({ "name": node.as_str(), "ownerReferences": [owner] });
        let spec = json!({ "drivers": entries });
        let patch = Patch::Apply(applied::<CSINode>(metadata, Some(spec)));
        let params = PatchParams::apply(MANAGER);
        let applying = api.patch(node.as_str(), &params, &patch);
        self.server.ask("CSINode apply", applying).await
    }

    /// Applies one more entry at a time, after all together were refused.
    async fn apply_each(
        &self,
        node: &NodeName,
        known: &KnownNode,
        entries: &[CSINodeDriver],
    ) -> Result<CSINode, ApiError> {
        let live = self.mirror.objects().csinodes.items().get(node.as_str()).cloned();
        let live = live.unwrap_or_default();
        let is_applied =
            |entry: &CSINodeDriver| live.entries.get(&entry.name).is_some_and(|known| known.ours);
        let (taken, left) = entries.iter().cloned().partition(is_applied);
        let mut one_by_one = OneByOne { taken, left };
        let mut last = None;
        let mut refused = None;
        while let Some(some) = one_by_one.next() {
            let answered = self.apply_entries(node, known, &some).await;
            one_by_one.settled(answered.is_ok());
            match answered {
                Ok(csinode) => {
                    let (name, known) = mirror::csinode(&csinode);
                    self.mirror.objects().csinodes.set(name, known);
                    last = Some(csinode);
                }
                Err(error @ ApiError::Refused(_)) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or_else(|| last.ok_or(ApiError::Missing), Err)
    }

    async fn apply_labels(
        &self,
        node: &NodeName,
        known: &KnownNode,
        labels: &BTreeMap<String, String>,
        ids: Option<String>,
        shared: bool,
    ) -> Result<PartialObjectMeta<Node>, ApiError> {
        let api: Api<Node> = Api::all(self.server.client.clone());
        // With the uid a deleted node is not made again, and a new node of its name not changed.
        let mut metadata = json!({ "name": node.as_str(), "uid": known.uid, "labels": labels });
        if let (Some(metadata), Some(ids)) = (metadata.as_object_mut(), ids) {
            metadata.insert("annotations".into(), json!({ NODE_IDS: ids }));
        }
        let mut params = PatchParams::apply(MANAGER);
        if shared {
            // One annotation has the ids of all drivers, so each writer repeats the others' ids.
            // The version that was read guards against a change in between.
            params = params.force();
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".into(), json!(known.version));
            }
        }
        let patch = Patch::Apply(applied::<Node>(metadata, None));
        self.server.ask("Node apply", api.patch_metadata(node.as_str(), &params, &patch)).await
    }
}

/// Entries that were refused together: one bad entry keeps no other driver out.
struct OneByOne {
    taken: Vec<CSINodeDriver>,
    left: Vec<CSINodeDriver>,
}

impl OneByOne {
    /// All entries that were taken, and one more.
    fn next(&self) -> Option<Vec<CSINodeDriver>> {
        Some(self.taken.iter().chain([self.left.last()?]).cloned().collect())
    }

    /// The outcome of the last try.
    fn settled(&mut self, is_taken: bool) {
        self.taken.extend(self.left.pop().filter(|_| is_taken));
    }
}

/// The wanted objects of a node, if csi-cloud manages it.
///
/// If nothing is wanted for a node, our fields there are removed, once that is certain.
fn target(
    here: Option<&[WantedDriver]>,
    ours: bool,
    is_sure: impl FnOnce() -> bool,
) -> Option<&[WantedDriver]> {
    here.or_else(|| (ours && is_sure()).then_some(&[]))
}

/// The driver at nodes that were not removed.
fn admitted_nodes(state: &State, of: &DriverState) -> Vec<(NodeName, NodeDriver)> {
    let admitted = of.nodes().iter().filter(|(node, _)| !state.is_removed(node));
    admitted.map(|(node, at)| (node.clone(), at.clone())).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::storage::v1::CSIDriver;

    use super::*;

    #[test]
    fn each_driver_has_the_period_of_its_csidriver_object() {
        let mut objects = Objects::default();
        for (name, every) in [("a.b", Some(60)), ("c.d", None), ("e.f", Some(-1))] {
            let mut object = CSIDriver::default();
            object.metadata.name = Some(name.into());
            object.spec.node_allocatable_update_period_seconds = every;
            let (name, object) = mirror::driver(&object);
            objects.drivers.set(name, object);
        }
        let drivers = ["a.b", "c.d", "e.f", "g.h"].map(|name| name.parse().unwrap());
        let periods: Vec<_> = with_periods(&objects, drivers.into()).into_values().collect();
        assert_eq!(periods, [Some(60), None, None, None]);
    }

    #[test]
    fn an_entry_that_is_refused_keeps_no_other_out() {
        let entry = |name: &str| CSINodeDriver { name: name.into(), ..CSINodeDriver::default() };
        let left = ["b", "bad", "c"].map(entry).to_vec();
        let mut one_by_one = OneByOne { taken: vec![entry("a")], left };
        while let Some(some) = one_by_one.next() {
            assert_eq!(some[0].name, "a", "what is there stays");
            one_by_one.settled(some.iter().all(|entry| entry.name != "bad"));
        }
        let names: Vec<_> = one_by_one.taken.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }

    #[test]
    fn what_is_published_goes_only_when_it_is_known_that_it_shall() {
        let one = WantedDriver {
            driver: "d.example".parse().unwrap(),
            id: "i".into(),
            segments: BTreeMap::new(),
            most: None,
        };
        let some = std::slice::from_ref(&one);
        assert_eq!(target(Some(some), true, || false), Some(some));
        assert_eq!(target(None, true, || false), None, "a store that has just begun knows nothing");
        assert_eq!(target(None, true, || true), Some(&[][..]));
        assert_eq!(target(None, false, || true), None, "what is not ours stays");
    }
}
