//! A copy of the API's objects, as far as they matter here, which watches keep up to date.
//!
//! While the API is away the copy stays as it was. No call waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSINodeDriver};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;
use serde_json::json;
use tokio::sync::Notify;

use crate::kubernetes::claims::Pending;
use crate::kubernetes::managed_fields::ManagedFields;

/// The annotation with a node's ids, by driver.
pub(super) const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// What is known of a Node.
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
    /// Whether we applied the annotation.
    pub(super) our_ids: bool,
    /// Whether another manager did.
    pub(super) others_have_ids: bool,
}

/// What is known of a CSINode; empty if there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KnownCsiNode {
    /// Its entries by driver.
    pub(super) entries: BTreeMap<String, KnownEntry>,
}

/// An entry of a CSINode.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownEntry {
    pub(super) entry: CSINodeDriver,
    /// Whether we applied it.
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
        Self { entries: csinode.spec.drivers.iter().map(known).collect() }
    }
}

/// The objects of one kind, by name.
pub(super) struct Kind<V> {
    items: BTreeMap<String, V>,
    /// A list that is being read, and will replace them.
    coming: BTreeMap<String, V>,
    synced: bool,
}

impl<V> Default for Kind<V> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), coming: BTreeMap::new(), synced: false }
    }
}

impl<V: PartialEq> Kind<V> {
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
                !std::mem::replace(&mut self.synced, true) || before != self.items
            }
            Event::Apply(object) => {
                let (name, value) = read(&object);
                self.set(name, value)
            }
            Event::Delete(object) => self.items.remove(&read(&object).0).is_some(),
        }
    }

    /// Keeps an object, or that it is gone; returns whether that is news.
    pub(super) fn set(&mut self, name: String, value: Option<V>) -> bool {
        match value {
            None => self.items.remove(&name).is_some(),
            Some(value) => {
                let news = self.items.get(&name) != Some(&value);
                // Kept in any case: an equal object may have a newer version.
                self.items.insert(name, value);
                news
            }
        }
    }

    /// All of them, by name.
    pub(super) fn items(&self) -> &BTreeMap<String, V> {
        &self.items
    }
}

/// The objects of all kinds.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) drivers: Kind<CSIDriver>,
    pub(super) nodes: Kind<KnownNode>,
    pub(super) csinodes: Kind<KnownCsiNode>,
    /// Claims that wait for their volume, by `NAMESPACE/NAME`.
    pub(super) claims: Kind<Pending>,
}

/// The copy, and the signal that it changed.
#[derive(Default)]
pub(super) struct Mirror {
    objects: Mutex<Objects>,
    changed: Notify,
}

impl Mirror {
    /// The objects. The lock is for a moment only.
    pub(super) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the objects; signals it if `change` returns true.
    pub(super) fn change(&self, change: impl FnOnce(&mut Objects) -> bool) {
        let changed = change(&mut self.objects());
        if changed {
            self.changed.notify_one();
        }
    }

    /// Waits until something changed since the last wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether all CSIDrivers were read once.
    pub(super) fn has_drivers(&self) -> bool {
        self.objects().drivers.synced
    }

    /// Whether all Nodes and CSINodes were read once.
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
        let mut kind = Kind::default();
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
    fn a_heartbeat_is_no_change() {
        let node = KnownNode { uid: "u".into(), version: "1".into(), ..KnownNode::default() };
        let later = KnownNode { version: "2".into(), ..node.clone() };
        let mut kind = Kind::default();
        assert!(kind.set("n".into(), Some(node)) && !kind.set("n".into(), Some(later)));
        assert_eq!(kind.items()["n"].version, "2");
    }
}
