//! Plans for nodes: from each state to the wanted one, past other managers' fields.

use serde_json::json;

use crate::kubernetes::managed_fields::MANAGER;
use crate::kubernetes::managed_fields::tests::managed;
use crate::kubernetes::mirror::{KnownEntry, NODE_IDS};
use crate::kubernetes::node::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const KEY: &str = "topology.edge-csi.io/node";

fn want(driver: &str, segments: &[(&str, &str)]) -> WantedDriver {
    let segments =
        segments.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    WantedDriver {
        driver: driver.parse().unwrap(),
        id: format!("{driver}-id"),
        segments,
        most: None,
    }
}

/// The API's objects after a step, if nobody else changes them.
fn after(step: &NodeStep, node: &mut KnownNode, csinode: &mut KnownCsiNode) {
    match step {
        NodeStep::Entries(entries) => {
            csinode.entries.retain(|_, entry| !entry.ours);
            for entry in entries {
                let known = KnownEntry { entry: entry.clone(), ours: true };
                assert!(
                    csinode.entries.insert(entry.name.clone(), known).is_none(),
                    "it was somebody else's"
                );
            }
        }
        NodeStep::Labels { labels, ids, .. } => {
            let ours = std::mem::take(&mut node.our_labels);
            node.labels.retain(|key, _| !ours.contains(key));
            for (key, value) in labels {
                assert!(
                    node.labels.insert(key.clone(), value.clone()).is_none(),
                    "it was somebody else's"
                );
            }
            node.our_labels = labels.keys().cloned().collect();
            if ids.is_some() || (node.our_ids && !node.others_have_ids) {
                node.ids.clone_from(ids);
            }
            node.our_ids = ids.is_some();
        }
    }
}

/// All steps until nothing is to be done.
fn steps(
    wanted: &[WantedDriver],
    node: &mut KnownNode,
    csinode: &mut KnownCsiNode,
) -> Vec<NodeStep> {
    let mut steps = Vec::new();
    while let Some(step) = plan(wanted, node, csinode, |_| true).step {
        after(&step, node, csinode);
        steps.push(step);
        assert!(steps.len() < 10, "it never ends: {steps:?}");
    }
    steps
}

fn theirs(driver: &str) -> KnownEntry {
    let entry =
        CSINodeDriver { name: driver.into(), node_id: "k".into(), ..CSINodeDriver::default() };
    KnownEntry { entry, ours: false }
}

