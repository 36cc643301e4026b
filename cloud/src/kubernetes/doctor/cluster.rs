//! Checks the objects that KubeEdge needs once in a cluster: a right of CloudCore, and the
//! admission policy about its ObjectSyncs.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use proto::admin::doctor::Finding;

use crate::kubernetes::doctor::lookup::{Lookup, hidden};

/// CloudCore's role in KubeEdge's chart. It is aggregated from others.
pub(super) const CLOUDCORE: &str = "cloudcore";
/// The policy that the chart makes for KubeEdge, and its binding.
pub(super) const POLICY: &str = "edge-csi-kubeedge";
/// The resource that the policy is about.
pub(super) const OBJECT_SYNCS: (&str, &str) = ("reliablesyncs.kubeedge.io", "objectsyncs");
/// The version of these resources that CloudCore writes.
const VERSION: &str = "v1alpha1";
/// The policy's condition, as the chart has it.
const EXPRESSION: &str = "object.?spec.?objectKind.orValue(\"\") != \"VolumeAttachment\"";

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
    is_empty(rule.resource_names.as_ref())
        && has(rule.api_groups.as_ref(), "storage.k8s.io")
        && has(rule.resources.as_ref(), "volumeattachments")
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
        (Lookup::Found(policy), Lookup::Found(binding)) => {
            match policy_fault(policy).or_else(|| binding_fault(binding)) {
                Some(fault) => fault,
                None => {
                    let found = "CloudCore leaves VolumeAttachments to the nodes";
                    return Finding::ok(CHECK, about, found);
                }
            }
        }
    };
    let effect = "without it CloudCore deletes the node's copy of a VolumeAttachment, and a node \
                  that starts without the cloud does not mount";
    Finding::fault(CHECK, about, found, format!("{COMPONENT}; {effect}"))
}

/// How a policy differs from the chart's, if that lets ObjectSyncs of VolumeAttachments pass.
fn policy_fault(policy: &ValidatingAdmissionPolicy) -> Option<&'static str> {
    let nothing = ValidatingAdmissionPolicySpec::default();
    let spec = policy.spec.as_ref().unwrap_or(&nothing);
    let constraints = spec.match_constraints.as_ref();
    let rules = constraints.and_then(|of| of.resource_rules.as_ref());
    if !rules.into_iter().flatten().any(is_about_object_syncs) {
        return Some("it is not about the creation of ObjectSyncs");
    }
    if constraints.is_some_and(leaves_out) || !is_empty(spec.match_conditions.as_ref()) {
        return Some("it leaves some ObjectSyncs out");
    }
    let mut validations = spec.validations.iter().flatten();
    let denies = validations.any(|validation| validation.expression.trim() == EXPRESSION);
    (!denies).then_some("its expression is not that of the chart, and may let ObjectSyncs pass")
}

/// How a binding differs from the chart's, if that lets ObjectSyncs of VolumeAttachments pass.
fn binding_fault(binding: &ValidatingAdmissionPolicyBinding) -> Option<&'static str> {
    let spec = &binding.spec;
    let is_in_force = spec.validation_actions.iter().any(|action| action == "Deny");
    if spec.policy_name != POLICY || !is_in_force {
        return Some("its binding does not deny anything");
    }
    let matched = spec.match_resources.as_ref();
    let is_narrow =
        matched.is_some_and(|of| leaves_out(of) || !is_empty(of.resource_rules.as_ref()));
    is_narrow.then_some("its binding does not match all ObjectSyncs in all namespaces")
}

fn is_about_object_syncs(rule: &NamedRuleWithOperations) -> bool {
    let (group, resource) = OBJECT_SYNCS;
    has(rule.api_groups.as_ref(), group)
        && has(rule.api_versions.as_ref(), VERSION)
        && has(rule.resources.as_ref(), resource)
        && has(rule.operations.as_ref(), "CREATE")
        && is_empty(rule.resource_names.as_ref())
        && rule.scope.as_ref().is_none_or(|scope| scope != "Cluster")
}

/// True if a selector or an exclusion takes objects out.
fn leaves_out(matched: &MatchResources) -> bool {
    !is_empty(matched.exclude_resource_rules.as_ref())
        || !matched.namespace_selector.as_ref().is_none_or(selects_all)
        || !matched.object_selector.as_ref().is_none_or(selects_all)
}

fn selects_all(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && is_empty(selector.match_expressions.as_ref())
}

/// True if a list has a word, or any.
fn has(list: Option<&Vec<String>>, word: &str) -> bool {
    list.into_iter().flatten().any(|entry| entry == word || entry == "*")
}

