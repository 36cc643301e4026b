//! Carries out what was decided about CSIDriver objects, and about what is published of nodes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ::kube::Api;
use ::kube::api::{Patch, PatchParams};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSINodeDriver};
use proto::names::{DriverName, NodeName};
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::kubernetes::mirror;
use crate::kubernetes::mirror::{KnownNode, NODE_IDS};
use crate::kubernetes::node;
use crate::kubernetes::node::{Plan, Step, Wanted};
use crate::kubernetes::object;
use crate::kubernetes::object::Decision;
use crate::kubernetes::owner::MANAGER;
use crate::kubernetes::settings::Publish;
use crate::kubernetes::{Away, Keeper, applied, events};
use crate::state::clock::now;
use crate::state::known::{OfDriver, State};
use crate::state::policy::Scope;

/// Nodes that something is done about before all else is looked at again.
pub(super) const TURN: usize = 50;
/// How long edges may take to link after csi-cloud has begun, at least.
const LINKING: Duration = Duration::from_secs(30);

impl Keeper {
    /// Keeps the CSIDriver objects.
    pub(super) async fn keep_objects(&mut self) -> Result<(), Away> {
        let drivers: Vec<_> = self.facts.policies.keys().cloned().collect();
        for driver in drivers {
            self.keep_object(&driver).await?;
        }
        Ok(())
    }

    async fn keep_object(&mut self, driver: &DriverName) -> Result<(), Away> {
        let said = self.facts.store.read(|state| {
            let said = state.driver(driver).map(|of| object::attach_required(of.said()));
            said.and_then(Result::ok)
        });
        // Sidecars and kubelets would act on a guess.
        let Some(attach_required) = said else { return Ok(()) };
        let Some(settings) = self.facts.objects.get(driver) else { return Ok(()) };
        let wanted = object::wanted(driver, attach_required, settings);
        let live = self.mirror.objects().drivers.items().get(driver.as_str()).cloned();
        match object::decide(&wanted, live.as_ref()) {
            Decision::Keep => {
                self.published.set(driver, "ours");
            }
            Decision::Leave(who) => {
                if self.published.set(driver, &format!("left to {who}")) {
                    info!(%driver, who, "the CSIDriver object is somebody else's, and is left alone");
                }
            }
            Decision::Remake(field) => {
                if self.published.set(driver, &format!("{field} differs; delete it")) {
                    warn!(%driver, field, "the CSIDriver object says something that cannot be changed; when no volume of \
                        the driver is in use, `kubectl delete csidriver {driver}`, and it is made again");
                }
            }
            Decision::Apply => return self.apply_object(driver, wanted).await,
        }
        Ok(())
    }

    async fn apply_object(&mut self, driver: &DriverName, wanted: CSIDriver) -> Result<(), Away> {
        let about = format!("CSIDriver {driver}");
        if !self.retries.may(&about, Instant::now()) {
            return Ok(());
        }
        let api: Api<CSIDriver> = Api::all(self.server.client.clone());
        let metadata = json!({ "name": driver.as_str(), "labels": wanted.metadata.labels });
        let patch = Patch::Apply(applied::<CSIDriver>(metadata, serde_json::to_value(&wanted.spec).ok()));
        let params = PatchParams::apply(MANAGER);
        let answered = self.server.ask("CSIDriver apply", api.patch(driver.as_str(), &params, &patch)).await;
        if let Some(live) = self.settled(&about, answered)? {
            info!(%driver, "applied the CSIDriver object");
            self.published.set(driver, "ours");
            self.mirror.objects().drivers.set(driver.to_string(), Some(live));
        }
        Ok(())
    }

    /// Publishes what nodes have, and withdraws what they have not any more.
    pub(super) async fn keep_nodes(&mut self) -> Result<(), Away> {
        let wanted = self.wanted();
        let plans = self.plans(&wanted);
        let now = Instant::now();
        let mut missing = HashMap::new();
        for (node, _, plan) in &plans {
            for driver in &plan.missing {
                let key = (node.clone(), driver.clone());
                let due = self.missing.get(&key).copied().unwrap_or(now + self.settings.grace);
                missing.insert(key, due);
            }
        }
        self.missing = missing;
        let mut left = TURN;
        for (node, known, plan) in plans {
            for collision in &plan.collisions {
                self.tell_one(events::collision(&node, &known.uid, collision)).await?;
            }
            let Some(step) = plan.step else { continue };
            if left > 0 && self.retries.may(&format!("Node {node}"), now) {
                left -= 1;
                self.carry_out(&node, &known, step).await?;
            }
        }
        Ok(())
    }

