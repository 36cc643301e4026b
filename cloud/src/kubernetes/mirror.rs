//! A copy of the API's objects, as far as they matter here, which watches keep up to date.
//!
//! While the API is away the copy stays as it was. No call waits for it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSINodeDriver};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;
use parking_lot::{Mutex, MutexGuard};
use proto::names::NodeName;
use serde_json::json;
use tokio::sync::Notify;

use crate::kubernetes::claims::Pending;
use crate::kubernetes::managed_fields::ManagedFields;
use crate::state::node_labels;
use crate::state::node_labels::NodeLabels;

/// The annotation with a node's ids, by driver.
pub(super) const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// The known part of a Node.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownNode {
    pub(super) uid: String,
    /// The last resource version; it changes with every heartbeat.
    pub(super) version: String,
    pub(super) labels: BTreeMap<String, String>,
    /// The labels that we applied.
    pub(super) our_labels: BTreeSet<String>,
    /// The labels that another manager has, with us or alone.
    pub(super) their_labels: BTreeSet<String>,
    /// The annotation with the drivers' ids of the node.
    pub(super) ids: Option<String>,
    /// True if we applied the annotation.
    pub(super) our_ids: bool,
    /// True if another manager did.
    pub(super) others_have_ids: bool,
}

/// The known part of a CSINode; empty if there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KnownCsiNode {
    /// Its entries by driver.
    pub(super) entries: BTreeMap<String, KnownEntry>,
    /// Another manager of a part of it: a kubelet, or a person.
    pub(super) other: Option<String>,
}

/// An entry of a CSINode.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownEntry {
    pub(super) entry: CSINodeDriver,
    /// True if we applied it.
    pub(super) ours: bool,
}

impl PartialEq for KnownNode {
    /// A heartbeat changes only the version, so the version is not compared.
    fn eq(&self, other: &Self) -> bool {
        let facts =
            |node: &Self| (node.uid.clone(), node.ids.clone(), node.our_ids, node.others_have_ids);
        self.labels == other.labels
            && self.our_labels == other.our_labels
            && self.their_labels == other.their_labels
            && facts(self) == facts(other)
    }
}

impl KnownNode {
    /// Reads a Node's metadata.
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        let managed = ManagedFields::of(metadata);
        let ids = ["f:metadata", "f:annotations", &format!("f:{NODE_IDS}")];
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            our_labels: managed.our_names(&["f:metadata", "f:labels"]),
            their_labels: managed.other_names(&["f:metadata", "f:labels"]),
            ids: metadata.annotations.as_ref().and_then(|all| all.get(NODE_IDS)).cloned(),
            our_ids: managed.ours(&ids).is_some(),
            others_have_ids: managed.other(&ids).is_some(),
        }
    }
}

impl KnownCsiNode {
    /// Reads a CSINode.
    pub(super) fn of(csinode: &CSINode) -> Self {
        let managed = ManagedFields::of(&csinode.metadata);
        let known = |entry: &CSINodeDriver| {
            let key = format!("k:{}", json!({ "name": entry.name }));
            let ours = managed.ours(&["f:spec", "f:drivers", &key]).is_some();
            let mut entry = entry.clone();
            entry.topology_keys = entry.topology_keys.filter(|keys| !keys.is_empty());
            (entry.name.clone(), KnownEntry { entry, ours })
        };
        let entries = csinode.spec.drivers.iter().map(known).collect();
        Self { entries, other: managed.other(&[]).map(Into::into) }
    }
}

/// The objects of one kind, by name.
pub(super) struct Mirrored<V> {
    items: BTreeMap<String, V>,
    /// A list that is being read, and will replace them.
    coming: BTreeMap<String, V>,
    synced: bool,
    /// The number of changes.
    changes: u64,
}

impl<V> Default for Mirrored<V> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), coming: BTreeMap::new(), synced: false, changes: 0 }
    }
}