fn is_empty<T>(list: Option<&Vec<T>>) -> bool {
    list.is_none_or(Vec::is_empty)
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

    fn the_policy() -> Value {
        let rule = json!({"apiGroups": ["reliablesyncs.kubeedge.io"], "apiVersions": ["*"],
            "operations": ["CREATE"], "resources": ["objectsyncs"], "scope": "*"});
        // As the API server completes it.
        let constraints = json!({"resourceRules": [rule], "matchPolicy": "Equivalent",
            "namespaceSelector": {}, "objectSelector": {}});
        json!({"metadata": {"name": POLICY}, "spec": {"matchConstraints": constraints,
            "validations": [{"expression": EXPRESSION}]}})
    }

    fn the_binding() -> Value {
        json!({"metadata": {"name": POLICY},
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]}})
    }

    /// An object with another value at this path.
    fn with(mut object: Value, path: &str, value: Value) -> Value {
        match object.pointer_mut(path) {
            Some(place) => *place = value,
            None => {
                let (parent, key) = path.rsplit_once('/').unwrap();
                object.pointer_mut(parent).unwrap()[key] = value;
            }
        }
        object
    }

    #[test]
    fn the_policy_and_its_binding_must_deny_all_object_syncs_of_attachments() {
        let of = |a: Value, b: Value| policy(&found(a), &found(b));
        assert_eq!(of(the_policy(), the_binding()).verdict, Verdict::Ok);
        let labels = json!({"matchLabels": {"a": "b"}});
        let condition = json!([{"name": "n", "expression": "false"}]);
        let rule = "/spec/matchConstraints/resourceRules/0";
        for (path, value, why) in [
            (format!("{rule}/resources"), json!(["pods"]), "not about"),
            (format!("{rule}/operations"), json!(["DELETE"]), "not about"),
            (format!("{rule}/apiVersions"), json!(["v2"]), "not about"),
            (format!("{rule}/resourceNames"), json!(["one"]), "not about"),
            (format!("{rule}/scope"), json!("Cluster"), "not about"),
            ("/spec/matchConstraints/namespaceSelector".into(), labels.clone(), "leaves some"),
            ("/spec/matchConstraints/objectSelector".into(), labels.clone(), "leaves some"),
            ("/spec/matchConstraints/excludeResourceRules".into(), json!([{}]), "leaves some"),
            ("/spec/matchConditions".into(), condition, "leaves some"),
            ("/spec/validations/0/expression".into(), json!("true"), "its expression"),
            ("/spec/validations".into(), json!([]), "its expression"),
        ] {
            let wrong = of(with(the_policy(), &path, value), the_binding());
            assert_eq!(wrong.verdict, Verdict::Fault, "{path}");
            assert!(wrong.found.contains(why), "{path}: {}", wrong.found);
        }
        let rules = json!({"resourceRules": [{"resources": ["pods"]}]});
        for (path, value, why) in [
            ("/spec/validationActions", json!(["Audit"]), "does not deny"),
            ("/spec/policyName", json!("other"), "does not deny"),
            ("/spec/matchResources", json!({"namespaceSelector": labels}), "does not match"),
            ("/spec/matchResources", rules, "does not match"),
        ] {
            let wrong = of(the_policy(), with(the_binding(), path, value));
            assert_eq!(wrong.verdict, Verdict::Fault, "{path}");
            assert!(wrong.found.contains(why), "{path}: {}", wrong.found);
        }
        let everywhere = json!({"namespaceSelector": {}, "objectSelector": {}});
        let all = with(the_binding(), "/spec/matchResources", everywhere);
        assert_eq!(of(the_policy(), all).verdict, Verdict::Ok);
    }

    #[test]
    fn a_policy_that_is_missing_or_hidden_is_said_to_be() {
        let missing = policy(&Lookup::Missing, &found(the_binding()));
        assert_eq!((missing.verdict, missing.found.as_str()), (Verdict::Fault, "there is none"));
        let unbound = policy(&found(the_policy()), &Lookup::Missing);
        assert!(unbound.found.contains("no binding"), "{}", unbound.found);
        let hidden = policy(&Lookup::Hidden("forbidden".into()), &found(the_binding()));
        assert_eq!(hidden.verdict, Verdict::Unknown);
    }

    #[test]
    fn the_policy_of_deploy_is_the_one_that_is_looked_for() {
        let text = include_str!("../../../../deploy/manifests/kubeedge.yaml");
        assert_eq!(text.matches(&format!("name: {POLICY}\n")).count(), 2);
        assert!(text.contains(&format!("policyName: {POLICY}\n")));
        let (group, resource) = OBJECT_SYNCS;
        assert!(text.contains(&format!("apiGroups: [{group}]")));
        assert!(text.contains(&format!("resources: [{resource}]")));
        assert!(text.contains(&format!("expression: {EXPRESSION}\n")), "{EXPRESSION}");
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
