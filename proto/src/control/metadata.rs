//! Objects of Kubernetes that concern the volumes of one node, as the cloud sends them to its edge.
//!
//! A transfer is one part or several, and counts as a whole. It leads from one position to another,
//! or replaces all that the edge has. Secrets, and the parameters of volumes, are not among it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The size of the objects of a part, in bytes. A larger object makes a part alone.
pub const PART: usize = 32 * 1024;
/// The largest object that is sent, in bytes of JSON.
pub const LARGEST: usize = 128 * 1024;
/// The most objects in one transfer.
pub const MOST: usize = 16 * 1024;

/// The position of an edge in the metadata of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The csi-cloud that counts the revisions, drawn at its start; zero for an edge with nothing.
    pub epoch: u64,
    /// The last change that the edge has.
    pub revision: u64,
}

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A Pod.
    Pod,
    /// A PersistentVolumeClaim.
    Claim,
    /// A PersistentVolume.
    Volume,
    /// A VolumeAttachment.
    Attachment,
    /// A CSIDriver.
    Driver,
    /// A RuntimeClass.
    RuntimeClass,
    /// A Node; only to an edge whose hello has `takes_node`.
    Node,
}

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for one of the whole cluster.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

impl Key {
    /// The key of an object in a namespace.
    pub fn within(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object of the whole cluster.
    pub fn of_cluster(kind: Kind, name: &str) -> Self {
        Self::within(kind, "", name)
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Object {
    /// A Pod of the node.
    Pod(Pod),
    /// A claim that a Pod of the node uses.
    Claim(Claim),
    /// A volume that such a claim is bound to, or that is attached to the node.
    Volume(Volume),
    /// An attachment to the node.
    Attachment(Attachment),
    /// A driver of such volumes.
    Driver(Driver),
    /// A RuntimeClass of the node's Pods.
    RuntimeClass(RuntimeClass),
    /// The node itself.
    Node(NodeObject),
}

/// The name of csi-edge's NRI plugin at the container runtime.
pub const NRI_PLUGIN: &str = "edge-csi-direct";
/// The annotation of a Pod with the NRI plugins that its containers need.
pub const REQUIRED_PLUGINS: &str = "required-plugins.noderesource.dev";

/// A Pod that uses volumes of CSI drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// Its volumes of claims and of inline drivers.
    pub volumes: Box<[PodVolume]>,
    /// Its RuntimeClass, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<Box<str>>,
    /// Its fsGroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<i64>,
    /// Its fsGroupChangePolicy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group_policy: Option<Box<str>>,
    /// True if its annotations have NRI refuse its containers without [`NRI_PLUGIN`].
    #[serde(skip_serializing_if = "is_false")]
    pub requires_plugin: bool,
    /// True if it is being deleted.
    #[serde(skip_serializing_if = "is_false")]
    pub deleting: bool,
}

/// A volume of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodVolume {
    /// Its name in the Pod.
    pub name: Box<str>,
    /// The claim, in the Pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Box<str>>,
    /// The driver of an inline volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<Box<str>>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// The PersistentVolume that it names, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<Box<str>>,
    /// True if it is being deleted.
    #[serde(skip_serializing_if = "is_false")]
    pub deleting: bool,
}

/// A PersistentVolume of a CSI driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Its name.
    pub name: Box<str>,
    /// Its driver.
    pub driver: Box<str>,
    /// Its id at the driver.
    pub handle: Box<str>,
    /// The namespace and the name of its claim, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<(Box<str>, Box<str>)>,
    /// True if it is being deleted.
    #[serde(skip_serializing_if = "is_false")]
    pub deleting: bool,
}

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// Its name.
    pub name: Box<str>,
    /// The PersistentVolume.
    pub volume: Box<str>,
    /// The node.
    pub node: Box<str>,
    /// True if it is attached.
    #[serde(skip_serializing_if = "is_false")]
    pub attached: bool,
    /// True if it is being deleted.
    #[serde(skip_serializing_if = "is_false")]
    pub deleting: bool,
}

/// A CSIDriver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Driver {
    /// Its name.
    pub name: Box<str>,
    /// True if its volumes need an attachment.
    #[serde(skip_serializing_if = "is_false")]
    pub attach_required: bool,
    /// True if the kubelet names the Pod to it.
    #[serde(skip_serializing_if = "is_false")]
    pub pod_info_on_mount: bool,
    /// Its fsGroupPolicy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group_policy: Option<Box<str>>,
}

/// A RuntimeClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeClass {
    /// Its name.
    pub name: Box<str>,
    /// Its handler.
    pub handler: Box<str>,
    /// True if the cloud's operator says that such a handler takes direct volumes.
    #[serde(skip_serializing_if = "is_false")]
    pub direct: bool,
    /// True if it is so since 0.3 only, when Kata's handlers were added to the operator's list.
    #[serde(skip_serializing_if = "is_false")]
    pub added: bool,
}

/// The largest entry of a Node that is sent, in bytes of JSON.
pub const NODE_ENTRY: usize = 1024;
/// The most bytes of JSON that the entries of one list or map of a Node have together.
pub const NODE_ENTRIES: usize = 16 * 1024;

