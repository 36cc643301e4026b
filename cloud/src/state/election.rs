//! Elects the node that carries out the calls of a shared driver. Pure.
//!
//! The elected node stays until its link has been gone for the grace period. An earlier change
//! could start a call twice.

use std::time::Duration;

use proto::names::NodeName;

/// Elects the first linked node by name, if the current node's link has been gone for the grace
/// period. None if the current node stays, or no node is linked.
///
/// `away` tells for how long a node has had no link; none if it has one. `nodes` are the driver's
/// nodes ordered by name, without removed ones.
pub fn elect<'a>(
    current: Option<&NodeName>,
    mut nodes: impl Iterator<Item = &'a NodeName>,
    away: impl Fn(&NodeName) -> Option<Duration>,
    grace: Duration,
) -> Option<&'a NodeName> {
    if current.is_some_and(|node| away(node).is_none_or(|gone| gone < grace)) {
        return None;
    }
    nodes.find(|node| away(node).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    /// Elects among n1, n2 and n3, which have been away for these seconds.
    fn next(current: Option<&str>, gone: [Option<u64>; 3]) -> Option<String> {
        let nodes = ["n1", "n2", "n3"].map(|name| name.parse::<NodeName>().unwrap());
        let current: Option<NodeName> = current.map(|name| name.parse().unwrap());
        let away = |node: &NodeName| {
            let at = nodes.iter().position(|name| name == node);
            at.map_or(Some(Duration::MAX), |at| gone[at].map(Duration::from_secs))
        };
        elect(current.as_ref(), nodes.iter(), away, GRACE).map(ToString::to_string)
    }

    #[test]
    fn the_first_linked_node_is_elected_and_stays() {
        assert_eq!(next(None, [Some(99), None, None]).as_deref(), Some("n2"));
        assert_eq!(next(Some("n2"), [None, None, None]), None, "back only by need");
        assert_eq!(next(None, [Some(1), Some(1), Some(1)]), None, "nobody is there");
    }

    #[test]
    fn another_one_takes_over_after_the_grace_and_not_before() {
        assert_eq!(next(Some("n2"), [None, Some(9), None]), None);
        assert_eq!(next(Some("n2"), [None, Some(10), None]).as_deref(), Some("n1"));
        assert_eq!(next(Some("n2"), [Some(10), Some(10), Some(10)]), None, "no better one");
        assert_eq!(next(Some("removed"), [Some(10), Some(10), None]).as_deref(), Some("n3"));
    }
}
