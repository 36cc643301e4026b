//! The versions of the nodes' csi-edge.

use std::collections::BTreeMap;

use proto::admin::doctor::Finding;

const CHECK: &str = "versions";
const ABOUT: &str = "linked nodes";
/// Nodes that are shown of each version.
const SHOWN: usize = 5;

/// The finding about linked nodes' versions, compared with csi-cloud's own.
pub(super) fn finding(nodes: &[(String, String)], ours: &str) -> Finding {
    let mut others = BTreeMap::<&str, Vec<&str>>::new();
    for (node, version) in nodes.iter().filter(|(_, version)| version != ours) {
        others.entry(version).or_default().push(node);
    }
    if others.is_empty() {
        return Finding::ok(CHECK, ABOUT, format!("all {} have version {ours}", nodes.len()));
    }
    let one = |(version, mut nodes): (&str, Vec<&str>)| {
        nodes.sort_unstable();
        let shown = nodes.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        let more = if nodes.len() > SHOWN { ", …" } else { "" };
        format!("{} have {version} ({shown}{more})", nodes.len())
    };
    let others: Vec<_> = others.into_iter().map(one).collect();
    let found = format!("csi-cloud has {ours}; {}", others.join("; "));
    let advice = "update csi-edge there; during an upgrade this is as it has to be";
    Finding::warning(CHECK, ABOUT, found, advice)
}

/// The finding of a csi-cloud to which no node is linked.
pub(super) fn not_seen(why: &str, advice: &str) -> Finding {
    Finding::unknown(CHECK, ABOUT, why, advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::admin::doctor::Verdict;

    #[test]
    fn nodes_of_another_version_are_counted_and_some_named() {
        let node = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(finding(&[], "2").verdict, Verdict::Ok);
        assert_eq!(finding(&[node("a", "2")], "2").verdict, Verdict::Ok);
        let mut nodes: Vec<_> = (0..7).map(|at| node(&format!("n{at}"), "1")).collect();
        nodes.extend([node("m", "3"), node("k", "2")]);
        let finding = finding(&nodes, "2");
        assert_eq!(finding.verdict, Verdict::Warning);
        let found = "csi-cloud has 2; 7 have 1 (n0, n1, n2, n3, n4, …); 1 have 3 (m)";
        assert_eq!(finding.found, found);
    }
}
