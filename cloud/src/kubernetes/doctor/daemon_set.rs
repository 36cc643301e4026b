//! The DaemonSet csi-edge: whether it runs at the nodes that KubeEdge has, with a registrar that is
//! started again.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PodSpec;
use proto::admin::doctor::Finding;

use crate::kubernetes::doctor::lookup::{Lookup, hidden};

/// Its name in deploy/.
pub(super) const NAME: &str = "csi-edge";
/// The flag that makes a container a registrar.
const REGISTRAR: &str = "--kubelet-registration-path";

/// The labels of nodes, by name.
pub(super) type NodeLabels<'a> = BTreeMap<&'a str, &'a BTreeMap<String, String>>;

/// What is said of the DaemonSet, given the nodes that KubeEdge has.
pub(super) fn findings(daemon_set: &Lookup<DaemonSet>, edges: &NodeLabels<'_>) -> Vec<Finding> {
    let about = format!("DaemonSet {NAME}");
    let daemon_set = match daemon_set {
        Lookup::Found(daemon_set) => daemon_set,
        Lookup::Hidden(why) => return vec![hidden("daemon-set", &about, why)],
        Lookup::Missing => {
            return vec![Finding::unknown(
                "daemon-set",
                about,
                "there is none beside csi-cloud",
                "whatever runs csi-edge and the registrars must start them again when they exit",
            )];
        }
    };
    let pod = daemon_set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let Some(pod) = pod else {
        return vec![Finding::fault("daemon-set", about, "it makes no pods", "make it anew")];
    };
    vec![selector(&about, pod, edges), registrar(&about, pod)]
}

fn selector(about: &str, pod: &PodSpec, edges: &NodeLabels<'_>) -> Finding {
    const CHECK: &str = "node-selector";
    const SHOWN: usize = 5;
    let wanted: Vec<_> = pod.node_selector.iter().flatten().collect();
    let is_left_out = |labels: &BTreeMap<String, String>| {
        wanted.iter().any(|(key, value)| labels.get(*key) != Some(*value))
    };
    let left_out: Vec<_> =
        edges.iter().filter(|(_, labels)| is_left_out(labels)).map(|(name, _)| *name).collect();
    if left_out.is_empty() {
        return Finding::ok(CHECK, about, "it selects all nodes that KubeEdge has");
    }
    let shown = left_out.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let found = format!("it does not select {} of KubeEdge's nodes: {shown}", left_out.len());
    let advice = "select node-role.kubernetes.io/edge: \"\" as the chart does with kubeedge: true, \
                  or label the nodes as the selector says; ignore it if these nodes shall have no \
                  storage";
    Finding::fault(CHECK, about, found, advice)
}

fn registrar(about: &str, pod: &PodSpec) -> Finding {
    const CHECK: &str = "registrar";
    let says = |list: &Option<Vec<String>>| {
        list.iter().flatten().any(|argument| argument.starts_with(REGISTRAR))
    };
    let registers = pod.containers.iter().any(|one| says(&one.args) || says(&one.command));
    if registers {
        return Finding::ok(CHECK, about, "its registrar is started again when it exits");
    }
    Finding::fault(
        CHECK,
        about,
        format!("it has no registrar (a container with {REGISTRAR})"),
        "edged learns of drivers by node-driver-registrar, which exits when a registration fails; \
         run one for each driver where it is started again, as the chart does",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use proto::admin::doctor::Verdict;

    fn looked(selector: Value, args: &[&str]) -> Lookup<DaemonSet> {
        let containers = json!([{"name": "csi-edge"}, {"name": "other", "args": args}]);
        let template = json!({"spec": {"nodeSelector": selector, "containers": containers}});
        let spec = json!({"selector": {}, "template": template});
        Lookup::Found(serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap())
    }

    fn verdicts(daemon_set: &Lookup<DaemonSet>) -> Vec<Verdict> {
        let labels = [("node-role.kubernetes.io/edge".to_owned(), String::new())].into();
        let edges = [("e1", &labels)].into();
        findings(daemon_set, &edges).into_iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn csi_edge_runs_where_kubeedge_does_and_registers_there() {
        let registrar = ["--kubelet-registration-path=/x"];
        let right = json!({"node-role.kubernetes.io/edge": ""});
        assert_eq!(verdicts(&looked(right.clone(), &registrar)), [Verdict::Ok, Verdict::Ok]);
        assert_eq!(verdicts(&looked(Value::Null, &registrar)), [Verdict::Ok, Verdict::Ok]);
        let of_the_base = json!({"edge-csi.io/edge": "true"});
        assert_eq!(verdicts(&looked(of_the_base, &registrar))[0], Verdict::Fault);
        assert_eq!(verdicts(&looked(right, &["--x"])), [Verdict::Ok, Verdict::Fault]);
        assert_eq!(verdicts(&Lookup::Missing), [Verdict::Unknown]);
        assert_eq!(verdicts(&Lookup::Hidden("forbidden".into())), [Verdict::Unknown]);
    }
}