impl<V: PartialEq> Mirrored<V> {
    /// Takes a watch's event; returns whether anything changed.
    ///
    /// `read` gives an object's name and value.
    pub(super) fn take<K>(
        &mut self,
        event: Event<K>,
        read: impl Fn(&K) -> (String, Option<V>),
    ) -> bool {
        match event {
            Event::Init => {
                self.coming.clear();
                false
            }
            Event::InitApply(object) => {
                if let (name, Some(value)) = read(&object) {
                    self.coming.insert(name, value);
                }
                false
            }
            Event::InitDone => {
                let before = std::mem::replace(&mut self.items, std::mem::take(&mut self.coming));
                let news = !std::mem::replace(&mut self.synced, true) || before != self.items;
                self.count(news)
            }
            Event::Apply(object) => {
                let (name, value) = read(&object);
                self.set(name, value)
            }
            Event::Delete(object) => self.set(read(&object).0, None),
        }
    }

    /// Keeps an object, or that it is gone; returns whether that is news.
    pub(super) fn set(&mut self, name: String, value: Option<V>) -> bool {
        let news = match value {
            None => self.items.remove(&name).is_some(),
            Some(value) => {
                let news = self.items.get(&name) != Some(&value);
                // Kept in any case: an equal object may have a newer version.
                self.items.insert(name, value);
                news
            }
        };
        self.count(news)
    }

    fn count(&mut self, news: bool) -> bool {
        self.changes += u64::from(news);
        news
    }

    /// All of them, by name.
    pub(super) fn items(&self) -> &BTreeMap<String, V> {
        &self.items
    }
}

/// The objects of all kinds.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) drivers: Mirrored<CSIDriver>,
    pub(super) nodes: Mirrored<KnownNode>,
    pub(super) csinodes: Mirrored<KnownCsiNode>,
    /// Claims that wait for their volume, by `NAMESPACE/NAME`.
    pub(super) claims: Mirrored<Pending>,
    /// The changes of nodes whose labels were passed on.
    labelled: u64,
}

/// The copy, and the signal that it changed.
#[derive(Default)]
pub(super) struct Mirror {
    objects: Mutex<Objects>,
    changed: Notify,
    /// Told of the nodes' labels, if these decide which nodes may have a driver.
    labels: Option<NodeLabels>,
}

impl Objects {
    /// Passes the nodes' labels on if they may have changed, once all nodes were read.
    fn pass_labels(&mut self, labels: &NodeLabels) {
        if self.nodes.synced && self.labelled != self.nodes.changes {
            self.labelled = self.nodes.changes;
            labels.set(self.nodes.items.iter().filter_map(restricted_labels).collect());
        }
    }
}

/// The labels of a node that no kubelet may set on it; none without one.
fn restricted_labels(
    (name, node): (&String, &KnownNode),
) -> Option<(NodeName, BTreeMap<String, String>)> {
    let labels = node.labels.iter().filter(|(key, _)| key.starts_with(node_labels::PREFIX));
    let labels: BTreeMap<String, String> =
        labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    Some((name.parse().ok()?, labels)).filter(|(_, labels)| !labels.is_empty())
}

impl Mirror {
    /// Nothing yet. The labels of nodes are passed on.
    pub(super) fn new(labels: Option<NodeLabels>) -> Self {
        Self { labels, ..Self::default() }
    }

