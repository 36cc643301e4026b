//! Lists the drivers whose topology csi-cloud alone publishes, so that the node's front may omit
//! it.
//!
//! Pure. A kubelet writes its own entry at each registration, and nobody can change an entry. So
//! the front omits topology only where no kubelet owns a part of the CSINode. A kubelet makes its
//! CSINode before it registers a driver, so it is seen in time.

use std::collections::BTreeSet;

use proto::names::{DriverName, NodeName};

use crate::kubernetes::mirror::{KnownCsiNode, KnownNode};

/// The label that KubeEdge sets on its nodes, whose kubelet publishes nothing.
pub(super) const EDGE_ROLE: &str = "node-role.kubernetes.io/edge";

/// True if the node's kubelet never publishes an entry, so that csi-cloud need not wait for one.
pub(super) fn is_edge(node: &KnownNode) -> bool {
    node.labels.contains_key(EDGE_ROLE)
}

/// The drivers of a node, if csi-cloud owns the whole CSINode.
pub(super) fn published(csinode: &KnownCsiNode) -> BTreeSet<DriverName> {
    if csinode.other.is_some() {
        return BTreeSet::new();
    }
    let ours = csinode.entries.iter().filter(|(_, known)| known.ours);
    ours.filter_map(|(driver, _)| driver.parse().ok()).collect()
}

/// The drivers of each node that still has its Node object.
pub(super) fn all<'a>(
    csinodes: impl Iterator<Item = (&'a String, &'a KnownCsiNode)>,
    has_node: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (NodeName, BTreeSet<DriverName>)> {
    csinodes.filter(move |(name, _)| has_node(name)).filter_map(|(name, csinode)| {
        let drivers = published(csinode);
        Some((name.parse().ok()?, drivers)).filter(|(_, drivers)| !drivers.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::storage::v1::CSINode;
    use serde_json::json;

    use super::*;

    /// A CSINode with an entry of `a.b` by us, and what other managers have of it.
    fn csinode(others: &[serde_json::Value]) -> KnownCsiNode {
        let ours = json!({
            "manager": "edge-csi", "operation": "Apply", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:drivers": {"k:{\"name\":\"a.b\"}": {".": {}}}}},
        });
        let managers: Vec<_> = [ours].into_iter().chain(others.iter().cloned()).collect();
        let entries = json!([{"name": "a.b", "nodeID": "n1", "topologyKeys": ["k"]}]);
        let object = json!({
            "metadata": {"name": "n1", "managedFields": managers},
            "spec": {"drivers": entries},
        });
        KnownCsiNode::of(&serde_json::from_value::<CSINode>(object).unwrap())
    }

    fn kubelet(fields: serde_json::Value) -> serde_json::Value {
        json!({"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1",
            "fieldsV1": fields})
    }

    #[test]
    fn topology_is_left_out_only_where_no_kubelet_has_a_part_of_the_csinode() {
        let driver: DriverName = "a.b".parse().unwrap();
        assert_eq!(published(&csinode(&[])), [driver].into());
        // A kubelet has begun to use the object, and registers its drivers next.
        let begun = kubelet(json!({"f:metadata": {"f:annotations": {}}}));
        assert_eq!(published(&csinode(&[begun])), BTreeSet::new());
        let vendor = json!({"f:spec": {"f:drivers": {"k:{\"name\":\"c.d\"}": {".": {}}}}});
        assert_eq!(published(&csinode(&[kubelet(vendor)])), BTreeSet::new());
        // Its own entry, of which it is the only manager.
        let mut theirs = csinode(&[]);
        theirs.entries.values_mut().for_each(|entry| entry.ours = false);
        assert_eq!(published(&theirs), BTreeSet::new());
        assert_eq!(published(&KnownCsiNode::default()), BTreeSet::new());
    }

    #[test]
    fn a_node_that_was_deleted_begins_anew() {
        let csinodes = [("n1".to_owned(), csinode(&[])), ("n2".to_owned(), csinode(&[]))];
        let csinodes = || csinodes.iter().map(|(name, csinode)| (name, csinode));
        let nodes: Vec<_> = all(csinodes(), |name| name == "n2").map(|(name, _)| name).collect();
        assert_eq!(nodes, ["n2".parse().unwrap()]);
    }
}
