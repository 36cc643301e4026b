//! Our rights at the API server: each that `deploy/` gives, asked for by SelfSubjectAccessReview.
//!
//! The tests hold the table against the manifests.

use std::collections::{BTreeMap, BTreeSet};

use proto::admin::doctor::Finding;

/// The part of an installation that needs a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Every installation.
    Base,
    /// `join_service_account`.
    Join,
    /// `metadata`.
    Metadata,
}

impl Part {
    /// Where the chart has it.
    fn chart(self) -> &'static str {
        match self {
            Self::Base => "templates/rights.yaml",
            Self::Join => "templates/rights.yaml with join.method: account",
            Self::Metadata => "templates/rights.yaml with metadata.enabled: true",
        }
    }
}

/// A rule: group, resource, verbs.
type Rule = (&'static str, &'static str, &'static [&'static str]);

const WATCHED: &[&str] = &["list", "watch"];
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

/// Our rights.
const RIGHTS: &[(Part, &[Rule])] = &[
    (
        Part::Base,
        &[
            ("storage.k8s.io", "csidrivers", &["get", "list", "watch", "create", "patch"]),
            ("storage.k8s.io", "csinodes", &["get", "list", "watch", "create", "patch"]),
            ("", "nodes", &["get", "list", "watch", "patch"]),
            ("", "persistentvolumeclaims", &["get", "list", "watch"]),
            ("", "persistentvolumes", &["get", "list"]),
            ("", "pods", &["get"]),
            ("events.k8s.io", "events", &["create", "patch"]),
            ("storage.k8s.io", "storageclasses", &["get", "list"]),
            ("storage.k8s.io", "volumeattachments", &["get"]),
            (SNAPSHOTS, "volumesnapshots", &["get"]),
            (SNAPSHOTS, "volumesnapshotclasses", &["get"]),
            (SNAPSHOTS, "volumesnapshotcontents", &["get"]),
            ("", "events", &["list"]),
        ],
    ),
    (Part::Join, &[("authentication.k8s.io", "tokenreviews", &["create"])]),
    (
        Part::Metadata,
        &[
            ("", "pods", WATCHED),
            ("", "persistentvolumeclaims", WATCHED),
            ("", "persistentvolumes", WATCHED),
            ("storage.k8s.io", "csidrivers", WATCHED),
            ("storage.k8s.io", "volumeattachments", WATCHED),
            ("node.k8s.io", "runtimeclasses", WATCHED),
        ],
    ),
];

/// One question: may we do this?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Right {
    pub(super) part: Part,
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    pub(super) verb: &'static str,
}

/// The rights that these parts need, each once.
pub(super) fn of(parts: &[Part]) -> Vec<Right> {
    let rules = RIGHTS.iter().filter(|(part, _)| parts.contains(part));
    let rights = rules.flat_map(|(part, rules)| {
        rules.iter().flat_map(|(group, resource, verbs)| {
            verbs.iter().map(|verb| Right { part: *part, group, resource, verb })
        })
    });
    let mut asked = BTreeSet::new();
    rights.filter(|right| asked.insert((right.group, right.resource, right.verb))).collect()
}

