//! The facts of VolumeSnapshots, their classes and contents. Pure.
//!
//! They are custom resources of the external snapshotter, so they have no types in our API crate.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use proto::host::plain;
use serde_json::Value;

use crate::kubernetes::object_facts::{SNAPSHOTS, ending};

/// A kind of the external snapshotter.
#[derive(Clone, Copy, Debug)]
pub(super) enum SnapshotKind {
    /// VolumeSnapshot
    Snapshot,
    /// VolumeSnapshotClass
    Class,
    /// VolumeSnapshotContent
    Content,
}

impl SnapshotKind {
    /// The resource at the API server.
    pub(super) fn resource(self) -> ApiResource {
        let (kind, plural) = match self {
            Self::Snapshot => ("VolumeSnapshot", "volumesnapshots"),
            Self::Class => ("VolumeSnapshotClass", "volumesnapshotclasses"),
            Self::Content => ("VolumeSnapshotContent", "volumesnapshotcontents"),
        };
        let kind = GroupVersionKind::gvk(SNAPSHOTS, "v1", kind);
        ApiResource::from_gvk_with_plural(&kind, plural)
    }
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// Its uid, of which the snapshot's name is made.
    pub uid: String,
    /// The name of its class.
    pub class: Option<String>,
    /// The name of the claim of which it is made.
    pub claim: Option<String>,
    /// The name of its content: bound, or named by its user.
    pub content: Option<String>,
    /// True if it can be used.
    pub is_ready: bool,
    /// The error that snapshot-controller or external-snapshotter reports.
    pub error: Option<String>,
    /// Its finalizers, if it is being deleted.
    pub ending: Option<Vec<String>>,
}

/// A VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentFacts {
    /// Its driver.
    pub driver: String,
    /// The id of the volume of which it is made.
    pub volume: Option<String>,
    /// The id of the snapshot.
    pub snapshot: Option<String>,
    /// True if it can be used.
    pub is_ready: bool,
    /// The error that external-snapshotter reports.
    pub error: Option<String>,
    /// Its finalizers, if it is being deleted.
    pub ending: Option<Vec<String>>,
}

fn text(object: &DynamicObject, pointer: &str) -> Option<String> {
    let text = object.data.pointer(pointer).and_then(Value::as_str)?;
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn is_true(object: &DynamicObject, pointer: &str) -> bool {
    object.data.pointer(pointer) == Some(&Value::Bool(true))
}

impl SnapshotFacts {
    /// Reads a VolumeSnapshot.
    pub(super) fn of(object: &DynamicObject) -> Self {
        let content = text(object, "/status/boundVolumeSnapshotContentName");
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            class: text(object, "/spec/volumeSnapshotClassName"),
            claim: text(object, "/spec/source/persistentVolumeClaimName"),
            content: content.or_else(|| text(object, "/spec/source/volumeSnapshotContentName")),
            is_ready: is_true(object, "/status/readyToUse"),
            error: text(object, "/status/error/message").map(|text| plain(&text)),
            ending: ending(&object.metadata),
        }
    }
}

impl ContentFacts {
    /// Reads a VolumeSnapshotContent.
    pub(super) fn of(object: &DynamicObject) -> Self {
        let handle = text(object, "/status/snapshotHandle");
        Self {
            driver: text(object, "/spec/driver").unwrap_or_default(),
            volume: text(object, "/spec/source/volumeHandle"),
            snapshot: handle.or_else(|| text(object, "/spec/source/snapshotHandle")),
            is_ready: is_true(object, "/status/readyToUse"),
            error: text(object, "/status/error/message").map(|text| plain(&text)),
            ending: ending(&object.metadata),
        }
    }
}

/// The driver of a VolumeSnapshotClass.
pub(super) fn driver_of_class(class: &DynamicObject) -> String {
    text(class, "/driver").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_snapshot_says_its_source_and_how_far_it_is() {
        let snapshot = SnapshotFacts::of(&object(json!({
            "metadata": {"uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"volumeSnapshotClassName": "daily",
                "source": {"persistentVolumeClaimName": "data"}},
            "status": {"readyToUse": false, "error": {"message": "node n1\u{1b}"}},
        })));
        let expected = SnapshotFacts {
            uid: "u1".into(),
            class: Some("daily".into()),
            claim: Some("data".into()),
            content: None,
            is_ready: false,
            error: Some("node n1\\u{1b}".into()),
            ending: Some(Vec::new()),
        };
        assert_eq!(snapshot, expected);
        let by_hand = SnapshotFacts::of(&object(json!({
            "metadata": {},
            "spec": {"source": {"volumeSnapshotContentName": "content-1"}},
            "status": {"readyToUse": true},
        })));
        assert_eq!((by_hand.content.as_deref(), by_hand.is_ready), (Some("content-1"), true));
    }

    #[test]
    fn a_content_says_its_ids() {
        let content = |source: Value, status: Value| {
            ContentFacts::of(&object(json!({
                "metadata": {},
                "spec": {"driver": "d.example", "source": source},
                "status": status,
            })))
        };
        let made = content(
            json!({"volumeHandle": "v1"}),
            json!({"snapshotHandle": "s1", "readyToUse": true}),
        );
        let expected = ContentFacts {
            driver: "d.example".into(),
            volume: Some("v1".into()),
            snapshot: Some("s1".into()),
            is_ready: true,
            ..ContentFacts::default()
        };
        assert_eq!(made, expected);
        let by_hand = content(json!({"snapshotHandle": "s2"}), Value::Null);
        assert_eq!((by_hand.volume, by_hand.snapshot.as_deref()), (None, Some("s2")));
    }

    #[test]
    fn a_class_names_its_driver() {
        let class = object(json!({"metadata": {}, "driver": "d.example"}));
        assert_eq!(driver_of_class(&class), "d.example");
    }
}
