//! The managers of an object's fields, of its `managedFields`.
//!
//! We never change a field of another manager, and withdraw only fields that we applied.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::Value;

/// Our name as a manager. It never changes: fields that an older csi-cloud applied are ours.
pub(super) const MANAGER: &str = "edge-csi";

/// The managers of an object's fields.
pub(super) struct ManagedFields<'a>(&'a [ManagedFieldsEntry]);

impl<'a> ManagedFields<'a> {
    /// The managers of an object with this metadata.
    pub(super) fn of(metadata: &'a ObjectMeta) -> Self {
        Self(metadata.managed_fields.as_deref().unwrap_or_default())
    }

    /// The fields that csi-cloud applied below a path of the field set, for example `["f:spec"]`.
    pub(super) fn ours(&self, path: &[&str]) -> Option<&'a Value> {
        self.0.iter().filter(|entry| is_ours(entry)).find_map(|entry| at(entry, path))
    }

    /// The fields or map keys that we applied below a path.
    pub(super) fn our_names(&self, path: &[&str]) -> BTreeSet<String> {
        self.ours(path).into_iter().flat_map(names).collect()
    }

    /// The fields or map keys that others have below a path.
    pub(super) fn other_names(&self, path: &[&str]) -> BTreeSet<String> {
        let others = self.0.iter().filter(|entry| !is_ours(entry));
        others.filter_map(|entry| at(entry, path)).flat_map(names).collect()
    }

    /// The first other manager that has something below a path.
    pub(super) fn other(&self, path: &[&str]) -> Option<&'a str> {
        let others = self.0.iter().filter(|entry| !is_ours(entry));
        others.filter(|entry| at(entry, path).is_some()).find_map(|entry| entry.manager.as_deref())
    }
}

fn names(fields: &Value) -> impl Iterator<Item = String> {
    let fields = fields.as_object().into_iter().flatten();
    fields.filter_map(|(key, _)| key.strip_prefix("f:")).map(Into::into)
}

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(MANAGER)
        && entry.operation.as_deref() == Some("Apply")
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

fn at<'a>(entry: &'a ManagedFieldsEntry, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(&entry.fields_v1.as_ref()?.0, |fields, key| fields.get(key))
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
    use serde_json::json;

    use super::*;

    /// One manager's part of an object.
    pub(crate) fn managed(manager: &str, operation: &str, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.into()),
            operation: Some(operation.into()),
            fields_v1: Some(FieldsV1(fields)),
            ..Default::default()
        }
    }

    #[test]
    fn only_what_we_applied_is_ours() {
        let spec = json!({ "f:spec": { ".": {}, "f:a": {}, "f:b": { "f:c": {} } } });
        let metadata = ObjectMeta {
            managed_fields: Some(vec![
                managed("kubelet", "Update", json!({ "f:metadata": {} })),
                managed(MANAGER, "Update", json!({ "f:spec": { "f:z": {} } })),
                managed(MANAGER, "Apply", spec),
            ]),
            ..ObjectMeta::default()
        };
        let owners = ManagedFields::of(&metadata);
        assert_eq!(owners.our_names(&["f:spec"]), ["a".to_owned(), "b".to_owned()].into());
        assert!(
            owners.ours(&["f:metadata"]).is_none()
                && owners.ours(&["f:spec", "f:b", "f:c"]).is_some()
        );
        assert_eq!(owners.other(&["f:metadata"]), Some("kubelet"));
        // An update under our name is not an apply of ours.
        assert_eq!(owners.other(&["f:spec"]), Some(MANAGER));
        let none = ObjectMeta::default();
        assert!(
            ManagedFields::of(&none).ours(&[]).is_none()
                && ManagedFields::of(&none).other(&[]).is_none()
        );
    }
}