    /// The objects. The lock is for a moment only.
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// Changes the objects; signals it if `change` returns true.
    pub(super) fn change(&self, change: impl FnOnce(&mut Objects) -> bool) {
        let mut objects = self.objects();
        let changed = change(&mut objects);
        if let Some(labels) = &self.labels {
            objects.pass_labels(labels);
        }
        drop(objects);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Waits until something changed since the last wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// True if all CSIDrivers were read once.
    pub(super) fn has_drivers(&self) -> bool {
        self.objects().drivers.synced
    }

    /// True if all Nodes and CSINodes were read once.
    pub(super) fn has_nodes(&self) -> bool {
        let objects = self.objects();
        objects.nodes.synced && objects.csinodes.synced
    }
}

/// The name and the facts of a Node.
pub(super) fn node(node: &PartialObjectMeta<Node>) -> (String, Option<KnownNode>) {
    (node.metadata.name.clone().unwrap_or_default(), Some(KnownNode::of(&node.metadata)))
}

/// The name and the facts of a CSINode.
pub(super) fn csinode(csinode: &CSINode) -> (String, Option<KnownCsiNode>) {
    (csinode.metadata.name.clone().unwrap_or_default(), Some(KnownCsiNode::of(csinode)))
}

/// The name and the whole of a CSIDriver.
pub(super) fn driver(driver: &CSIDriver) -> (String, Option<CSIDriver>) {
    (driver.metadata.name.clone().unwrap_or_default(), Some(driver.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(item: &(&str, u8)) -> (String, Option<u8>) {
        (item.0.into(), Some(item.1).filter(|value| *value != 0))
    }

    #[test]
    fn a_list_replaces_what_was_known_only_when_it_is_whole() {
        let mut kind = Mirrored::default();
        assert!(!kind.take(Event::Init, read) && !kind.take(Event::InitApply(("a", 1)), read));
        assert!(!kind.synced && kind.items().is_empty());
        assert!(kind.take::<(&str, u8)>(Event::InitDone, read) && kind.synced);
        assert!(
            kind.take(Event::Apply(("b", 2)), read) && !kind.take(Event::Apply(("b", 2)), read)
        );
        kind.take(Event::Init, read);
        kind.take(Event::InitApply(("b", 2)), read);
        assert_eq!(kind.items().len(), 2, "the copy stays until the list is whole");
        assert!(kind.take::<(&str, u8)>(Event::InitDone, read));
        assert_eq!(kind.items(), &BTreeMap::from([("b".to_owned(), 2)]));
        // An object without a value is removed.
        assert!(
            kind.take(Event::Apply(("b", 0)), read) && !kind.take(Event::Delete(("b", 2)), read)
        );
    }

    #[test]
    fn labels_that_a_kubelet_may_not_set_are_passed_on_when_all_nodes_were_read() {
        let labels = NodeLabels::default();
        let mirror = Mirror::new(Some(labels.clone()));
        let selector = "node-restriction.kubernetes.io/storage=yes".parse().unwrap();
        let n1 = "n1".parse().unwrap();
        let node = |key: &str| KnownNode {
            labels: [(key.to_owned(), "yes".to_owned())].into(),
            ..KnownNode::default()
        };
        let labelled = node("node-restriction.kubernetes.io/storage");
        let read = |node: &KnownNode| ("n1".to_owned(), Some(node.clone()));
        mirror.change(|objects| objects.nodes.take(Event::Init, read));
        mirror.change(|objects| objects.nodes.take(Event::InitApply(labelled.clone()), read));
        assert!(!labels.is_known(), "the list is not whole");
        mirror.change(|objects| objects.nodes.take(Event::InitDone, read));
        assert!(labels.has(&n1, &selector));
        mirror.change(|objects| objects.nodes.take(Event::Apply(node("storage")), read));
        assert!(labels.is_known() && !labels.has(&n1, &selector), "the label was taken away");
        // As the answer to a request of ours.
        mirror.change(|objects| objects.nodes.set("n1".into(), Some(labelled.clone())));
        assert!(labels.has(&n1, &selector));
        mirror.change(|objects| objects.nodes.take(Event::Delete(labelled), read));
        assert!(!labels.has(&n1, &selector), "the node was deleted");
    }

    #[test]
    fn a_heartbeat_is_no_change() {
        let node = KnownNode { uid: "u".into(), version: "1".into(), ..KnownNode::default() };
        let later = KnownNode { version: "2".into(), ..node.clone() };
        let mut kind = Mirrored::default();
        assert!(kind.set("n".into(), Some(node)) && !kind.set("n".into(), Some(later)));
        assert_eq!(kind.items()["n"].version, "2");
    }
}
