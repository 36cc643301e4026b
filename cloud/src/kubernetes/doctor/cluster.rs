//! Checks the objects that KubeEdge needs once in a cluster: a right of CloudCore, and the
//! admission policy about its ObjectSyncs.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use proto::admin::doctor::Finding;

use crate::kubernetes::doctor::lookup::{Lookup, hidden};

/// CloudCore's role in KubeEdge's chart. It is aggregated from others.
pub(super) const CLOUDCORE: &str = "cloudcore";
/// The policy that the chart makes for KubeEdge, and its binding.
pub(super) const POLICY: &str = "edge-csi-kubeedge";
/// The resource that the policy is about.
pub(super) const OBJECT_SYNCS: (&str, &str) = ("reliablesyncs.kubeedge.io", "objectsyncs");

const COMPONENT: &str =
    "install with the value kubeedge: true of the chart, or deploy/manifests/kubeedge.yaml";

/// Whether CloudCore may read VolumeAttachments for its nodes.
pub(super) fn rights(role: &Lookup<ClusterRole>) -> Finding {
    const CHECK: &str = "cloudcore-rights";
    let about = format!("ClusterRole {CLOUDCORE}");
    let role = match role {
        Lookup::Found(role) => role,
        Lookup::Hidden(why) => return hidden(CHECK, &about, why),
        Lookup::Missing => {
            return Finding::unknown(
                CHECK,
                about,
                "there is none",
                "if CloudCore has another role, see that it may get, list and watch \
                 volumeattachments of storage.k8s.io",
            );
        }
    };
    let rules = role.rules.iter().flatten();
    let is_allowed = |verb: &&str| rules.clone().any(|rule| allows(rule, verb));
    let lacking: Vec<_> =
        ["get", "list", "watch"].into_iter().filter(|verb| !is_allowed(verb)).collect();
    if lacking.is_empty() {
        return Finding::ok(CHECK, about, "it may read VolumeAttachments");
    }
    let found = format!("it may not {} volumeattachments, so no pod mounts", lacking.join(", "));
    let aggregated = "a rule that is added to the role itself is gone after seconds; one with the \
                      label rbac/aggregate-to-cloudcore: \"true\" stays";
    Finding::fault(CHECK, about, found, format!("{COMPONENT}; {aggregated}"))
}

fn allows(rule: &PolicyRule, verb: &str) -> bool {
    let has = |list: &Option<Vec<String>>, word: &str| {
        list.iter().flatten().any(|entry| entry == word || entry == "*")
    };
    let is_for_all = rule.resource_names.as_ref().is_none_or(Vec::is_empty);
    is_for_all
        && has(&rule.api_groups, "storage.k8s.io")
        && has(&rule.resources, "volumeattachments")
        && rule.verbs.iter().any(|entry| entry == verb || entry == "*")
}

/// Checks that a policy keeps CloudCore from deleting the nodes' copies of VolumeAttachments.
pub(super) fn policy(
    policy: &Lookup<ValidatingAdmissionPolicy>,
    binding: &Lookup<ValidatingAdmissionPolicyBinding>,
) -> Finding {
    const CHECK: &str = "admission-policy";
    let about = format!("ValidatingAdmissionPolicy {POLICY}");
    let found = match (policy, binding) {
        (Lookup::Hidden(why), _) | (_, Lookup::Hidden(why)) => return hidden(CHECK, &about, why),
        (Lookup::Missing, _) => "there is none",
        (_, Lookup::Missing) => "it has no binding of its name, so it does nothing",
        (Lookup::Found(policy), Lookup::Found(_)) if !is_about_object_syncs(policy) => {
            "it is not about the creation of ObjectSyncs"
        }
        (Lookup::Found(_), Lookup::Found(binding)) if !denies(binding) => {
            "its binding does not deny anything"
        }
        (Lookup::Found(_), Lookup::Found(_)) => {
            return Finding::ok(CHECK, about, "CloudCore leaves VolumeAttachments to the nodes");
        }
    };
    let effect = "without it CloudCore deletes the node's copy of a VolumeAttachment, and a node \
                  that starts without the cloud does not mount";
    Finding::fault(CHECK, about, found, format!("{COMPONENT}; {effect}"))
}

fn is_about_object_syncs(policy: &ValidatingAdmissionPolicy) -> bool {
    let constraints = policy.spec.as_ref().and_then(|spec| spec.match_constraints.as_ref());
    let rules = constraints.into_iter().flat_map(|of| of.resource_rules.iter().flatten());
    let has = |list: &Option<Vec<String>>, word: &str| {
        list.iter().flatten().any(|entry| entry == word || entry == "*")
    };
    let (group, resource) = OBJECT_SYNCS;
    rules.into_iter().any(|rule| {
        has(&rule.api_groups, group)
            && has(&rule.resources, resource)
            && has(&rule.operations, "CREATE")
    })
}

fn denies(binding: &ValidatingAdmissionPolicyBinding) -> bool {
    let spec = &binding.spec;
    spec.policy_name == POLICY && spec.validation_actions.iter().any(|action| action == "Deny")
}

