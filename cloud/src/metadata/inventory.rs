//! All objects of the cluster that may concern some node's volumes, and which nodes each concerns.
//!
//! Pure. A Node concerns itself alone. A claim or a volume concerns a node only through a Pod of
//! it, or through an attachment. A claim that names another claim's volume does not lead to that
//! volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::control::metadata::{Claim, Key, Kind, Object, Pod, Volume};

use crate::state::default_name::populated_uid;

/// An object, and the facts about it that no edge is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The object.
    pub object: Arc<Object>,
    /// The node of a Pod; none before it is scheduled.
    pub node: Option<Box<str>>,
    /// True if all containers of a Pod have ended for good.
    pub finished: bool,
    /// True if the scheduler has selected a node for a claim.
    pub selected: bool,
}

impl Observed {
    /// An object without such facts.
    pub fn new(object: Object) -> Self {
        Self { object: Arc::new(object), node: None, finished: false, selected: false }
    }
}

/// The nodes that a change may concern.
#[derive(Debug, PartialEq, Eq)]
pub enum Touched {
    /// These.
    Nodes(BTreeSet<Box<str>>),
    /// Any.
    All,
}

/// The keys of objects that refer to a key.
type Leads = BTreeMap<Box<str>, BTreeSet<Key>>;

/// The objects by key.
#[derive(Default)]
pub struct Inventory {
    objects: BTreeMap<Key, Observed>,
    /// The Pods of a node.
    pods_at: Leads,
    /// The Pods that use a claim, also those without a node.
    users: BTreeMap<Key, BTreeSet<Key>>,
    /// The attachments to a node.
    attachments_at: Leads,
    /// The attachments of a volume.
    attachments_of: Leads,
}

impl Inventory {
    /// Keeps an object or its deletion. Returns the nodes that it may concern; none if nothing
    /// changed.
    pub fn set(&mut self, key: &Key, value: Option<Observed>) -> Option<Touched> {
        if self.objects.get(key) == value.as_ref() {
            return None;
        }
        let mut nodes = BTreeSet::new();
        if let Some(before) = self.objects.remove(key) {
            self.touch(&before, &mut nodes);
            self.lead(key, &before, false);
        }
        if let Some(now) = value {
            self.lead(key, &now, true);
            self.touch(&now, &mut nodes);
            self.objects.insert(key.clone(), now);
        }
        Some(match key.kind {
            Kind::Driver | Kind::RuntimeClass => Touched::All,
            Kind::Pod | Kind::Claim | Kind::Volume | Kind::Attachment | Kind::Node => {
                Touched::Nodes(nodes)
            }
        })
    }

    /// The keys of a kind.
    pub fn keys(&self, kind: Kind) -> Vec<Key> {
        let keys = self.objects.keys().filter(|key| key.kind == kind);
        keys.cloned().collect()
    }

    /// An object.
    pub fn get(&self, key: &Key) -> Option<&Observed> {
        self.objects.get(key)
    }

    /// The claim that a populator fills by the claim with this name. It gets the volume when that
    /// is filled.
    pub(super) fn populated_by(&self, name: &str) -> Option<(&Key, &Observed)> {
        let uid = populated_uid(name)?;
        self.objects.iter().find(|(_, observed)| match observed.object.as_ref() {
            Object::Claim(claim) => *claim.uid == *uid,
            _ => false,
        })
    }

    /// The Pods that use a claim, also those without a node. Ended ones do not use it.
    pub(super) fn users(&self, claim: &Key) -> impl Iterator<Item = &Pod> {
        let keys = self.users.get(claim).into_iter().flatten();
        let observed = keys.filter_map(|key| self.objects.get(key));
        observed.filter(|observed| !observed.finished).filter_map(|observed| {
            match observed.object.as_ref() {
                Object::Pod(pod) => Some(pod),
                _ => None,
            }
        })
    }

    /// All objects that concern a node's volumes, and the Node itself.
    pub fn concerning(&self, node: &str) -> BTreeMap<Key, Arc<Object>> {
        let mut found = BTreeMap::new();
        self.take(&Key::of_cluster(Kind::Node, node), &mut found);
        for key in self.pods_at.get(node).into_iter().flatten() {
            let Some(Object::Pod(pod)) = self.take(key, &mut found) else { continue };
            if let Some(class) = &pod.runtime_class {
                self.take(&Key::of_cluster(Kind::RuntimeClass, class), &mut found);
            }
            for volume in &pod.volumes {
                if let Some(driver) = &volume.driver {
                    self.take(&Key::of_cluster(Kind::Driver, driver), &mut found);
                }
                if let Some(claim) = &volume.claim {
                    self.claim(&Key::within(Kind::Claim, &pod.namespace, claim), &mut found);
                }
            }
        }
        for key in self.attachments_at.get(node).into_iter().flatten() {
            if let Some(Object::Attachment(attachment)) = self.take(key, &mut found) {
                self.volume(&attachment.volume, &mut found);
            }
        }
        found
    }

