//! Which node carries out the calls of a shared driver. Sticky: one node until its link has been gone longer
//! than the grace, since what another one may still be doing is not begun twice. Pure.

use std::time::Duration;

use proto::names::NodeName;

/// Elects: the node of now as long as it is linked or not gone for long, else the first linked one by name.
/// None if there is no reason or no node to change to.
///
/// `away` is for how long a node has had no link; none if it has one. `nodes` are those that have the driver,
/// in order of their names, without those that were removed.
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

    /// Elects among n1, n2 and n3, which have been away for so many seconds.
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