/// The findings about the rights. An answer is true if csi-cloud has the right, or the reason why
/// that is not known.
pub(super) fn findings(answers: &[(Right, Result<bool, String>)]) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let about = "API server";
    if let Some(why) = answers.iter().find_map(|(_, answer)| answer.as_ref().err()) {
        let advice = "every authenticated user may ask for its own rights (system:basic-user); see \
                      `kubectl auth can-i --list --as system:serviceaccount:NAMESPACE:csi-cloud`";
        return vec![Finding::unknown(CHECK, about, format!("they cannot be seen: {why}"), advice)];
    }
    let mut lacking = BTreeMap::<(Part, &str, &str), Vec<&str>>::new();
    for (right, _) in answers.iter().filter(|(_, answer)| *answer == Ok(false)) {
        let Right { part, group, resource, verb } = *right;
        lacking.entry((part, group, resource)).or_default().push(verb);
    }
    if lacking.is_empty() {
        return vec![Finding::ok(CHECK, about, format!("all {} are there", answers.len()))];
    }
    let finding = |((part, group, resource), verbs): ((Part, &str, &str), Vec<&str>)| {
        let about = if group.is_empty() { resource.into() } else { format!("{resource}.{group}") };
        let found = format!("csi-cloud may not {} them", verbs.join(", "));
        let place = part.chart();
        let advice = format!("install the rights of the chart ({place}), or add these verbs");
        Finding::fault(CHECK, about, found, advice)
    };
    lacking.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    /// The rules of a ClusterRole in a manifest, as `(group, resource, verb)`.
    fn manifest(text: &str, role: &str) -> BTreeSet<(String, String, String)> {
        let document = text.split("\n---\n").find(|document| {
            document.contains("kind: ClusterRole\n")
                && document.contains(&format!("name: {role}\n"))
        });
        let document = document.unwrap_or_else(|| panic!("no ClusterRole {role}"));
        let mut rules: Vec<[Vec<String>; 3]> = Vec::new();
        for line in document.lines().map(|line| line.trim().trim_start_matches("- ")) {
            let Some((key, list)) = line.split_once(": [") else { continue };
            let list = list.trim_end_matches(']').split(", ").map(|item| item.trim_matches('"'));
            let place = match key {
                "apiGroups" => {
                    rules.push(Default::default());
                    0
                }
                "resources" => 1,
                "verbs" => 2,
                other => panic!("{other} is not understood here"),
            };
            rules.last_mut().unwrap()[place] = list.map(str::to_owned).collect::<Vec<_>>();
        }
        rules.iter().flat_map(rights_of).collect()
    }

    /// All that a rule allows.
    fn rights_of([groups, resources, verbs]: &[Vec<String>; 3]) -> Vec<(String, String, String)> {
        let mut rights = Vec::new();
        for (group, resource) in groups.iter().flat_map(|g| resources.iter().map(move |r| (g, r))) {
            rights.extend(verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
        }
        rights
    }

    fn ours(part: Part) -> BTreeSet<(String, String, String)> {
        let own = |right: Right| (right.group.into(), right.resource.into(), right.verb.into());
        of(&[part]).into_iter().map(own).collect()
    }

    #[test]
    fn the_rights_are_those_of_the_manifests() {
        let plain = include_str!("../../../../deploy/manifests/plain.yaml");
        let kubeedge = include_str!("../../../../deploy/manifests/kubeedge.yaml");
        assert_eq!(ours(Part::Base), manifest(plain, "edge-csi-cloud"));
        assert_eq!(ours(Part::Join), manifest(plain, "edge-csi-cloud-join"));
        assert_eq!(ours(Part::Metadata), manifest(kubeedge, "edge-csi-cloud-metadata"));
    }

    #[test]
    fn a_right_is_asked_for_once() {
        let all = of(&[Part::Base, Part::Join, Part::Metadata]);
        let once: BTreeSet<_> =
            all.iter().map(|right| (right.group, right.resource, right.verb)).collect();
        assert_eq!(all.len(), once.len());
        assert!(all.len() > of(&[Part::Base]).len());
    }

    #[test]
    fn what_is_lacking_is_named_with_its_place_in_the_chart() {
        let right = |resource, verb| Right { part: Part::Base, group: "", resource, verb };
        let all = [(right("nodes", "get"), Ok(true)), (right("nodes", "patch"), Ok(true))];
        let [finding] = &findings(&all)[..] else { panic!() };
        assert_eq!((finding.verdict, finding.found.as_str()), (Verdict::Ok, "all 2 are there"));
        let some = [
            (right("nodes", "list"), Ok(false)),
            (right("nodes", "patch"), Ok(false)),
            (right("pods", "get"), Ok(true)),
        ];
        let [finding] = &findings(&some)[..] else { panic!() };
        assert_eq!((finding.verdict, finding.about.as_str()), (Verdict::Fault, "nodes"));
        assert!(finding.found.contains("list, patch"), "{finding:?}");
        assert!(finding.advice.contains("templates/rights.yaml"), "{finding:?}");
        let hidden = [(right("nodes", "list"), Err("away".into()))];
        assert_eq!(findings(&hidden)[0].verdict, Verdict::Unknown);
    }
}