    /// Takes a claim, and the volume that is its own.
    fn claim(&self, key: &Key, found: &mut BTreeMap<Key, Arc<Object>>) {
        let Some(Object::Claim(claim)) = self.take(key, found) else { return };
        let Some(name) = &claim.volume else { return };
        let bound = self.volume_named(name).filter(|volume| is_bound(volume, claim));
        if bound.is_some() {
            self.volume(name, found);
        }
    }

    fn volume(&self, name: &str, found: &mut BTreeMap<Key, Arc<Object>>) {
        let key = Key::of_cluster(Kind::Volume, name);
        if let Some(Object::Volume(volume)) = self.take(&key, found) {
            self.take(&Key::of_cluster(Kind::Driver, &volume.driver), found);
        }
    }

    fn volume_named(&self, name: &str) -> Option<&Volume> {
        match self.objects.get(&Key::of_cluster(Kind::Volume, name))?.object.as_ref() {
            Object::Volume(volume) => Some(volume),
            _ => None,
        }
    }

    fn take<'a>(&'a self, key: &Key, found: &mut BTreeMap<Key, Arc<Object>>) -> Option<&'a Object> {
        let observed = self.objects.get(key)?;
        found.insert(key.clone(), observed.object.clone());
        Some(&observed.object)
    }

    /// Adds the nodes that an object concerns as things are now.
    fn touch(&self, observed: &Observed, nodes: &mut BTreeSet<Box<str>>) {
        match observed.object.as_ref() {
            Object::Pod(_) => nodes.extend(observed.node.clone()),
            Object::Claim(claim) => {
                let key = Key::within(Kind::Claim, &claim.namespace, &claim.name);
                self.touch_users(&key, nodes);
            }
            Object::Volume(volume) => {
                if let Some((namespace, name)) = &volume.claim {
                    self.touch_users(&Key::within(Kind::Claim, namespace, name), nodes);
                }
                let of = self.attachments_of.get(&volume.name).into_iter().flatten();
                for observed in of.filter_map(|key| self.objects.get(key)) {
                    self.touch(observed, nodes);
                }
            }
            Object::Attachment(attachment) => {
                nodes.insert(attachment.node.clone());
            }
            Object::Node(node) => {
                nodes.insert(node.name.clone());
            }
            Object::Driver(_) | Object::RuntimeClass(_) => {}
        }
    }

    fn touch_users(&self, claim: &Key, nodes: &mut BTreeSet<Box<str>>) {
        let pods = self.users.get(claim).into_iter().flatten();
        nodes.extend(pods.filter_map(|pod| self.objects.get(pod)?.node.clone()));
    }

    /// Adds or removes the references to an object.
    fn lead(&mut self, key: &Key, observed: &Observed, there: bool) {
        match observed.object.as_ref() {
            Object::Pod(pod) => {
                if let Some(node) = &observed.node {
                    lead(&mut self.pods_at, node, key, there);
                }
                for claim in pod.volumes.iter().filter_map(|volume| volume.claim.as_deref()) {
                    let claim = Key::within(Kind::Claim, &pod.namespace, claim);
                    lead(&mut self.users, &claim, key, there);
                }
            }
            Object::Attachment(attachment) => {
                lead(&mut self.attachments_at, &attachment.node, key, there);
                lead(&mut self.attachments_of, &attachment.volume, key, there);
            }
            Object::Claim(_)
            | Object::Volume(_)
            | Object::Driver(_)
            | Object::RuntimeClass(_)
            | Object::Node(_) => {}
        }
    }
}

fn is_bound(volume: &Volume, claim: &Claim) -> bool {
    let of = volume.claim.as_ref();
    of.is_some_and(|(namespace, name)| *namespace == claim.namespace && *name == claim.name)
}

fn lead<K: Clone + Ord>(leads: &mut BTreeMap<K, BTreeSet<Key>>, from: &K, to: &Key, there: bool) {
    if there {
        leads.entry(from.clone()).or_default().insert(to.clone());
    } else if let Some(keys) = leads.get_mut(from) {
        keys.remove(to);
        if keys.is_empty() {
            leads.remove(from);
        }
    }
}
