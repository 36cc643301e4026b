//! Strips a Node to what its edge keeps of it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use proto::control::metadata::{NODE_ENTRIES, NODE_ENTRY, NodeObject, Object};

use crate::metadata::inventory::Observed;

/// The characters of a name that is left out, so that it can be recognised.
const NAME_SHOWN: usize = 128;

/// A Node, without what is too large.
pub(super) fn node(node: &v1::Node) -> Option<Observed> {
    let name = node.metadata.name.as_deref()?;
    let mut left_out = LeftOut::default();
    let metadata = &node.metadata;
    let labels = left_out.map("labels", metadata.labels.as_ref());
    let annotations = left_out.map("annotations", metadata.annotations.as_ref());
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints = left_out.list("taints", taints.map(taint));
    let status = node.status.as_ref();
    let attached = status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
    let attached = sorted(attached.map(|volume| volume.name.clone()));
    let in_use = status.iter().flat_map(|status| status.volumes_in_use.iter().flatten());
    let in_use = sorted(in_use.cloned());
    Some(Observed::new(Object::Node(NodeObject {
        name: name.into(),
        labels,
        annotations,
        taints,
        volumes_attached: left_out.list("volumes_attached", attached),
        volumes_in_use: left_out.list("volumes_in_use", in_use),
        left_out: left_out.names(),
    })))
}

/// In one order, because a kubelet reports them in any.
fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

fn taint(taint: &v1::Taint) -> String {
    let v1::Taint { key, value, effect, .. } = taint;
    match value.as_deref() {
        None | Some("") => format!("{key}:{effect}"),
        Some(value) => format!("{key}={value}:{effect}"),
    }
}

/// What of a Node is left out.
#[derive(Default)]
struct LeftOut {
    names: Vec<Box<str>>,
    bytes: usize,
    /// The number of names that are not named.
    more: usize,
}

impl LeftOut {
    /// The entries of a map that are sent.
    fn map(
        &mut self,
        field: &str,
        entries: Option<&BTreeMap<String, String>>,
    ) -> BTreeMap<Box<str>, Box<str>> {
        let mut room = NODE_ENTRIES;
        let mut taken = BTreeMap::new();
        for (key, value) in entries.into_iter().flatten() {
            if fits(size(key).saturating_add(size(value)), &mut room) {
                taken.insert(key.as_str().into(), value.as_str().into());
            } else {
                self.add(field, key);
            }
        }
        taken
    }

    /// The entries of a list that are sent.
    fn list(&mut self, field: &str, entries: impl IntoIterator<Item = String>) -> Vec<Box<str>> {
        let mut room = NODE_ENTRIES;
        let mut taken = Vec::new();
        for entry in entries {
            if fits(size(&entry), &mut room) {
                taken.push(entry.into());
            } else {
                self.add(field, &entry);
            }
        }
        taken
    }

    fn add(&mut self, field: &str, name: &str) {
        let shown: String = name.chars().take(NAME_SHOWN).collect();
        let cut = if shown.len() < name.len() { "…" } else { "" };
        let text = format!("{field}/{shown}{cut}");
        let bytes = self.bytes.saturating_add(size(&text));
        if bytes > NODE_ENTRIES {
            self.more += 1;
            return;
        }
        self.bytes = bytes;
        self.names.push(text.into());
    }

    fn names(mut self) -> Vec<Box<str>> {
        if self.more > 0 {
            self.names.push(format!("and {} more", self.more).into());
        }
        self.names
    }
}

/// Takes an entry's bytes out of the room, if the entry fits.
fn fits(bytes: usize, room: &mut usize) -> bool {
    match room.checked_sub(bytes) {
        Some(left) if bytes <= NODE_ENTRY => {
            *room = left;
            true
        }
        _ => false,
    }
}

/// The bytes of a text in JSON.
fn size(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

#[cfg(test)]
mod tests {
    use proto::control::metadata::LARGEST;
    use serde_json::{Value, json};

    use super::*;

    fn stripped(object: Value) -> NodeObject {
        let observed = node(&serde_json::from_value(object).unwrap()).unwrap();
        match observed.object.as_ref() {
            Object::Node(node) => node.clone(),
            _ => panic!("another kind"),
        }
    }

    #[test]
    fn a_node_is_stripped_to_what_concerns_its_volumes() {
        let node = stripped(json!({
            "metadata": {"name": "n1", "labels": {"site": "north"}, "annotations": {"a": "b"}},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [
                {"key": "site", "value": "north", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
            ]},
            "status": {"volumesAttached": [{"name": "v2", "devicePath": ""},
                {"name": "v1", "devicePath": ""}], "volumesInUse": ["v2", "v1"]},
        }));
        let expected = NodeObject {
            name: "n1".into(),
            labels: [("site".into(), "north".into())].into(),
            annotations: [("a".into(), "b".into())].into(),
            taints: ["site=north:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"]
                .map(Into::into)
                .into(),
            volumes_attached: ["v1", "v2"].map(Into::into).into(),
            volumes_in_use: ["v1", "v2"].map(Into::into).into(),
            left_out: Vec::new(),
        };
        assert_eq!(node, expected);
        let bare = stripped(json!({"metadata": {"name": "n2"}}));
        assert_eq!(bare, NodeObject { name: "n2".into(), ..NodeObject::default() });
    }

    #[test]
    fn what_is_too_large_is_left_out_whole_and_named() {
        // With the quotes of both and the key.
        let largest = "x".repeat(NODE_ENTRY - 5);
        let annotations = json!({"a": largest, "b": largest + "x", "c": "kept"});
        let long = "v".repeat(NODE_ENTRY);
        let node = stripped(json!({
            "metadata": {"name": "n1", "annotations": annotations},
            "status": {"volumesInUse": [long, "v1"]},
        }));
        let keys: Vec<_> = node.annotations.keys().map(|key| &**key).collect();
        assert_eq!(keys, ["a", "c"]);
        assert_eq!(*node.volumes_in_use, ["v1".into()]);
        let cut = format!("volumes_in_use/{}…", "v".repeat(NAME_SHOWN));
        assert_eq!(*node.left_out, ["annotations/b".into(), cut.into()]);
    }

    #[test]
    fn any_node_can_be_sent() {
        // Each character takes six bytes in JSON.
        let value = "\u{1}".repeat(120);
        let entries: BTreeMap<_, _> =
            (0..2000).map(|i| (format!("key{i:04}-{}", "k".repeat(200)), &value)).collect();
        let names: Vec<_> = entries.keys().collect();
        let attached: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        let taints: Vec<_> =
            names.iter().map(|name| json!({"key": name, "effect": "NoExecute"})).collect();
        let observed = node(
            &serde_json::from_value(json!({
                "metadata": {"name": "n1", "labels": entries, "annotations": entries},
                "spec": {"taints": taints},
                "status": {"volumesAttached": attached, "volumesInUse": names},
            }))
            .unwrap(),
        );
        let Object::Node(node) = observed.unwrap().object.as_ref().clone() else { panic!() };
        assert!(node.left_out.last().unwrap().ends_with(" more"), "{:?}", node.left_out.last());
        assert!(!node.labels.is_empty() && node.labels.len() < entries.len());
        let text = serde_json::to_string(&Object::Node(node)).unwrap();
        assert!(text.len() <= LARGEST, "{} bytes", text.len());
    }
}