#[test]
fn labels_come_before_entries_and_go_after_them() {
    let mut node = KnownNode::default();
    let mut csinode = KnownCsiNode::default();
    let wanted = [want("a.example", &[(KEY, "n1")]), want("b.example", &[])];
    let came = steps(&wanted, &mut node, &mut csinode);
    assert!(
        matches!(&came[..], [NodeStep::Labels { .. }, NodeStep::Entries(both)] if both.len() == 2),
        "{came:?}"
    );
    assert_eq!(node.labels[KEY], "n1");
    assert_eq!(
        node.ids.as_deref(),
        Some(r#"{"a.example":"a.example-id","b.example":"b.example-id"}"#)
    );
    let entry = &csinode.entries["a.example"].entry;
    assert_eq!(
        (entry.topology_keys.clone(), entry.allocatable.clone()),
        (Some(vec![KEY.into()]), None)
    );
    assert_eq!(csinode.entries["b.example"].entry.topology_keys, None);
    let went = steps(&[], &mut node, &mut csinode);
    assert!(
        matches!(&went[..], [NodeStep::Entries(none), NodeStep::Labels { .. }] if none.is_empty()),
        "{went:?}"
    );
    assert_eq!((node, csinode), Default::default());
}

/// The API lets nobody change an entry.
#[test]
fn an_entry_that_changes_goes_and_comes_again() {
    let mut node = KnownNode::default();
    let mut csinode = KnownCsiNode::default();
    steps(&[want("a.example", &[(KEY, "n1")])], &mut node, &mut csinode);
    let more = WantedDriver { most: Some(7), ..want("a.example", &[(KEY, "n1")]) };
    let changed = steps(std::slice::from_ref(&more), &mut node, &mut csinode);
    let [NodeStep::Entries(withdrawn), NodeStep::Entries(applied)] = &changed[..] else {
        panic!("{changed:?}")
    };
    assert_eq!((withdrawn.len(), applied.len()), (0, 1));
    let other = WantedDriver { segments: [("rack".to_owned(), "r".to_owned())].into(), ..more };
    let changed = steps(&[other], &mut node, &mut csinode);
    assert!(
        matches!(
            &changed[..],
            [NodeStep::Entries(_), NodeStep::Labels { .. }, NodeStep::Entries(_)]
        ),
        "{changed:?}"
    );
    assert_eq!(node.labels, [("rack".to_owned(), "r".to_owned())].into());
}

#[test]
fn what_a_kubelet_published_is_its_own() {
    let mut node = KnownNode {
        labels: [(KEY.to_owned(), "n1".to_owned())].into(),
        ids: Some(r#"{"a.example":"k"}"#.into()),
        others_have_ids: true,
        ..KnownNode::default()
    };
    let mut csinode = KnownCsiNode {
        entries: [("a.example".to_owned(), theirs("a.example"))].into(),
        ..KnownCsiNode::default()
    };
    let a = want("a.example", &[(KEY, "n1")]);
    assert_eq!(plan(std::slice::from_ref(&a), &node, &csinode, |_| true), NodePlan::default());
    // Another driver of the same node is published too, and its id is added to the kubelet's.
    let both = [a, want("b.example", &[(KEY, "n1")])];
    let came = steps(&both, &mut node, &mut csinode);
    let ids = r#"{"a.example":"k","b.example":"b.example-id"}"#;
    let first = NodeStep::Labels { labels: BTreeMap::new(), ids: Some(ids.into()), shared: true };
    assert_eq!(came[0], first);
    assert_eq!(csinode.entries.values().filter(|entry| entry.ours).count(), 1);
    // When it goes, the kubelet's fields stay.
    steps(&[], &mut node, &mut csinode);
    assert_eq!(csinode.entries.keys().collect::<Vec<_>>(), ["a.example"]);
    assert_eq!(node.ids.as_deref(), Some(r#"{"a.example":"k"}"#));
    assert_eq!(node.labels[KEY], "n1");
}

#[test]
fn a_kubelet_has_its_time() {
    let node = KnownNode::default();
    let csinode = KnownCsiNode::default();
    let waits = plan(&[want("a.example", &[])], &node, &csinode, |_| false);
    let missing = vec!["a.example".parse().unwrap()];
    assert_eq!((waits.step, &waits.missing), (None, &missing));
    // It is missing until there is an entry.
    assert_eq!(plan(&[want("a.example", &[])], &node, &csinode, |_| true).missing, missing);
}

#[test]
fn a_label_that_says_something_else_keeps_its_driver_out_and_no_other() {
    let mut node = KnownNode {
        labels: [("zone".to_owned(), "west".to_owned())].into(),
        ..KnownNode::default()
    };
    let mut csinode = KnownCsiNode::default();
    let wanted = [
        want("a.example", &[("zone", "east")]),
        want("b.example", &[("zone", "west"), ("rack", "1")]),
        want("c.example", &[("rack", "2")]),
        want("d.example", &[("node-role.kubernetes.io/master", "")]),
    ];
    let planned = plan(&wanted, &node, &csinode, |_| true);
    let out: Vec<_> =
        planned.collisions.iter().map(|out| (out.driver.as_str(), out.why.as_str())).collect();
    assert_eq!(
        out,
        [
            ("a.example", "the node has it with the value \"west\""),
            ("c.example", "the driver b.example says another value of it"),
            ("d.example", "only an administrator may set such a label"),
        ]
    );
    steps(&wanted, &mut node, &mut csinode);
    assert_eq!(csinode.entries.keys().collect::<Vec<_>>(), ["b.example"]);
    // A label that was there before is not ours, though its value is the wanted one.
    assert_eq!(node.our_labels, ["rack".to_owned()].into());
    // Another manager took over a label of ours: the entries that rely on it go.
    node.labels.insert("rack".into(), "9".into());
    node.our_labels.clear();
    steps(&wanted[1..2], &mut node, &mut csinode);
    assert!(csinode.entries.is_empty() && node.labels["rack"] == "9");
}

#[test]
fn a_label_that_somebody_else_says_too_is_not_changed() {
    let mut node = KnownNode::default();
    let mut csinode = KnownCsiNode::default();
    steps(&[want("a.example", &[("rack", "1")])], &mut node, &mut csinode);
    node.their_labels = ["rack".to_owned()].into();
    assert_eq!(
        plan(&[want("a.example", &[("rack", "1")])], &node, &csinode, |_| true),
        NodePlan::default()
    );
    let planned = plan(&[want("a.example", &[("rack", "2")])], &node, &csinode, |_| true);
    assert_eq!(planned.collisions.len(), 1, "it would be overwritten");
    assert_eq!(planned.step, Some(NodeStep::Entries(vec![])));
}

#[test]
fn a_driver_is_published_as_its_nodes_front_shows_it() {
    let info = csi::NodeGetInfoResponse {
        node_id: "id-1".into(),
        max_volumes_per_node: i64::MAX,
        accessible_topology: None,
    };
    let at = NodeDriver { info: Some(info.encode_to_vec().into()), ..NodeDriver::default() };
    let driver = "a.example".parse().unwrap();
    let node = "n1".parse().unwrap();
    let of = |at: &NodeDriver, scope| wanted(&driver, &node, at, scope);
    let one = of(&at, Scope::Node).unwrap();
    assert_eq!((one.id.as_str(), one.most), ("id-1", Some(i32::MAX)));
    assert_eq!(one.segments, [(KEY.to_owned(), "n1".to_owned())].into());
    assert!(of(&at, Scope::Shared).unwrap().segments.is_empty());
    let nobody = csi::NodeGetInfoResponse::default().encode_to_vec();
    assert_eq!(
        of(&NodeDriver { info: Some(nobody.into()), ..NodeDriver::default() }, Scope::Node),
        None
    );
    assert_eq!(of(&NodeDriver::default(), Scope::Node), None);
    assert_eq!(
        of(
            &NodeDriver { info: Some(b"\xff".as_slice().into()), ..NodeDriver::default() },
            Scope::Node
        ),
        None
    );
}

#[test]
fn what_is_ours_is_read_from_the_managers() {
    let metadata = ObjectMeta {
        labels: Some([(KEY.to_owned(), "n1".to_owned()), ("x".to_owned(), "y".to_owned())].into()),
        annotations: Some([(NODE_IDS.to_owned(), "{}".to_owned())].into()),
        managed_fields: Some(vec![
            managed(
                "kubelet",
                "Update",
                json!({ "f:metadata": { "f:annotations": { format!("f:{NODE_IDS}"): {} } } }),
            ),
            managed(
                MANAGER,
                "Apply",
                json!({ "f:metadata": { "f:labels": { format!("f:{KEY}"): {} } } }),
            ),
        ]),
        ..ObjectMeta::default()
    };
    let known = KnownNode::of(&metadata);
    assert_eq!(known.our_labels, [KEY.to_owned()].into());
    assert!(known.their_labels.is_empty());
    assert!(!known.our_ids && known.others_have_ids && known.ids.as_deref() == Some("{}"));
}