    /// What shall be published, by node.
    fn wanted(&self) -> BTreeMap<NodeName, Vec<Wanted>> {
        let mut wanted: BTreeMap<NodeName, Vec<Wanted>> = BTreeMap::new();
        if self.settings.publish == Publish::Off {
            return wanted;
        }
        let grace = u64::try_from(self.settings.grace.as_millis()).unwrap_or(u64::MAX);
        for (driver, policy) in &self.facts.policies {
            // Copied, so that the store waits for nothing but that.
            let (scope, at) = self.facts.store.read(|state| {
                let of = state.driver(driver);
                let scope = policy.scope.or_else(|| of.map(|of| of.said().scope())).unwrap_or(Scope::Node);
                (scope, of.map(|of| here(state, of)).unwrap_or_default())
            });
            for (node, at) in at {
                let gone = at.gone.is_some_and(|gone| now().saturating_sub(gone) >= grace);
                let one = (!gone).then(|| node::wanted(driver, &node, &at, scope)).flatten();
                wanted.entry(node).or_default().extend(one);
            }
        }
        wanted
    }

    /// What there is to do about nodes that Kubernetes knows.
    fn plans(&self, wanted: &BTreeMap<NodeName, Vec<Wanted>>) -> Vec<(NodeName, KnownNode, Plan)> {
        let now = Instant::now();
        let objects = self.mirror.objects();
        let none = mirror::KnownCsiNode::default();
        let mut plans = Vec::new();
        for (name, known) in objects.nodes.items() {
            let csinode = objects.csinodes.items().get(name).unwrap_or(&none);
            let ours = !known.our_labels.is_empty()
                || known.our_ids
                || csinode.entries.values().any(|entry| entry.ours);
            let Ok(node) = name.parse::<NodeName>() else { continue };
            let here = wanted.get(&node).map(Vec::as_slice);
            let is_sure = || self.is_sure(&node);
            let Some(wanted) = shall(here, ours, is_sure) else { continue };
            let due = |driver: &DriverName| {
                let due = self.missing.get(&(node.clone(), driver.clone()));
                self.settings.publish == Publish::On || due.is_some_and(|due| *due <= now)
            };
            let plan = node::plan(wanted, known, csinode, due);
            if plan != Plan::default() {
                plans.push((node, known.clone(), plan));
            }
        }
        plans
    }

    /// Whether a node of which nothing is wanted is known to have nothing. A store that is new or was lost learns what
    /// nodes have from their links, which take a while to come.
    fn is_sure(&self, node: &NodeName) -> bool {
        let is_known = || self.facts.store.read(|state| state.nodes().contains_key(node));
        self.settings.publish == Publish::Off
            || self.facts.links.age() >= self.settings.grace.max(LINKING)
            || is_known()
    }

    async fn carry_out(&mut self, node: &NodeName, known: &KnownNode, step: Step) -> Result<(), Away> {
        let about = format!("Node {node}");
        match step {
            Step::Entries(entries) => {
                let mut answered = self.apply_entries(node, known, &entries).await;
                if matches!(answered, Err(crate::kubernetes::ApiError::Refused(_))) && entries.len() > 1 {
                    answered = self.apply_each(node, known, &entries).await;
                }
                if let Some(csinode) = self.settled(&about, answered)? {
                    let drivers: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
                    info!(%node, drivers = drivers.join(","), "applied entries of the CSINode");
                    // What we have just withdrawn to replace it waits for no kubelet.
                    for driver in self.facts.policies.keys() {
                        self.missing.entry((node.clone(), driver.clone())).or_insert_with(Instant::now);
                    }
                    let (name, csinode) = mirror::csinode(&csinode);
                    self.mirror.change(|objects| objects.csinodes.set(name, csinode));
                }
            }
            Step::Labels { labels, ids, shared } => {
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
    ) -> Result<CSINode, crate::kubernetes::ApiError> {
        let api: Api<CSINode> = Api::all(self.server.client.clone());
        // As a kubelet's: it goes with its node.
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node.as_str(), "uid": known.uid });
        let metadata = json!({ "name": node.as_str(), "ownerReferences": [owner] });
        let patch = Patch::Apply(applied::<CSINode>(metadata, Some(json!({ "drivers": entries }))));
        let params = PatchParams::apply(MANAGER);
        self.server.ask("CSINode apply", api.patch(node.as_str(), &params, &patch)).await
    }

