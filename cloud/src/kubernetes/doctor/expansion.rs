//! Expansion: edged carries out no node's half, and a claim that waits for one keeps new pods from
//! starting.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use proto::admin::doctor::Finding;
use proto::names::{DriverName, NodeName};

use crate::kubernetes::claims::{PROVISIONERS, SELECTED};

/// Claims that are shown.
const SHOWN: usize = 100;

/// A claim that waits for its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    claim: String,
    driver: DriverName,
    node: NodeName,
}

/// A claim with a grown volume and a file system that has not grown yet; none otherwise.
pub(super) fn waiting(claim: &PersistentVolumeClaim) -> Option<Waiting> {
    let status = claim.status.as_ref()?;
    let pending = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "FileSystemResizePending" && condition.status == "True"
    });
    let states = status.allocated_resource_statuses.iter().flatten();
    let at_node = states.into_iter().any(|(of, state)| {
        // NodeResizePending, NodeResizeInProgress and NodeResizeInfeasible.
        of == "storage" && state.starts_with("NodeResize")
    });
    if !pending && !at_node {
        return None;
    }
    let metadata = &claim.metadata;
    let annotation = |key: &str| metadata.annotations.as_ref()?.get(key);
    let driver = PROVISIONERS.into_iter().find_map(annotation)?.parse().ok()?;
    let node = annotation(SELECTED)?.parse().ok()?;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    Some(Waiting { claim: format!("{namespace}/{name}"), driver, node })
}

/// The finding about a driver that needs node expansion, given the KubeEdge nodes whose csi-edge
/// does not carry it out.
pub(super) fn drivers_half(driver: &DriverName, without: &[String]) -> Finding {
    const CHECK: &str = "node-expansion";
    const FEW: usize = 5;
    let about = format!("driver {driver}");
    if without.is_empty() {
        return Finding::ok(CHECK, about, "csi-edge carries out the node's half of expansion");
    }
    let shown = without.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ");
    Finding::fault(
        CHECK,
        about,
        format!(
            "it expands at the node, which edged does not do, and csi-edge does not at {} nodes: \
             {shown}",
            without.len()
        ),
        "set node_expansion = \"edge\" in edge.toml, or do not expand its volumes there",
    )
}

/// The findings about claims that wait for a node of KubeEdge.
pub(super) fn claims(waiting: &[Waiting], is_edge: impl Fn(&Waiting) -> bool) -> Vec<Finding> {
    const CHECK: &str = "claims";
    let waiting: Vec<_> = waiting.iter().filter(|one| is_edge(one)).collect();
    if waiting.is_empty() {
        return vec![Finding::ok(CHECK, "claims", "none waits for its node to expand")];
    }
    let problem = |one: &&Waiting| {
        Finding::fault(
            CHECK,
            format!("claim {}", one.claim),
            format!(
                "it waits until node {} has expanded its volume; a new pod does not start",
                one.node
            ),
            "when the volume has its size at the node, set the claim's status.capacity and remove \
             the condition FileSystemResizePending: kubectl edit --subresource=status",
        )
    };
    let mut findings: Vec<_> = waiting.iter().take(SHOWN).map(problem).collect();
    if let Some(more @ 1..) = waiting.len().checked_sub(SHOWN) {
        findings.push(Finding::fault(
            CHECK,
            "claims",
            format!("{more} more claims wait for their node"),
            "mend these, and ask again",
        ));
    }
    findings
}

impl Waiting {
    /// The driver of its volume.
    pub(super) fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// The node that is to expand it.
    pub(super) fn node(&self) -> &NodeName {
        &self.node
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use proto::admin::doctor::Verdict;

    fn claim(status: Value) -> PersistentVolumeClaim {
        let object = json!({
            "metadata": {"namespace": "shop", "name": "db", "annotations": {
                "volume.kubernetes.io/storage-provisioner": "a.b",
                "volume.kubernetes.io/selected-node": "e1",
            }},
            "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn pending(status: &str) -> Value {
        json!({"conditions": [{"type": "FileSystemResizePending", "status": status}]})
    }

    #[test]
    fn a_claim_that_waits_for_its_node_is_told() {
        for status in [
            pending("True"),
            json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
            json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}),
        ] {
            let waiting = waiting(&claim(status.clone())).unwrap_or_else(|| panic!("{status}"));
            let found = claims(std::slice::from_ref(&waiting), |_| true);
            assert_eq!(found[0].verdict, Verdict::Fault);
            assert_eq!(found[0].about, "claim shop/db");
            assert!(found[0].found.contains("node e1"), "{}", found[0].found);
            assert_eq!(claims(&[waiting], |_| false)[0].verdict, Verdict::Ok, "another kubelet's");
        }
        for status in [
            json!({"phase": "Bound"}),
            pending("False"),
            json!({"allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}),
        ] {
            assert_eq!(waiting(&claim(status.clone())), None, "{status}");
        }
        let one = waiting(&claim(pending("True"))).unwrap();
        assert_eq!(claims(&vec![one; SHOWN + 7], |_| true).len(), SHOWN + 1);
    }

    #[test]
    fn a_drivers_half_at_the_node_needs_csi_edge() {
        let driver = "a.b".parse().unwrap();
        assert_eq!(drivers_half(&driver, &[]).verdict, Verdict::Ok);
        let lacking = drivers_half(&driver, &["e1".into(), "e2".into()]);
        assert_eq!(lacking.verdict, Verdict::Fault);
        assert!(lacking.found.contains("at 2 nodes: e1, e2"), "{}", lacking.found);
    }
}
