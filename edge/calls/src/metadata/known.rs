//! The known Pods of this node and their volumes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use proto::control::metadata::{Key, Kind, NodeObject, Object, Pod, Position, RuntimeClass};
use serde::{Deserialize, Serialize};

use super::receiving::Transfer;

/// The number of Pods that are remembered after they are gone.
pub(super) const GONE: usize = 512;

/// A Pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its RuntimeClass, if it has one.
    pub runtime_class: Option<String>,
    /// The RuntimeClass' handler, if it is known.
    pub handler: Option<String>,
    /// True if NRI refuses its containers without csi-edge's plugin, by its annotations.
    pub requires_plugin: bool,
    /// True if the RuntimeClass takes direct volumes; none if it is not known.
    pub direct: Option<bool>,
    /// True if it takes them since 0.3 only.
    pub added: bool,
}

/// A Pod of this node that Kubernetes does not have any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GonePod {
    /// Its uid.
    pub uid: Box<str>,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// All objects, as of a position.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub(super) position: Position,
    pub(super) objects: BTreeMap<Key, Object>,
    /// Pods that are gone, the oldest first.
    pub(super) gone: VecDeque<GonePod>,
    uids: HashMap<Box<str>, Key>,
    /// The volumes' keys by driver and id.
    handles: HashMap<(Box<str>, Box<str>), Key>,
}

impl Known {
    /// These objects, as of this position.
    pub(super) fn new(
        position: Position,
        objects: BTreeMap<Key, Object>,
        gone: VecDeque<GonePod>,
    ) -> Self {
        let mut uids = HashMap::new();
        let mut handles = HashMap::new();
        for (key, object) in &objects {
            match object {
                Object::Pod(pod) => {
                    uids.insert(pod.uid.clone(), key.clone());
                }
                Object::Volume(volume) => {
                    let handle = (volume.driver.clone(), volume.handle.clone());
                    handles.insert(handle, key.clone());
                }
                _ => {}
            }
        }
        Self { position, objects, gone, uids, handles }
    }

    /// The objects after a transfer, and the keys that it removed. None if the transfer begins at
    /// another position.
    pub(super) fn after(&self, transfer: &Transfer) -> Option<(Self, Vec<Key>)> {
        let mut objects = match transfer.from {
            None => BTreeMap::new(),
            Some(from) if from == self.position => self.objects.clone(),
            Some(_) => return None,
        };
        for key in &transfer.gone {
            objects.remove(key);
        }
        for object in &transfer.objects {
            objects.insert(object.key(), object.clone());
        }
        let lost = self.objects.keys().filter(|key| !objects.contains_key(*key));
        let lost: Vec<Key> = lost.cloned().collect();
        let mut known = Self::new(transfer.to, objects, self.gone.clone());
        known.remember_gone(&self.objects);
        Some((known, lost))
    }

    /// Remembers the Pods of before that are not there any more, by their uids.
    fn remember_gone(&mut self, before: &BTreeMap<Key, Object>) {
        let Self { gone, uids, .. } = self;
        // A Pod may come back with a csi-cloud that knew less for a while.
        gone.retain(|pod| !uids.contains_key(&pod.uid));
        let there: BTreeSet<Box<str>> = gone.iter().map(|pod| pod.uid.clone()).collect();
        for object in before.values() {
            let Object::Pod(Pod { uid, namespace, name, .. }) = object else { continue };
            if !uids.contains_key(uid) && !there.contains(uid) {
                let namespace = namespace.clone();
                gone.push_back(GonePod { uid: uid.clone(), namespace, name: name.clone() });
            }
        }
        while gone.len() > GONE {
            gone.pop_front();
        }
    }

    pub(super) fn pod(&self, uid: &str) -> Option<KnownPod> {
        let Object::Pod(pod) = self.objects.get(self.uids.get(uid)?)? else { return None };
        let class = pod.runtime_class.as_ref().and_then(|name| self.runtime_class(name));
        let direct = match &pod.runtime_class {
            None => Some(false),
            Some(_) => class.map(|class| class.direct),
        };
        Some(KnownPod {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            runtime_class: pod.runtime_class.as_deref().map(str::to_owned),
            handler: class.map(|class| class.handler.to_string()),
            requires_plugin: pod.requires_plugin,
            direct,
            added: class.is_some_and(|class| class.added),
        })
    }

    fn runtime_class(&self, name: &str) -> Option<&RuntimeClass> {
        match self.objects.get(&Key::of_cluster(Kind::RuntimeClass, name))? {
            Object::RuntimeClass(class) => Some(class),
            _ => None,
        }
    }

    pub(super) fn node(&self) -> Option<NodeObject> {
        self.objects.values().find_map(|object| match object {
            Object::Node(node) => Some(node.clone()),
            _ => None,
        })
    }

    pub(super) fn gone(&self, uid: &str) -> Option<GonePod> {
        self.gone.iter().find(|pod| *pod.uid == *uid).cloned()
    }

    pub(super) fn claim(&self, driver: &str, volume: &str) -> Option<String> {
        let key = self.handles.get(&(driver.into(), volume.into()))?;
        let Object::Volume(volume) = self.objects.get(key)? else { return None };
        let (namespace, name) = volume.claim.as_ref()?;
        Some(format!("{namespace}/{name}"))
    }
}