    /// Applies one entry more after another, when all together are refused.
    async fn apply_each(
        &self,
        node: &NodeName,
        known: &KnownNode,
        entries: &[CSINodeDriver],
    ) -> Result<CSINode, crate::kubernetes::ApiError> {
        let there = self.mirror.objects().csinodes.items().get(node.as_str()).cloned().unwrap_or_default();
        let is_there = |entry: &CSINodeDriver| there.entries.get(&entry.name).is_some_and(|known| known.ours);
        let (taken, left) = entries.iter().cloned().partition(is_there);
        let (mut each, mut last, mut refused) = (Each { taken, left }, None, None);
        while let Some(some) = each.next() {
            let answered = self.apply_entries(node, known, &some).await;
            each.settled(answered.is_ok());
            match answered {
                Ok(csinode) => {
                    let (name, known) = mirror::csinode(&csinode);
                    self.mirror.objects().csinodes.set(name, known);
                    last = Some(csinode);
                }
                Err(error @ crate::kubernetes::ApiError::Refused(_)) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or_else(|| last.ok_or(crate::kubernetes::ApiError::Missing), Err)
    }

    async fn apply_labels(
        &self,
        node: &NodeName,
        known: &KnownNode,
        labels: &BTreeMap<String, String>,
        ids: Option<String>,
        shared: bool,
    ) -> Result<::kube::api::PartialObjectMeta<Node>, crate::kubernetes::ApiError> {
        let api: Api<Node> = Api::all(self.server.client.clone());
        // With the uid a node that has gone is not made, nor another one of the name changed.
        let mut metadata = json!({ "name": node.as_str(), "uid": known.uid, "labels": labels });
        if let (Some(metadata), Some(ids)) = (metadata.as_object_mut(), ids) {
            metadata.insert("annotations".into(), json!({ NODE_IDS: ids }));
        }
        let mut params = PatchParams::apply(MANAGER);
        if shared {
            // One text holds the ids of all drivers, so whoever adds one writes those of others again. With the version
            // nothing is lost that came in between.
            params = params.force();
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".into(), json!(known.version));
            }
        }
        let patch = Patch::Apply(applied::<Node>(metadata, None));
        self.server.ask("Node apply", api.patch_metadata(node.as_str(), &params, &patch)).await
    }
}

/// Entries that were refused together: one that the API refuses keeps no other driver out.
struct Each {
    taken: Vec<CSINodeDriver>,
    left: Vec<CSINodeDriver>,
}

impl Each {
    /// What to apply next: all that was taken, and one more.
    fn next(&self) -> Option<Vec<CSINodeDriver>> {
        Some(self.taken.iter().chain([self.left.last()?]).cloned().collect())
    }

    /// What came of that.
    fn settled(&mut self, is_taken: bool) {
        self.taken.extend(self.left.pop().filter(|_| is_taken));
    }
}

/// What a node shall have, if it is ours to say: nothing, if it has something of ours and it is sure that it shall not.
fn shall(here: Option<&[Wanted]>, ours: bool, is_sure: impl FnOnce() -> bool) -> Option<&[Wanted]> {
    here.or_else(|| (ours && is_sure()).then_some(&[]))
}

/// The driver at nodes that were not removed.
fn here(state: &State, of: &OfDriver) -> Vec<(NodeName, crate::state::record::At)> {
    let here = of.nodes().iter().filter(|(node, _)| !state.is_removed(node));
    here.map(|(node, at)| (node.clone(), at.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_refused_keeps_no_other_out() {
        let entry = |name: &str| CSINodeDriver { name: name.into(), ..CSINodeDriver::default() };
        let mut each = Each { taken: vec![entry("a")], left: ["b", "bad", "c"].map(entry).to_vec() };
        while let Some(some) = each.next() {
            assert_eq!(some[0].name, "a", "what is there stays");
            each.settled(some.iter().all(|entry| entry.name != "bad"));
        }
        let names: Vec<_> = each.taken.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }

    #[test]
    fn what_is_published_goes_only_when_it_is_known_that_it_shall() {
        let one = Wanted {
            driver: "d.example".parse().unwrap(),
            id: "i".into(),
            segments: BTreeMap::new(),
            most: None,
        };
        let some = std::slice::from_ref(&one);
        assert_eq!(shall(Some(some), true, || false), Some(some));
        assert_eq!(shall(None, true, || false), None, "a store that has just begun knows nothing");
        assert_eq!(shall(None, true, || true), Some(&[][..]));
        assert_eq!(shall(None, false, || true), None, "what is not ours stays");
    }
}
