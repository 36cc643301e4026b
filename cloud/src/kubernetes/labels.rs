//! Decides which segments of a driver may become labels of its node.
//!
//! A label steers scheduling and access. So an edge may set no label that the NodeRestriction
//! admission forbids a kubelet for its own node.

/// Labels of Kubernetes' own domains that NodeRestriction lets a kubelet set.
const KUBELETS: [&str; 9] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Domains below which a kubelet may set any label.
const FREE: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The longest prefix of a key, in bytes.
const PREFIX: usize = 253;
/// The longest name of a key and the longest value, in bytes.
const NAME: usize = 63;

/// The reason why a segment may not become a label of its node; none if it may.
pub(super) fn refused(key: &str, value: &str) -> Option<&'static str> {
    let (prefix, name) =
        key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_value = value.is_empty() || is_name(value);
    if !is_name(name) || !prefix.is_none_or(is_domain) || !is_value {
        return Some("it is no label that Kubernetes takes");
    }
    let within = |domain: &str| {
        let rest = prefix.and_then(|prefix| prefix.strip_suffix(domain));
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let theirs = within("kubernetes.io") || within("k8s.io");
    let free = KUBELETS.contains(&key) || FREE.into_iter().any(within);
    (theirs && !free).then_some("only an administrator may set such a label")
}

/// At most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = [text.chars().next(), text.chars().next_back()];
    text.len() <= NAME
        && text.chars().all(inner)
        && ends.iter().all(|c| c.is_some_and(|c| c.is_ascii_alphanumeric()))
}

/// A DNS subdomain, which the prefix of a key must be.
fn is_domain(text: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let part = |part: &str| is_name(part) && part.chars().all(lower);
    text.len() <= PREFIX && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_kubelet_may_not_say_an_edge_may_not_either() {
        for (key, value) in [
            ("topology.edge-csi.io/node", "n1"),
            ("topology.hostpath.csi/node", "n1"),
            ("topology.kubernetes.io/zone", "a"),
            ("kubernetes.io/hostname", "n1"),
            ("foo.node.kubernetes.io/x", "1"),
            ("notkubernetes.io/x", "1"),
            ("rack", ""),
        ] {
            assert_eq!(refused(key, value), None, "{key}");
        }
        for key in [
            "node-role.kubernetes.io/control-plane",
            "node-restriction.kubernetes.io/x",
            "a.node-restriction.kubernetes.io/x",
            "kubernetes.io/role",
            "k8s.io/x",
            "x.k8s.io/y",
        ] {
            assert_eq!(
                refused(key, "1"),
                Some("only an administrator may set such a label"),
                "{key}"
            );
        }
        let long = "a".repeat(64);
        for (key, value) in [
            ("a b", ""),
            ("", ""),
            ("/x", ""),
            ("a/b/c", ""),
            ("A.b/x", ""),
            ("x", "-"),
            ("x", &long),
            ("é", ""),
        ] {
            assert_eq!(
                refused(key, value),
                Some("it is no label that Kubernetes takes"),
                "{key}={value}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_label_or_is_refused(key in ".*", value in ".*") {
            refused(&key, &value);
        }
    }
}
