//! A set of nodes as an operator writes it: names, patterns with `*`, `?` and `[…]`, and labels.

use std::collections::BTreeSet;
use std::str::FromStr;

use glob::Pattern;
use proto::names::NodeName;

use crate::state::node_labels::{NodeLabels, Selector};

/// The characters that make a name a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// Nodes by name, pattern or label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet {
    patterns: Vec<NodePattern>,
    labels: NodeLabels,
}

/// A name of a node, a pattern of names, or a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePattern {
    /// All nodes with such a name.
    Name(Pattern),
    /// All nodes with this label in Kubernetes.
    Label(Selector),
}

impl NodeSet {
    /// The nodes that match one of these. No node has a label before
    /// [`with_labels`](Self::with_labels).
    pub fn new(patterns: Vec<NodePattern>) -> Self {
        Self { patterns, labels: NodeLabels::default() }
    }

    /// The same, with these labels of nodes.
    #[must_use]
    pub fn with_labels(self, labels: &NodeLabels) -> Self {
        Self { labels: labels.clone(), ..self }
    }

    /// True if a node is in it.
    pub fn contains(&self, node: &NodeName) -> bool {
        self.patterns.iter().any(|pattern| match pattern {
            NodePattern::Name(pattern) => pattern.matches(node.as_str()),
            NodePattern::Label(selector) => self.labels.has(node, selector),
        })
    }

    /// True if it names this node, and no other one can ever be in it.
    pub fn is_just(&self, node: &NodeName) -> bool {
        match self.patterns.as_slice() {
            [NodePattern::Name(name)] => name.as_str() == node.as_str(),
            _ => false,
        }
    }

    /// The nodes that it names, by name or by label. A pattern names none.
    pub fn named(&self) -> BTreeSet<NodeName> {
        let names = self.patterns.iter().flat_map(|pattern| match pattern {
            NodePattern::Name(name) => {
                let is_name = !name.as_str().contains(WILD);
                name.as_str().parse().ok().filter(|_| is_name).into_iter().collect()
            }
            NodePattern::Label(selector) => self.labels.with(selector),
        });
        names.collect()
    }

    /// True if it names each of its nodes: no pattern admits another one.
    pub fn names_all(&self) -> bool {
        self.patterns.iter().all(|pattern| match pattern {
            NodePattern::Name(name) => !name.as_str().contains(WILD),
            NodePattern::Label(_) => true,
        })
    }

    /// The labels of nodes, if some nodes are selected by them.
    pub fn labels(&self) -> Option<&NodeLabels> {
        let is_label = |pattern: &NodePattern| matches!(pattern, NodePattern::Label(_));
        self.patterns.iter().any(is_label).then_some(&self.labels)
    }
}

impl FromStr for NodePattern {
    type Err = String;

    /// Reads a name, a pattern or a label `KEY=VALUE`. Refuses one that no node can match.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // No name or pattern has these.
        if text.contains(['/', '=']) {
            return text.parse().map(Self::Label).map_err(|error| format!("{error}"));
        }
        let is_pattern = text.contains(WILD);
        let is_of_names = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.');
        if !is_pattern {
            text.parse::<NodeName>().map_err(|error| error.to_string())?;
        } else if !text.chars().all(|c| is_of_names(c) || matches!(c, '*' | '?' | '[' | ']' | '!'))
        {
            return Err(format!("no name of a node can match the pattern {text:?}"));
        }
        let pattern = Pattern::new(text);
        let pattern = pattern.map_err(|error| format!("{text:?} is no pattern of names: {error}"));
        Ok(Self::Name(pattern?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(patterns: &[&str]) -> NodeSet {
        NodeSet::new(patterns.iter().map(|pattern| pattern.parse().unwrap()).collect())
    }

    #[test]
    fn names_and_patterns_are_matched_as_a_whole() {
        for (patterns, node, is_in) in [
            (&["n1", "n2"][..], "n2", true),
            (&["n1"], "n11", false),
            (&["n1"], "xn1", false),
            (&["shop-*"], "shop-7.example", true),
            (&["shop-?"], "shop-77", false),
            (&["rack[12]-*"], "rack2-a", true),
            (&["rack[!12]-*"], "rack2-a", false),
            (&["*"], "anything", true),
        ] {
            assert_eq!(
                set(patterns).contains(&node.parse().unwrap()),
                is_in,
                "{patterns:?} {node}"
            );
        }
    }

    #[test]
    fn names_and_labels_go_together() {
        let labels = NodeLabels::default();
        let patterns = ["n1", "node-restriction.kubernetes.io/storage=yes"];
        let nodes = set(&patterns).with_labels(&labels);
        let [n1, n2]: [NodeName; 2] = ["n1", "n2"].map(|name| name.parse().unwrap());
        assert!(nodes.contains(&n1) && !nodes.contains(&n2), "nothing is known of labels");
        let label = ("node-restriction.kubernetes.io/storage".to_owned(), "yes".to_owned());
        labels.set([(n2.clone(), [label].into())].into());
        assert!(nodes.contains(&n1) && nodes.contains(&n2));
        assert!(nodes.labels().is_some() && set(&["n1"]).labels().is_none());
    }

    #[test]
    fn names_and_labels_name_nodes_and_patterns_do_not() {
        let labels = NodeLabels::default();
        let patterns = ["n1", "shop-*", "node-restriction.kubernetes.io/storage=yes"];
        let nodes = set(&patterns).with_labels(&labels);
        let named = || nodes.named().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(named(), ["n1"]);
        let label = ("node-restriction.kubernetes.io/storage".to_owned(), "yes".to_owned());
        labels.set([("n2".parse().unwrap(), [label].into())].into());
        assert_eq!(named(), ["n1", "n2"]);
        assert!(!nodes.names_all(), "a pattern admits others");
        assert!(set(&["n1", patterns[2]]).names_all());
    }

    #[test]
    fn what_matches_no_node_is_refused() {
        for text in ["", "Shop-1", "a b", "shop_*", "[a", "a/b", "***", "a=b"] {
            assert!(text.parse::<NodePattern>().is_err(), "{text:?}");
        }
    }
}