/// A Node. An entry that is too large, or of which there are too many, is left out as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    /// Its name.
    pub name: Box<str>,
    /// Its labels.
    pub labels: BTreeMap<Box<str>, Box<str>>,
    /// Its annotations.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// Its taints, as kubectl writes them: `KEY=VALUE:EFFECT`.
    pub taints: Vec<Box<str>>,
    /// The names of the volumes in its `status.volumesAttached`.
    pub volumes_attached: Vec<Box<str>>,
    /// The names of the volumes in its `status.volumesInUse`.
    pub volumes_in_use: Vec<Box<str>>,
    /// The fields and keys of what is left out, such as `annotations/example.com/large`.
    pub left_out: Vec<Box<str>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Object {
    /// Its key.
    pub fn key(&self) -> Key {
        match self {
            Self::Pod(pod) => Key::within(Kind::Pod, &pod.namespace, &pod.name),
            Self::Claim(claim) => Key::within(Kind::Claim, &claim.namespace, &claim.name),
            Self::Volume(volume) => Key::of_cluster(Kind::Volume, &volume.name),
            Self::Attachment(of) => Key::of_cluster(Kind::Attachment, &of.name),
            Self::Driver(driver) => Key::of_cluster(Kind::Driver, &driver.name),
            Self::RuntimeClass(class) => Key::of_cluster(Kind::RuntimeClass, &class.name),
            Self::Node(node) => Key::of_cluster(Kind::Node, &node.name),
        }
    }
}

/// A part of a transfer. The edge answers each with its position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The position before the transfer; none if the transfer replaces everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Position>,
    /// The position after the transfer.
    pub to: Position,
    /// The number of this part in its transfer, from zero.
    pub number: u32,
    /// True if this is the last part: the transfer counts now.
    #[serde(default, skip_serializing_if = "is_false")]
    pub last: bool,
    /// Objects that are new or have changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Object>,
    /// Objects that are gone, or do not concern the node any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Key>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::hello::Message;

    #[test]
    fn a_part_on_the_wire_is_this() {
        let class = RuntimeClass {
            name: "kata".into(),
            handler: "kata-qemu".into(),
            direct: true,
            ..RuntimeClass::default()
        };
        let part = Part {
            from: Some(Position { epoch: 7, revision: 3 }),
            to: Position { epoch: 7, revision: 5 },
            number: 0,
            last: true,
            objects: vec![Object::RuntimeClass(class)],
            gone: vec![Key::within(Kind::Pod, "shop", "db-0"), Key::of_cluster(Kind::Volume, "v")],
        };
        let text = Message::Metadata(part.clone()).encode().unwrap();
        let class = r#"{"runtime_class":{"name":"kata","handler":"kata-qemu","direct":true}}"#;
        let gone =
            r#"[{"kind":"pod","namespace":"shop","name":"db-0"},{"kind":"volume","name":"v"}]"#;
        let at = r#""from":{"epoch":7,"revision":3},"to":{"epoch":7,"revision":5}"#;
        let part_text = format!(
            r#"{{"metadata":{{{at},"number":0,"last":true,"objects":[{class}],"gone":{gone}}}}}"#
        );
        assert_eq!(text, part_text);
        assert_eq!(Message::decode(text.as_bytes()).unwrap(), Message::Metadata(part));
        let taken = Message::MetadataTaken(Position { epoch: 7, revision: 5 });
        let text = taken.encode().unwrap();
        assert_eq!(text, r#"{"metadata_taken":{"epoch":7,"revision":5}}"#);
        assert_eq!(Message::decode(text.as_bytes()).unwrap(), taken);
    }

    #[test]
    fn a_node_on_the_wire_is_this() {
        let node = NodeObject {
            name: "n1".into(),
            labels: [("site".into(), "north".into())].into(),
            taints: vec!["site=north:NoSchedule".into()],
            volumes_in_use: vec!["kubernetes.io/csi/d.example^v1".into()],
            left_out: vec!["annotations/large".into()],
            ..NodeObject::default()
        };
        let object = Object::Node(node);
        assert_eq!(object.key(), Key::of_cluster(Kind::Node, "n1"));
        let expected = concat!(
            r#"{"node":{"name":"n1","labels":{"site":"north"},"annotations":{},"#,
            r#""taints":["site=north:NoSchedule"],"volumes_attached":[],"#,
            r#""volumes_in_use":["kubernetes.io/csi/d.example^v1"],"#,
            r#""left_out":["annotations/large"]}}"#
        );
        assert_eq!(serde_json::to_string(&object).unwrap(), expected);
        assert_eq!(serde_json::from_str::<Object>(expected).unwrap(), object);
        let short: Object = serde_json::from_str(r#"{"node":{"name":"n1"}}"#).unwrap();
        assert_eq!(short.key(), object.key());
    }

    #[test]
    fn fields_that_are_newer_than_we_are_do_not_matter() {
        let text = br#"{"pod":{"namespace":"n","name":"p","uid":"u","mood":"good"}}"#;
        let object: Object = serde_json::from_slice(text).unwrap();
        assert_eq!(object.key(), Key::within(Kind::Pod, "n", "p"));
    }
}
