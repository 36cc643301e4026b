//! Each node of KubeEdge: that it is linked, published by csi-cloud alone, and told so.

use std::collections::BTreeSet;

use proto::admin::doctor::Finding;
use proto::names::DriverName;

use crate::kubernetes::front_topology::EDGE_ROLE;
use crate::kubernetes::mirror::KnownCsiNode;
use crate::kubernetes::settings::Publish;

/// Nodes with problems that are shown.
const SHOWN: usize = 100;

/// The facts about a node that KubeEdge labels.
pub(super) struct EdgeNode<'a> {
    pub(super) name: &'a str,
    pub(super) csinode: Option<&'a KnownCsiNode>,
    /// The drivers with a front that its csi-edge has reported.
    pub(super) drivers: Vec<DriverName>,
    pub(super) is_linked: bool,
    /// The drivers whose topology its front leaves out.
    pub(super) left_out: BTreeSet<DriverName>,
}

/// The findings about all of them.
pub(super) fn findings(nodes: &[EdgeNode<'_>], publish: Publish) -> Vec<Finding> {
    const CHECK: &str = "nodes";
    if nodes.is_empty() {
        return vec![Finding::fault(
            CHECK,
            "Nodes",
            format!("none has the label {EDGE_ROLE}, which KubeEdge sets"),
            "join a node with keadm; if your nodes are labelled otherwise, set the label",
        )];
    }
    let mut findings = vec![published(publish)];
    let problems: Vec<_> = nodes.iter().filter_map(problem).collect();
    let right = nodes.len() - problems.len();
    if right > 0 {
        let found = format!("{right} of {} are right", nodes.len());
        findings.push(Finding::ok(CHECK, "Nodes", found));
    }
    let left_out = problems.len().saturating_sub(SHOWN);
    findings.extend(problems.into_iter().take(SHOWN));
    if left_out > 0 {
        let found = format!("{left_out} more nodes have problems");
        findings.push(Finding::fault(CHECK, "Nodes", found, "mend these, and ask again"));
    }
    findings
}

fn published(publish: Publish) -> Finding {
    const CHECK: &str = "publish-csinode";
    let about = "publish_csinode";
    match publish {
        Publish::On | Publish::Auto => Finding::ok(CHECK, about, "csi-cloud publishes nodes"),
        Publish::Off => Finding::fault(
            CHECK,
            about,
            "it is \"off\", and edged publishes nothing",
            "set publish_csinode = \"auto\" in [kubernetes], and start csi-cloud again",
        ),
    }
}

/// The fault of a node, if it has one.
fn problem(node: &EdgeNode<'_>) -> Option<Finding> {
    let about = format!("Node {}", node.name);
    let (found, advice) = wrong(node)?;
    Some(Finding::fault("nodes", about, found, advice))
}

fn wrong(node: &EdgeNode<'_>) -> Option<(String, String)> {
    if !node.is_linked {
        let advice = "look at csi-edge there: whether it runs, reaches csi-cloud, and has a \
                      certificate; what it was told cannot be seen";
        return Some(("its csi-edge has no link".into(), advice.into()));
    }
    if node.drivers.is_empty() {
        let advice = "`csi-cloud drivers` and `csi-cloud nodes` say why; name the driver in \
                      edge.toml, and give it a front";
        return Some((
            "its csi-edge has reported no driver that has a front".into(),
            advice.into(),
        ));
    }
    if let Some(other) = node.csinode.and_then(|csinode| csinode.other.as_ref()) {
        let found = format!(
            "{other} has a part of its CSINode, so csi-cloud leaves topology to the node's \
             kubelet; edged then needs the cloud to register a driver"
        );
        let advice = format!(
            "if no kubelet but edged runs there, `kubectl delete csinode {}`; csi-cloud makes it \
             again at once",
            node.name
        );
        return Some((found, advice));
    }
    let is_there = |driver: &&DriverName| {
        node.csinode.is_some_and(|csinode| csinode.entries.contains_key(driver.as_str()))
    };
    let list = |drivers: Vec<&DriverName>| {
        drivers.iter().map(|driver| driver.as_str()).collect::<Vec<_>>().join(", ")
    };
    let missing: Vec<_> = node.drivers.iter().filter(|driver| !is_there(driver)).collect();
    if !missing.is_empty() {
        let found = format!("its CSINode has no entry for {}", list(missing));
        let advice = "the log of csi-cloud says why; an Event LabelCollision at the node does if \
                      a segment cannot be a label";
        return Some((found, advice.into()));
    }
    let shown: Vec<_> = node.drivers.iter().filter(|one| !node.left_out.contains(*one)).collect();
    if shown.is_empty() {
        return None;
    }
    let found = format!("its front still shows the topology of {}", list(shown));
    Some((found, "ask again in a few seconds; then look at the log of csi-cloud".into()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::storage::v1::CSINodeDriver;

    use super::*;
    use crate::kubernetes::mirror::KnownEntry;
    use proto::admin::doctor::Verdict;

    fn driver() -> DriverName {
        "a.b".parse().unwrap()
    }

    fn csinode() -> KnownCsiNode {
        let entry = CSINodeDriver { name: "a.b".into(), ..CSINodeDriver::default() };
        let entries = [("a.b".to_owned(), KnownEntry { entry, ours: true })].into();
        KnownCsiNode { entries, other: None }
    }

    fn right<'a>(name: &'a str, csinode: &'a KnownCsiNode) -> EdgeNode<'a> {
        EdgeNode {
            name,
            csinode: Some(csinode),
            drivers: vec![driver()],
            is_linked: true,
            left_out: [driver()].into(),
        }
    }

    /// What is wrong with this node.
    fn says(node: EdgeNode<'_>) -> String {
        let findings = findings(&[node], Publish::Auto);
        let problem = findings.iter().find(|finding| finding.verdict == Verdict::Fault);
        problem.map(|problem| problem.found.clone()).unwrap_or_default()
    }

    #[test]
    fn each_trap_of_a_node_is_told() {
        let csinode = csinode();
        let node = || right("e1", &csinode);
        assert_eq!(says(node()), "");
        assert!(says(EdgeNode { is_linked: false, ..node() }).contains("no link"));
        assert!(says(EdgeNode { drivers: Vec::new(), ..node() }).contains("no driver"));
        let by_hand = KnownCsiNode { other: Some("kubectl".into()), ..csinode.clone() };
        assert!(
            says(EdgeNode { csinode: Some(&by_hand), ..node() }).contains("kubectl has a part")
        );
        let empty = KnownCsiNode::default();
        for missing in [None, Some(&empty)] {
            let said = says(EdgeNode { csinode: missing, ..node() });
            assert!(said.contains("no entry for a.b"), "{said}");
        }
        let said = says(EdgeNode { left_out: BTreeSet::new(), ..node() });
        assert!(said.contains("still shows the topology of a.b"), "{said}");
    }

    #[test]
    fn a_cluster_without_such_nodes_or_with_thousands_is_told_in_few_lines() {
        let csinode = csinode();
        let one = findings(&[right("e1", &csinode)], Publish::Auto);
        assert_eq!(one.last().unwrap().found, "1 of 1 are right");
        let none = findings(&[], Publish::Auto);
        assert_eq!(none.len(), 1);
        assert_eq!(none[0].verdict, Verdict::Fault);
        let names: Vec<_> = (0..1000).map(|n| format!("e{n}")).collect();
        let away = names.iter().map(|name| EdgeNode { is_linked: false, ..right(name, &csinode) });
        let many = findings(&away.collect::<Vec<_>>(), Publish::Auto);
        assert_eq!(many.len(), SHOWN + 2);
        assert!(many.last().unwrap().found.contains("900 more"));
    }

    #[test]
    fn nobody_publishes_such_a_node_if_csi_cloud_does_not() {
        let csinode = csinode();
        let verdict = |publish| findings(&[right("e1", &csinode)], publish)[0].verdict;
        assert_eq!(verdict(Publish::Off), Verdict::Fault);
        assert_eq!((verdict(Publish::On), verdict(Publish::Auto)), (Verdict::Ok, Verdict::Ok));
    }
}
