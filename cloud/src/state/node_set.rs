//! A set of nodes as an operator writes it: names, and patterns with `*`, `?` and `[…]`.

use std::str::FromStr;

use glob::Pattern;
use proto::names::NodeName;

/// Nodes by name or pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSet(Vec<NodePattern>);

/// A name of a node, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePattern(Pattern);

impl NodeSet {
    /// The nodes that match one of these.
    pub fn new(patterns: Vec<NodePattern>) -> Self {
        Self(patterns)
    }

    /// Whether a node is in it.
    pub fn contains(&self, node: &NodeName) -> bool {
        self.0.iter().any(|pattern| pattern.0.matches(node.as_str()))
    }
}

impl FromStr for NodePattern {
    type Err = String;

    /// Reads a name or a pattern. What no name of a node can match is refused.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_pattern = text.contains(['*', '?', '[']);
        let is_of_names = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.');
        if !is_pattern {
            text.parse::<NodeName>().map_err(|error| error.to_string())?;
        } else if !text.chars().all(|c| is_of_names(c) || matches!(c, '*' | '?' | '[' | ']' | '!'))
        {
            return Err(format!("no name of a node can match the pattern {text:?}"));
        }
        let pattern = Pattern::new(text);
        Ok(Self(pattern.map_err(|error| format!("{text:?} is no pattern of names: {error}"))?))
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
    fn what_matches_no_node_is_refused() {
        for text in ["", "Shop-1", "a b", "shop_*", "[a", "a/b", "***"] {
            assert!(text.parse::<NodePattern>().is_err(), "{text:?}");
        }
    }
}