/// Whether CloudCore made ObjectSyncs of VolumeAttachments, given the names of those that it has.
pub(super) fn object_syncs(attachments: &Lookup<Vec<String>>) -> Finding {
    const CHECK: &str = "object-syncs";
    const SHOWN: usize = 5;
    let about = "ObjectSyncs of VolumeAttachments";
    match attachments {
        Lookup::Hidden(why) => hidden(CHECK, about, why),
        Lookup::Missing => Finding::unknown(
            CHECK,
            about,
            "there is no such kind of object",
            "if CloudCore does not run yet, ask again when it does",
        ),
        Lookup::Found(names) if names.is_empty() => Finding::ok(CHECK, about, "there are none"),
        Lookup::Found(names) => {
            let first = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
            Finding::fault(
                CHECK,
                about,
                format!("there are {}, for example {first}", names.len()),
                "with the policy in force, delete the pods that use these volumes once, so that \
                 they are mounted again; a node that is away keeps its ObjectSync until it is back",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use proto::admin::doctor::Verdict;

    fn found<T: DeserializeOwned>(object: Value) -> Lookup<T> {
        Lookup::Found(serde_json::from_value(object).unwrap())
    }

    fn role(rules: Value) -> Finding {
        rights(&found(json!({"metadata": {"name": "cloudcore"}, "rules": rules})))
    }

    fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
        json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
    }

    #[test]
    fn cloudcore_must_read_all_volumeattachments() {
        let all = ["get", "list", "watch"];
        let attachments = |verbs| rule("storage.k8s.io", "volumeattachments", verbs);
        assert_eq!(role(json!([attachments(&all)])).verdict, Verdict::Ok);
        assert_eq!(role(json!([rule("*", "*", &["*"])])).verdict, Verdict::Ok);
        let parts = json!([attachments(&["get"]), attachments(&["list", "watch"])]);
        assert_eq!(role(parts).verdict, Verdict::Ok);
        let lacking = role(json!([attachments(&["get"])]));
        assert_eq!(lacking.verdict, Verdict::Fault);
        assert!(lacking.found.contains("may not list, watch"), "{}", lacking.found);
        assert!(lacking.advice.contains("rbac/aggregate-to-cloudcore"), "{}", lacking.advice);
        let mut one = attachments(&all);
        one["resourceNames"] = json!(["csi-1"]);
        for rules in [
            json!([one]),
            json!([rule("", "volumeattachments", &all)]),
            json!([rule("storage.k8s.io", "csinodes", &all)]),
            json!([]),
        ] {
            assert_eq!(role(rules.clone()).verdict, Verdict::Fault, "{rules}");
        }
        assert_eq!(rights(&Lookup::Missing).verdict, Verdict::Unknown);
        let refused = rights(&Lookup::Hidden("forbidden".into()));
        assert_eq!(refused.verdict, Verdict::Unknown);
        assert!(refused.found.contains("cannot be read: forbidden"), "{}", refused.found);
    }

    fn the_policy(resource: &str, operation: &str) -> Lookup<ValidatingAdmissionPolicy> {
        let rule = json!({"apiGroups": ["reliablesyncs.kubeedge.io"], "apiVersions": ["*"],
            "operations": [operation], "resources": [resource]});
        found(json!({"metadata": {"name": POLICY},
            "spec": {"matchConstraints": {"resourceRules": [rule]}}}))
    }

    fn the_binding(to: &str, action: &str) -> Lookup<ValidatingAdmissionPolicyBinding> {
        found(json!({"metadata": {"name": POLICY},
            "spec": {"policyName": to, "validationActions": [action]}}))
    }

    #[test]
    fn the_policy_must_deny_object_syncs() {
        let of = |a: Lookup<_>, b: Lookup<_>| policy(&a, &b);
        let right = || the_policy("objectsyncs", "CREATE");
        let bound = || the_binding(POLICY, "Deny");
        assert_eq!(of(right(), bound()).verdict, Verdict::Ok);
        for (wrong, why) in [
            (of(Lookup::Missing, bound()), "there is none"),
            (of(right(), Lookup::Missing), "no binding"),
            (of(the_policy("pods", "CREATE"), bound()), "not about"),
            (of(the_policy("objectsyncs", "DELETE"), bound()), "not about"),
            (of(right(), the_binding(POLICY, "Audit")), "does not deny"),
            (of(right(), the_binding("other", "Deny")), "does not deny"),
        ] {
            assert_eq!(wrong.verdict, Verdict::Fault, "{why}");
            assert!(wrong.found.contains(why), "{}", wrong.found);
        }
        let hidden = Lookup::Hidden("forbidden".into());
        assert_eq!(of(hidden, bound()).verdict, Verdict::Unknown);
    }

    #[test]
    fn the_policy_of_deploy_is_the_one_that_is_looked_for() {
        let text = include_str!("../../../../deploy/manifests/kubeedge.yaml");
        assert_eq!(text.matches(&format!("name: {POLICY}\n")).count(), 2);
        assert!(text.contains(&format!("policyName: {POLICY}\n")));
        let (group, resource) = OBJECT_SYNCS;
        assert!(text.contains(&format!("apiGroups: [{group}]")));
        assert!(text.contains(&format!("resources: [{resource}]")));
    }

    #[test]
    fn object_syncs_of_attachments_are_told() {
        let of = |names: &[&str]| {
            object_syncs(&Lookup::Found(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        assert_eq!(of(&[]).verdict, Verdict::Ok);
        let some = of(&["default/n1.x", "default/n2.y"]);
        assert_eq!(some.verdict, Verdict::Fault);
        assert!(some.found.contains("there are 2, for example default/n1.x"), "{}", some.found);
        assert_eq!(object_syncs(&Lookup::Missing).verdict, Verdict::Unknown);
    }
}
